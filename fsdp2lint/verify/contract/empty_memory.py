"""What ``to_empty`` gave memory gets values before training (FSDP217 for buffers, FSDP251 for parameters).

``to_empty`` writes nothing (PyTorch docs, ``torch.nn.Module.to_empty``): here the memory is filled with a
pattern that no computation makes, as it may hold anything, and looked for before the first step.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from fsdp2lint.verify.contract.bytes import local
from fsdp2lint.verify.contract.check import Check
from fsdp2lint.verify.contract.watch import wrap_method
from fsdp2lint.verify.outcome import Spot, Violation
from fsdp2lint.verify.stacks import here

_PATTERNS = {
    "torch.float64": ("int64", 0x7FF8_5F5D_2F5D_5F5D),
    "torch.float32": ("int32", 0x7FC5_F5D2),
    "torch.bfloat16": ("int16", 0x7FC5),
    "torch.float16": ("int16", 0x7E5D),
    "torch.int64": ("int64", 0x5F5D_2F5D_5F5D_2F5D),
    "torch.int32": ("int32", 0x5F5D_2F5D),
}
"""By dtype, the bits of a value: of floating point a NaN of our own, so that what is forgotten shows."""

_CODES = {"buffer": "FSDP217", "parameter": "FSDP251"}


class EmptyMemory(Check):
    """Marks what ``to_empty`` makes and looks for the marks where it is computed with.

    A buffer is looked at when its module has been called, a parameter before the first step: in between
    it may be gathered, and in another precision.
    """

    def install(self) -> None:
        """Listen to ``to_empty``, and to calls of modules while there is something to look at."""
        from torch import nn

        self._marked: list[tuple[str, weakref.ref[Any], str, Spot | None]] = []
        self._waiting: dict[int, tuple[weakref.ref[Any], Spot | None]] = {}
        """Modules with buffers of their own that nobody has called yet, by ``id``."""
        self._hook: Any = None
        self._checked = False
        wrap_method(nn.Module, "to_empty", self._emptying)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Say what the first step changes as it was."""
        if self._checked:
            return
        self._checked = True
        empty: dict[tuple[str, Spot | None], list[str]] = {}
        for kind, ref, name, made in self._marked:
            module = ref()
            now = None if module is None else _held(module).get((kind, name))
            if now is not None and _is_marked(now):
                empty.setdefault((kind, made), []).append(name)
        for (kind, made), names in empty.items():
            self._say_empty(kind, names, made, at)

    def _say_empty(self, kind: str, names: list[str], made: Spot | None, at: Spot | None) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        message = (
            f"the {kind} `{names[0]}`{more} got memory by `to_empty` here and no values: "
            "the model computes with whatever was there"
        )
        because = () if at is None else ((at, "computed with here"),)
        self.say(Violation(_CODES[kind], message, made, because))

    def _emptying(self, original: Any) -> Any:
        from torch.nn.modules.module import register_module_forward_hook

        @functools.wraps(original)
        def to_empty(module: Any, *args: Any, recurse: bool = True, **kwargs: Any) -> Any:
            result = original(module, *args, recurse=recurse, **kwargs)
            at = here()
            for (kind, name), tensor in _held(module, recurse).items():
                if not self._checked and _mark(tensor):
                    self._marked.append((kind, weakref.ref(module), name, at))
            emptied = module.modules() if recurse else [module]
            owners: list[Any] = [inner for inner in emptied if inner._buffers]
            self._waiting |= {id(owner): (weakref.ref(owner), at) for owner in owners}
            if self._waiting and self._hook is None:
                self._hook = register_module_forward_hook(self._called)
            return result

        return to_empty

    def _called(self, module: Any, *_: object) -> None:
        buffers: dict[str, Any] = module._buffers
        waiting = self._waiting.pop(id(module), None)
        if not self._waiting and self._hook is not None:
            self._hook.remove()
            self._hook = None
        if waiting is None or waiting[0]() is not module:
            return
        names = [name for name, held in buffers.items() if held is not None and _is_marked(held)]
        if names:
            self._say_empty("buffer", names, waiting[1], here())


def _held(module: Any, recurse: bool = True) -> dict[tuple[str, str], Any]:
    found = {("parameter", name): one for name, one in module.named_parameters(recurse=recurse)}
    return found | {("buffer", name): one for name, one in module.named_buffers(recurse=recurse)}


def _bits(tensor: Any) -> tuple[Any, int] | None:
    """This rank's part of a tensor as whole numbers, and the pattern for them; None without one."""
    import torch

    part = local(tensor)
    name, pattern = _PATTERNS.get(str(part.dtype), ("", 0))
    if not name or not part.numel() or part.is_meta or part.is_sparse:
        return None
    return part.view(getattr(torch, name)), pattern


def _mark(tensor: Any) -> bool:
    found = _bits(tensor)
    if found is None:
        return False
    found[0].fill_(found[1])
    return True


def _is_marked(tensor: Any) -> bool:
    found = _bits(tensor)
    return found is not None and bool((found[0] == found[1]).all())
