"""Version 2 of accelerate's FSDP wants the model and its optimizer in one call of ``Accelerator.prepare``.

With version 1 it was advised to prepare the model first. Calls of one block become one, where what is between them
asks the model for its parameters at most. Source: accelerate/accelerator.py (``prepare``), 1.15.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

from fsdp2lint.api import (
    Account,
    Arguments,
    Layout,
    Left,
    Remove,
    Replace,
    Source,
    Step,
    dotted,
    walk,
)

_ACCELERATOR = re.compile(r"\baccelerator$")
_OPTIMIZER = re.compile(r"(?:^|_)opt(?:s|im\w*)?(?:_|\d|$)|optimi[sz]er")
_MODEL = re.compile(
    r"model|module|net\b|network|transformer|encoder|decoder|vae|policy|actor|critic"
)
_OTHER = re.compile(r"load|data|sched|lr|sampl|(?:^|_)dl$|set$|iter")
_HARMLESS = ("parameters", "named_parameters", "requires_grad_", "train", "eval")
ONE_CALL = "version 2 takes the model and its optimizer in one call of `prepare`"


@dataclass(frozen=True)
class _Call:
    """A statement ``targets = accelerator.prepare(arguments)``, each known by its text."""

    source: Source
    node: cst.Call
    line: cst.CSTNode
    targets: Sequence[str]
    arguments: Sequence[str]

    def models(self) -> list[str]:
        return [one for one in self.arguments if _is_model(one)]

    def optimizers(self) -> list[str]:
        return [one for one in self.arguments if _OPTIMIZER.search(_last(one))]


def prepared_together(sources: Collection[Source]) -> Iterator[Step | Left]:
    """One call for the model and its optimizer, or that a person must write it."""
    for source in sorted(sources, key=lambda one: str(one.path)):
        found = list(_calls(source))
        for call in found:
            several, apart = len(call.models()) > 1, bool(call.models()) != bool(call.optimizers())
            if several:
                todo = "prepare one model alone with its optimizer"
                yield Left(
                    source, call.node, "version 2 takes one model in a call of `prepare`", todo
                )
            elif apart:
                pair = next((p for p in _pairs(found) if call in p), None)
                if pair is None:
                    yield Left(
                        source, call.node, ONE_CALL, "prepare the model and its optimizer together"
                    )
                elif call is pair[1]:
                    yield _joined(*pair)


def _pairs(found: Sequence[_Call]) -> Iterator[tuple[_Call, _Call]]:
    """Calls that can become one: one has the model, the other the optimizer, and both names are kept."""
    alone = [one for one in found if bool(one.models()) != bool(one.optimizers())]
    for first, second in pairwise(alone):
        if (
            len(first.models()) + len(second.models()) != 1
            or not first.targets
            or not second.targets
        ):
            continue
        if _receiver(first) == _receiver(second) and _may_wait(first, second):
            yield first, second


def _may_wait(first: _Call, second: _Call) -> bool:
    """Whether nothing between two calls of a block needs what the first one prepares."""
    layout = Layout.of(first.source)
    block = getattr(layout.block(first.line), "body", ())
    if first.line not in block or second.line not in block:
        return False
    between = block[block.index(first.line) + 1 : block.index(second.line)]
    return all(_leaves_alone(layout, line, first) for line in between)


def _leaves_alone(layout: Layout, line: cst.CSTNode, first: _Call) -> bool:
    for node in walk(line):
        if not isinstance(node, cst.Name | cst.Attribute) or dotted(node) not in first.targets:
            continue
        above = layout.parents[node]
        asked = above.attr.value if isinstance(above, cst.Attribute) else ""
        if asked not in _HARMLESS or not isinstance(layout.parents[above], cst.Call):
            return False
        if dotted(node) not in first.arguments:
            return False  # it has this name only behind the call
    return True


def _joined(first: _Call, second: _Call) -> Step:
    targets = ", ".join((*first.targets, *second.targets))
    given = ", ".join(first.arguments)
    assigned = Layout.of(second.source).parents[second.node]
    assert isinstance(assigned, cst.Assign)
    edits = (
        Remove(first.source, first.line),
        Replace(second.source, assigned.targets[0].target, targets),
        Arguments(second.source, second.node).first(given),
    )
    account = Account(second.source, second.node, "changed", ONE_CALL, own=True)
    return Step(edits, (account,))


def _calls(source: Source) -> Iterator[_Call]:
    if ".prepare(" not in source.text or "accelerat" not in source.text:
        return
    layout = Layout.of(source)
    for node in walk(source.tree):
        if not isinstance(node, cst.Call) or not _ACCELERATOR.search(_receiver_of(node)):
            continue
        if all(arg.keyword is None and not arg.star for arg in node.args) and node.args:
            line = layout.line(layout.statement(node))
            arguments = tuple(source.code(arg.value) for arg in node.args)
            yield _Call(source, node, line, _targets(layout, node), arguments)


def _targets(layout: Layout, node: cst.Call) -> Sequence[str]:
    """The names that are bound, in order; none where the call is no statement of that kind."""
    assigned = layout.parents[node]
    if not isinstance(assigned, cst.Assign) or len(assigned.targets) != 1:
        return ()
    target = assigned.targets[0].target
    each = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else [target]
    names = [dotted(one) for one in each]
    return tuple(names) if all(names) and len(names) == len(node.args) else ()


def _receiver(call: _Call) -> str:
    return _receiver_of(call.node)


def _receiver_of(node: cst.Call) -> str:
    func = node.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "prepare":
        return ""
    return dotted(func.value) or ""


def _is_model(text: str) -> bool:
    name = _last(text)
    return bool(_MODEL.search(name)) and not _OPTIMIZER.search(name) and not _OTHER.search(name)


def _last(text: str) -> str:
    return text.rpartition(".")[2].lower()
