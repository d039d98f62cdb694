"""CUDA graphs on a CPU: what is captured runs at once and is written down, a replay runs it again on the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsdp2lint.rehearse.standin.replace import Counted


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: object, **__: object) -> None:
        self._capturing = _Capturing()

    def capture_begin(self, *_: object, **__: object) -> None:
        """From here on, write down."""
        self._capturing = _Capturing()
        self._capturing.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """No longer."""
        self._capturing.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def replay(self) -> None:
        """Compute all of it again, into the tensors that the capture made."""
        with torch.no_grad():
            for operation, args, kwargs, made in self._capturing.calls:
                for old, new in zip(made, _tensors(operation(*args, **kwargs)), strict=True):
                    if old is not new and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    def reset(self) -> None:
        """Forget what was captured."""
        self._capturing = _Capturing()

    def pool(self) -> tuple[int, int]:
        """A handle that nothing asks for more."""
        return (0, 0)


class _Capturing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, _tensors(result)))
        return result


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@contextmanager
def capture(graph: Graph, *_: object, **__: object) -> Iterator[None]:
    """Stands in for ``torch.cuda.graph``."""
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


def install(_: Counted) -> None:
    """Replace graphs for scripts."""
    cuda: Any = torch.cuda
    cuda.CUDAGraph, cuda.graph = Graph, capture
    cuda.graph_pool_handle = lambda: (0, 0)
    cuda.make_graphed_callables = lambda callables, *_, **__: callables
