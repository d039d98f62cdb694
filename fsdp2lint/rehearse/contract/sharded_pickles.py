"""Files hold whole tensors: no shard of a ``DTensor`` goes into ``torch.save`` (FSDP301)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from fsdp2lint.rehearse.contract.bytes import is_dtensor
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Violation
from fsdp2lint.rehearse.stacks import called_by, here

_WRITERS = ("torch/distributed/checkpoint/filesystem.py", "torch/distributed/distributed_c10d.py")


class ShardedPickles(Check):
    """Looks into what the script pickles."""

    def install(self) -> None:
        """Listen to ``torch.save``."""
        import torch

        replace_everywhere(torch.save, self._saving)

    def _saving(self, original: Any) -> Any:
        @functools.wraps(original)
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            sharded = [name for name, tensor in _tensors(obj, "") if _is_sharded(tensor)]
            if sharded and not called_by(*_WRITERS):
                more = f" and {len(sharded) - 1} more" if len(sharded) > 1 else ""
                message = (
                    f"`torch.save` gets `{sharded[0]}`{more} as a shard: "
                    "the file holds only this rank's part"
                )
                self.say(Violation("FSDP301", message, here()))
            return original(obj, *args, **kwargs)

        return save


def _is_sharded(tensor: Any) -> bool:
    return not all(placement.is_replicate() for placement in tensor.placements) and (
        tensor.device_mesh.size() > 1
    )


def _tensors(content: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The distributed tensors in nested containers, with their path."""
    if is_dtensor(content):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from _tensors(value, f"{name}[{number}]")
