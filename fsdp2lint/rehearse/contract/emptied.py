"""Memory that ``to_empty`` made: marked as it is made, so that it shows later whether anybody filled it.

``to_empty`` writes nothing (PyTorch docs, ``torch.nn.Module.to_empty``), so the memory may hold anything:
it is filled with a pattern that no computation makes, as ``torch.utils.deterministic`` fills new memory.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fsdp2lint.rehearse.contract.bytes import local
from fsdp2lint.rehearse.outcome import Spot
from fsdp2lint.rehearse.stacks import here

_PATTERNS = {
    "torch.float64": ("int64", 0x7FF8_5F5D_2F5D_5F5D),
    "torch.float32": ("int32", 0x7FC5_F5D2),
    "torch.bfloat16": ("int16", 0x7FC5),
    "torch.float16": ("int16", 0x7E5D),
    "torch.int64": ("int64", 0x5F5D_2F5D_5F5D_2F5D),
    "torch.int32": ("int32", 0x5F5D_2F5D),
}
"""By dtype, the bits of a value: of floating point a NaN of our own, so that what is forgotten shows."""

Kind = Literal["parameter", "buffer"]


@dataclass(frozen=True)
class Mark:
    """A parameter or buffer that was marked."""

    kind: Kind
    name: str
    """Its name in the module that was emptied."""
    own: str
    """Its name in the module that holds it."""
    owner: weakref.ref[Any]
    top: weakref.ref[Any]
    """The module that was emptied."""
    at: Spot | None

    def current(self) -> Any:
        """What its module holds under its name now; None where there is nothing."""
        owner = self.owner()
        if owner is None:
            return None
        held = owner._parameters if self.kind == "parameter" else owner._buffers
        return held.get(self.own)

    def empty(self) -> bool:
        """Whether nobody has written to it."""
        now = self.current()
        return now is not None and is_marked(now)


def marking(original: Any, tell: Callable[[Mark], None]) -> Any:
    """``to_empty`` as it was, which then marks what it made and tells of each mark."""

    @functools.wraps(original)
    def to_empty(module: Any, *args: Any, recurse: bool = True, **kwargs: Any) -> Any:
        result = original(module, *args, recurse=recurse, **kwargs)
        at, top = here(), weakref.ref(module)
        for kind, prefix, owner, own, tensor in _held(module, recurse):
            if _mark(tensor):
                name = f"{prefix}.{own}" if prefix else own
                tell(Mark(kind, name, own, weakref.ref(owner), top, at))
        return result

    return to_empty


def is_marked(tensor: Any) -> bool:
    """Whether this rank's part of a tensor is as it was marked."""
    found = _bits(tensor)
    return found is not None and bool((found[0] == found[1]).all())


def _held(module: Any, recurse: bool) -> Iterator[tuple[Kind, str, Any, str, Any]]:
    """Kind, place and name of all tensors, each once."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules() if recurse else [("", module)]:
        kinds: tuple[tuple[Kind, Any], ...] = (
            ("parameter", owner._parameters),
            ("buffer", owner._buffers),
        )
        for kind, held in kinds:
            for own, tensor in held.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield kind, prefix, owner, own, tensor


def _mark(tensor: Any) -> bool:
    found = _bits(tensor)
    if found is None:
        return False
    found[0].fill_(found[1])
    return True


def _bits(tensor: Any) -> tuple[Any, int] | None:
    """This rank's part of a tensor as whole numbers, and the pattern for them; None without one."""
    import torch

    part = local(tensor)
    name, pattern = _PATTERNS.get(str(part.dtype), ("", 0))
    plain = type(part) is torch.Tensor and part.layout is torch.strided and not part.is_meta
    if not name or not plain or not part.numel():
        return None
    return part.view(getattr(torch, name)), pattern
