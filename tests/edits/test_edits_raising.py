"""A fix whose function raises is dropped and said; the finding, the rule and the other fixes stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp2lint.api import Edit, Finding, Fix, Replace, Rewrite, Sharded, Trace
from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import Rule
from fsdp2lint.check.analysis import Analysis
from fsdp2lint.config.settings import Settings
from fsdp2lint.edits.apply import combine
from fsdp2lint.edits.changes import Inner
from fsdp2lint.source.source import Source
from tests.support.editing import find

SCRIPT = """\
from torch import nn
from torch.distributed.fsdp import fully_shard

first = nn.Linear(2, 2)
second = nn.Linear(2, 2)
fully_shard(first)
fully_shard(second)
"""


def failing(inner: Inner) -> str:
    """No text."""
    raise LookupError("no such thing")


def check(trace: Trace) -> Iterator[Finding]:
    """Two findings: the fix of the first raises, that of the second is fine."""
    for sharded in trace.of(Sharded):
        source, node = sharded.at.source, sharded.at.node
        good = "second" in sharded.at.code
        edit: Edit = Replace(source, node, "pass_by") if good else Rewrite(source, node, failing)
        yield Finding(sharded, f"found {sharded.at.code}", fix=Fix("a fix", (edit,), "safe"))


def test_a_run_says_it_and_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rule = Rule("FSDP298", "a-rule", "correctness", check, "A rule.\n", "2.6", "")
    monkeypatch.setattr(knowledge, "rules", lambda *plugins: (rule,))
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    report = Analysis([(str(path), path.read_bytes())], [str(path)], Settings()).report()
    assert report.went_wrong
    said = {one.message: one for one in report.found}
    first, second = said.pop("found fully_shard(first)"), said.pop("found fully_shard(second)")
    assert first.fix is None
    assert not first.patch
    assert second.fix is not None
    assert second.patch
    (told,) = said.values()
    assert told.rule.code == "FSDP999"
    assert "a fix of the rule FSDP298 (a-rule) failed" in told.message
    assert "LookupError: no such thing" in told.message


def test_the_other_fixes_are_made() -> None:
    source = Source("a.py", "a\nb\nc\n")
    outcome = combine(
        [
            [Replace(source, find(source, "a"), "x")],
            [Rewrite(source, find(source, "b"), failing)],
            [Replace(source, find(source, "c"), "y")],
        ]
    )
    assert outcome.texts == {source: "x\nb\ny\n"}
    ((index, why, again),) = [(one.index, one.why, one.again) for one in outcome.left]
    assert (index, again) == (1, False)
    assert "no such thing" in why
