"""Buffers are the same on all ranks: where nothing changes them (FSDP232), and after training (FSDP261).

``fully_shard`` moves buffers and neither shards nor broadcasts them. Those that training changes, as running
statistics, are each rank's own; that a checkpoint then keeps those of one rank is reported as a doubt (FSDP261).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.bytes import digest, is_dtensor
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import Replaced, Shard
from fsdp2lint.rehearse.outcome import Spot, Violation


class Buffers(Check):
    """Fingerprints of buffers as they are when their model is sharded and after the last step."""

    def install(self) -> None:
        """Listen to sharding."""
        self._sharded: dict[tuple[int, str], tuple[weakref.ref[Any], str, Spot | None]] = {}
        self._facts: dict[str, Any] = {}
        self._models: list[Any] = []
        self._stepped: Spot | None = None
        self.watch.listeners.append(self._note)
        self._remember(self.watch.already(), None)

    def after_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep the models: a function that trains takes its names with it."""
        self._models, self._stepped = self.watch.models(), at

    def at_end(self, how: str) -> None:
        """Take the fingerprints again, if the script came as far as it should."""
        if how not in ("ended", "stopped"):
            return
        for number, model in enumerate(self._models):
            for name, module, own, buffer in _buffers(model):
                known = self._sharded.get((id(module), own))
                if known is not None and known[0]() is module:
                    now, at = digest(buffer), known[2] or self._stepped
                    self._facts[f"{number}:{name}"] = {
                        "digest": now,
                        "constant": now == known[1],
                        "at": (at.file, at.line) if at else None,
                    }

    def facts(self) -> Any:
        """By number of the model and name of the buffer."""
        return self._facts

    def _note(self, shard: Shard, _: list[Replaced]) -> None:
        self._remember(shard.modules, shard.at)

    def _remember(self, sharded: list[Any], at: Spot | None) -> None:
        for top in sharded:
            for _, module, own, buffer in _buffers(top):
                if not buffer.is_meta:
                    self._sharded[id(module), own] = (weakref.ref(module), digest(buffer), at)

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """Buffers that nothing changed since sharding and that are not the same."""
        names = _differing(ranks, constant=True)
        if names:
            at = ranks[0][names[0]]["at"]
            message = (
                f"ranks hold different values of the buffer {_some(names)}, and nothing changes or "
                "broadcasts it: each rank computes with its own"
            )
            yield Violation("FSDP232", message, Spot(*at) if at else None)

    @staticmethod
    def doubts(ranks: list[Any]) -> Iterator[Violation]:
        """Those that training changed on each rank in its own way."""
        names = _differing(ranks, constant=False)
        if names:
            at = ranks[0][names[0]]["at"]
            message = (
                f"training leaves different values of the buffer {_some(names)} on the ranks: "
                "a checkpoint keeps those of the rank that writes it"
            )
            yield Violation("FSDP261", message, Spot(*at) if at else None)


def _differing(ranks: list[Any], *, constant: bool) -> list[str]:
    shared = [name for name in ranks[0] if all(name in rank for rank in ranks)]
    return [
        name
        for name in shared
        if all(rank[name]["constant"] for rank in ranks) == constant
        and len({rank[name]["digest"] for rank in ranks}) > 1
    ]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"`{names[0].partition(':')[2]}`{more}"


def _buffers(model: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Whole name, module, own name and value of each buffer that a rank has for itself."""
    for prefix, module in model.named_modules():
        for own, buffer in module._buffers.items():
            if buffer is not None and not is_dtensor(buffer):
                yield (f"{prefix}.{own}" if prefix else own), module, own, buffer
