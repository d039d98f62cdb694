"""What contributors read names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.running import ROOT

PAGES = pytest.mark.parametrize(
    "page", sorted(p for p in ROOT.glob("*.md") if p.name != "CHANGELOG.md"), ids=lambda p: p.name
)
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


@PAGES
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if not link.startswith(("https://", "#")):
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_the_rooms_and_files_of_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/)?)`", text))
    files = {name for name in named if name.endswith(".py") or "/" in name}
    assert len(files) > 15
    for name in files:
        places = (ROOT / name, ROOT / "fsdp2lint" / name)
        assert any(place.exists() for place in places), name


@pytest.mark.parametrize("form", FORMS, ids=lambda p: p.name)
def test_workflows_and_forms_are_whole(form: Path) -> None:
    read = yaml.safe_load(form.read_text("utf-8"))
    assert read["name"]
    if "jobs" in read:
        assert all(job["steps"] for job in read["jobs"].values())
    else:
        assert all(part["attributes"]["label"] for part in read["body"])


def test_the_recipes_run_what_is_there() -> None:
    recipes = (ROOT / "justfile").read_text("utf-8")
    for path in re.findall(r"(?:python|bash) ([^-\s]\S*)", recipes):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (\S+)", recipes):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
