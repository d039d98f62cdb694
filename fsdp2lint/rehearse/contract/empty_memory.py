"""What ``to_empty`` gave memory gets values before training (FSDP217 for buffers, FSDP251 for parameters).

That a module is called for the next time is noticed by a hook that is gone afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.emptied import Mark
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import here

if TYPE_CHECKING:
    from torch import nn

Tell = Callable[[Any], None]

_CODES = {"buffer": "FSDP217", "parameter": "FSDP251"}

_WAITING: dict[int, tuple[weakref.ref[nn.Module], Any, list[Tell]]] = {}
"""By ``id``: the module, the handle of its hook, and whom to call."""


class EmptyMemory(Check):
    """Looks for marks of empty memory where it is computed with.

    A buffer is looked at when its module has been called. A parameter may be gathered then, and in another
    precision: it is looked at before the first step that changes it, or that follows a call of what was
    emptied.
    """

    def install(self) -> None:
        """Listen to ``to_empty``; memory that was emptied already is looked at as well."""
        self._open: dict[tuple[int, str, str], Mark] = {}
        self._awaited: dict[int, Any] = {}
        """References to the modules whose call is awaited, by ``id``."""
        self._called: dict[int, Any] = {}
        for mark in self.watch.emptied:
            self._wait(mark)
        self.watch.emptying.append(self._wait)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Say which parameters were computed with as they were."""
        parameters = [mark for mark in self._open.values() if mark.kind == "parameter"]
        if not parameters:
            return
        stepped = {id(p) for p in parameters_of(optimizer) if p.grad is not None}
        used = [m for m in parameters if self._was_called(m) or id(m.current()) in stepped]
        self._judge(used, at)

    def _wait(self, mark: Mark) -> None:
        self._open[_key(mark)] = mark
        module = mark.owner() if mark.kind == "buffer" else mark.top()
        ref = self._awaited.get(id(module))
        if module is None or (ref is not None and ref() is module):
            return

        self._awaited[id(module)] = mark.owner if mark.kind == "buffer" else mark.top
        at_next_call(module, self._note_call)

    def _note_call(self, module: Any) -> None:
        self._called[id(module)] = self._awaited.pop(id(module))
        held = [mark for mark in self._open.values() if mark.owner() is module]
        self._judge([mark for mark in held if mark.kind == "buffer"], here())

    def _was_called(self, mark: Mark) -> bool:
        top, ref = mark.top(), self._called.get(id(mark.top()))
        return top is not None and ref is not None and ref() is top

    def _judge(self, marks: list[Mark], at: Spot | None) -> None:
        """Say which are empty; none of them is looked at again."""
        empty: dict[tuple[str, Spot | None], list[str]] = {}
        for mark in marks:
            self._open.pop(_key(mark), None)
            if mark.empty():
                empty.setdefault((mark.kind, mark.at), []).append(mark.name)
        for (kind, made), names in empty.items():
            self._say_empty(kind, names, made, at)

    def _say_empty(self, kind: str, names: list[str], made: Spot | None, at: Spot | None) -> None:
        more = f" and {len(names) - 1} more were" if len(names) > 1 else " was"
        message = (
            f"the {kind} `{names[0]}`{more} allocated by `to_empty` here and never initialised: "
            "the model computes with uninitialised memory"
        )
        because = () if at is None else ((at, "computed with here"),)
        self.say(Violation(_CODES[kind], message, made, because))


def _key(mark: Mark) -> tuple[int, str, str]:
    """The same for memory that is emptied twice."""
    return id(mark.owner()), mark.kind, mark.own


def at_next_call(module: nn.Module, tell: Tell) -> None:
    """Call ``tell(module)`` after the next ``forward`` that is not compiled."""
    known = _WAITING.get(id(module))
    if known is None or known[0]() is not module:
        # a function of a module: copied and pickled with its module, it does nothing there
        known = (weakref.ref(module), module.register_forward_hook(_called), [])
        _WAITING[id(module)] = known
    known[2].append(tell)


def _called(module: nn.Module, *_: object) -> None:
    import torch

    if torch.compiler.is_compiling():
        return
    waiting = _WAITING.pop(id(module), None)
    if waiting is not None and waiting[0]() is module:
        waiting[1].remove()
        for tell in waiting[2]:
            tell(module)
