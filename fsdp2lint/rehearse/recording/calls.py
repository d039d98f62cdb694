"""What the script gives to its models and what they return; of the first steps, what each module inside of them returns.

Of two runs that part, the first module whose result differs says where.
"""

from __future__ import annotations

import functools
import math
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fsdp2lint.rehearse.gather import clean
from fsdp2lint.rehearse.outcome import Call, Digest, Inner
from fsdp2lint.rehearse.stacks import here

MANY = 100_000
"""Calls of modules that are kept."""
SAMPLE = 1 << 16
"""Elements of a tensor that go into its digest."""
FEW = 1 << 12
"""And into that of a tensor inside of a model."""
FOLLOWED = 16
"""Steps of which the modules inside of models are noted."""


class Calls:
    """What the script gives to its models, and what they return where it wants no gradients.

    Only calls that the script makes itself: not those inside another module's, and not what a backward
    pass computes again.
    """

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._inside = threading.local()
        self._known = self._steps = 0

    def taken(self) -> list[Call]:
        """Those of a step: what was called since the last time."""
        calls, self._calls = self._calls, []
        self._steps += 1
        return calls

    def heard(self, original: Any) -> Any:
        """``nn.Module.__call__`` with a note of each call."""

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", False) or self._known >= MANY or _in_backward():
                made = original(module, *args, **kwargs)
                self._follow(module, made)
                return made
            self._inside.call = True
            inner = self._inside.results = Results(module) if self._steps < FOLLOWED else None
            try:
                given = self._given(module, args, kwargs)
                made = original(module, *args, **kwargs)
                evaluates = not torch.is_grad_enabled()
                found = list(_digests(made)) if evaluates else []
                self._follow(module, made)
            finally:
                self._inside.call, self._inside.results = False, None
            if given or found:
                self._known += 1
                results = inner.found if inner else []
                modes = _in_training(module)
                self._calls.append(Call(given, found, evaluates, here(), *modes, results))
            return made

        return call

    def _follow(self, module: nn.Module, made: Any) -> None:
        results: Results | None = getattr(self._inside, "results", None)
        if results is not None and not (_in_backward() or _is_transformed()):
            results.note(module, made)

    def _given(self, module: Any, args: Any, kwargs: Any) -> list[Digest]:
        if next(nn.Module.parameters(module), None) is None:
            return []  # a loss, or an activation
        return sorted(_digests((args, kwargs)), key=lambda d: (d.exact is None, d.shape))


class Results:
    """What the modules inside of one call return, in the order in which they return."""

    def __init__(self, root: nn.Module) -> None:
        self._names = {id(part): clean(root, name) for name, part in root.named_modules()}
        self.found: list[Inner] = []

    def note(self, module: nn.Module, made: Any) -> None:
        """Of a module and what wraps it one: both have its name."""
        name, tensor = self._names.get(id(module)), _first_tensor(made)
        if name is None or tensor is None:
            return
        with torch.no_grad():
            flat = tensor.detach().reshape(-1)[:FEW].cpu().double()
            place = torch.arange(len(flat), dtype=torch.float64)
            weighted = finite(float((flat * (place * _GOLDEN % 1 + 0.5)).sum()))
            norm = finite(float(flat.norm()))
        kind = type(module).__name__
        dtype = str(tensor.dtype).removeprefix("torch.")
        if self.found and self.found[-1].name == name:
            kind = self.found.pop().kind
        self.found.append(Inner(name, kind, dtype, weighted, norm, here()))


_GOLDEN = 0.6180339887498949


def _first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with numbers of its own in a value."""
    if isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, nn.Parameter) and value.layout == torch.strided
        special = value.is_meta or value.is_complex() or value.is_nested or value.is_quantized
        return value if plain and not special else None
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, list | tuple):
        return next((found for one in value if (found := _first_tensor(one)) is not None), None)
    return None


def _is_transformed() -> bool:
    """Whether ``torch.func`` or a compiler looks through the call: what it computes with has no values."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling()


def _in_training(module: nn.Module) -> tuple[int, int]:
    """Of the modules that have no children, and how many there are: what FSDP1 and others wrap around them does not count."""
    modes = [part.training for part in module.modules() if not part._modules]
    return sum(modes), len(modes)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _digests(value: Any) -> Iterator[Digest]:
    """Those of the tensors in a value, in order; of what is sharded or has no memory none."""
    if isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, nn.Parameter) and value.device.type != "meta":
            with torch.no_grad():
                yield _digest(value.detach())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _digests(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _digests(one)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _digests({name: getattr(value, name) for name in value.__dataclass_fields__})


def _digest(tensor: torch.Tensor) -> Digest:
    shape = tuple(tensor.shape)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.reshape(-1)[:SAMPLE].cpu()
    if not flat.is_floating_point():
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat.long()
    if not flat.is_floating_point():
        return Digest(shape, zlib.crc32(flat.contiguous().numpy().tobytes()))
    numbers = flat.double()
    places = torch.arange(len(numbers), dtype=torch.float64) * _GOLDEN % 1 + 0.5
    return Digest(
        shape,
        weighted=finite(float((numbers * places).sum())),
        norm=finite(float(numbers.norm())),
    )


def finite(number: float) -> float | None:
    """A number that JSON knows."""
    return number if math.isfinite(number) else None
