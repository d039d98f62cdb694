"""Every format leads from a finding to the page of its rule, once the docs are published somewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp2lint.catalogue import declare
from tests.config.test_config import LATE
from tests.reporters.test_terminal import on_a_terminal
from tests.support.editor import editing, live
from tests.support.running import invoke

DOCS = "https://docs.example/fsdp2lint"
PAGE = f"{DOCS}/reference/rules/optimizer-before-shard.html"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FSDP2LINT_DOCS", f"{DOCS}/")
    declare.docs.cache_clear()
    (tmp_path / "late.py").write_text(LATE)
    yield tmp_path
    declare.docs.cache_clear()


def test_reports_for_programs(place: Path) -> None:
    for _ in range(2):  # the second comes out of the cache
        (found,) = json.loads(invoke("check", "-f", "json", cwd=place).stdout)
        assert found["url"] == PAGE
    driver = json.loads(invoke("check", "-f", "sarif", cwd=place).stdout)["runs"][0]["tool"]
    links = {rule["id"]: rule["helpUri"] for rule in driver["driver"]["rules"]}
    assert links["FSDP201"] == PAGE
    assert links["FSDP901"] == f"{DOCS}/reference/rules/unused-suppression.html"
    (rule,) = json.loads(invoke("rule", "FSDP201", "-f", "json", cwd=place).stdout)
    assert rule["url"] == PAGE


@pytest.mark.parametrize(
    ("kind", "shown"), [("full", "error[FSDP201]"), ("concise", "FSDP201"), ("grouped", "FSDP201")]
)
def test_a_terminal_links_the_code(place: Path, kind: str, shown: str) -> None:
    _, sent = on_a_terminal(place, "-f", kind)
    assert f";{PAGE}\x1b\\\x1b[1;31m{shown}\x1b[0m\x1b]8;;\x1b\\" in sent


def test_an_editor_links_the_code(place: Path) -> None:
    async def story() -> None:
        async with editing(place) as editor:
            editor.opens("late.py", LATE)
            (found,) = await editor.hears("late.py")
            assert found.code_description is not None
            assert found.code_description.href == PAGE

    live(story())


@pytest.mark.parametrize("wrong", ["", "ftp://docs.example", "https://a b", "\x1b]8;;x"])
def test_there_is_no_link_without_an_address(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSDP2LINT_DOCS", wrong)
    monkeypatch.setattr(declare, "docs", declare.docs.__wrapped__)
    assert declare.docs() == ""


def test_the_page_of_each_link_is_on_the_site() -> None:
    from tests.test_docs import generated

    assert f"rules/{PAGE.rpartition('/')[2].removesuffix('.html')}.md" in generated()
