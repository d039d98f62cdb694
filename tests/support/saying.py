"""Findings made by hand, for the tests of what comes after the rules."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.catalogue.declare import Group, Rule
from fsdp2lint.catalogue.findings import Finding, Fix
from fsdp2lint.catalogue.toolrules import UNANALYSABLE
from fsdp2lint.check.diagnostics import Diagnostic, Place, Reason, Report
from fsdp2lint.edits.apply import resolve
from fsdp2lint.edits.text import Splice
from fsdp2lint.model.trace import Trace
from fsdp2lint.source.source import Range, Source

TRAIN = """\
import torch
from parallel import shard


def main(cfg):
    model = Model(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    shard(model)
    train(model, optimizer)


main(load())
"""

PARALLEL = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
"""


def _never_asked(trace: Trace) -> Iterator[Finding]:
    raise AssertionError("this rule is only talked about")


def rule(code: str, name: str, group: Group = "correctness", **release: str) -> Rule:
    page = f"What {name} is about.\n\n## Why is this bad\n\nIt breaks.\n"
    return Rule(
        code,
        name,
        group,
        _never_asked,
        page,
        release.get("since", "2.6"),
        release.get("until", ""),
    )


OPTIMIZER = rule("FSDP201", "optimizer-before-shard")
FORWARD = rule("FSDP203", "direct-forward-call")
SAVE = rule("FSDP301", "torch-save-sharded")
SCALER = rule("FSDP228", "sharded-grad-scaler", "suspicious")
LEGACY = rule("FSDP101", "fsdp1-wrapper", "migration")
OTHER_LEGACY = rule("FSDP102", "fsdp1-wrap-policy", "migration")
PERF = rule("FSDP501", "slow", "perf")
EVERY = (LEGACY, OTHER_LEGACY, OPTIMIZER, FORWARD, SCALER, SAVE, PERF)


def place(source: Source, text: str, nth: int = 0) -> Place:
    """Where ``text`` stands in a source, for the ``nth`` time."""
    start = -1
    for _ in range(nth + 1):
        start = source.text.index(text, start + 1)
    return Place(source, Range(*_at(source, start), *_at(source, start + len(text))))


def said(source: Source, text: str, about: Rule = FORWARD, nth: int = 0) -> Diagnostic:
    """A finding at ``text``."""
    return Diagnostic(about, f"`{text}` is wrong", place(source, text, nth))


def mend(source: Source, old: str, new: str) -> Splice:
    start = source.text.index(old)
    return Splice(source, start, start + len(old), new)


def two_files() -> Diagnostic:
    """An optimizer that is built before a call in another file shards the model."""
    train, parallel = Source("train.py", TRAIN), Source("parallel.py", PARALLEL)
    main = place(train, "main(load())")
    step = Reason(
        place(parallel, "fully_shard(model)"),
        "`model` is sharded here",
        (main, place(train, "shard(model)")),
        20,
    )
    built = "    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)\n"
    edits = (
        mend(train, built, ""),
        mend(train, "    train(model, optimizer)\n", built + "    train(model, optimizer)\n"),
    )
    fix = Fix("build the optimizer after the last `fully_shard`", edits, "unsafe", "look at `lr`")
    return Diagnostic(
        OPTIMIZER,
        "`optimizer` holds the parameters that `fully_shard(model)` replaces",
        place(train, "torch.optim.AdamW(model.parameters(), lr=cfg.lr)"),
        (main,),
        10,
        (step,),
        fix,
        patch=resolve(edits),
    )


def report(*found: Diagnostic) -> Report:
    return Report(list(found), [], files=2, analysed=2, rules=(*EVERY, UNANALYSABLE))


def _at(source: Source, offset: int) -> tuple[int, int]:
    before = source.text[:offset]
    return before.count("\n") + 1, offset - before.rfind("\n")
