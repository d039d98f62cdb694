"""Values that every rank should share are equal on all of them (FSDP206, FSDP212).

``fully_shard`` reduces gradients of the parameters that it manages; others below a partly sharded model
are each rank's own affair. Those that it is to leave out and that ranks begin to train with other values are meant so:
experts of each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.bytes import digest, is_dtensor
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.outcome import Spot, Violation


class Replicas(Check):
    """Fingerprints of the replicated trainable parameters after the last step."""

    def install(self) -> None:
        """Start with nothing seen."""
        self._models: list[Any] = []
        self._facts: dict[str, Any] = {}
        self._first: dict[int, str] = {}
        """What training began with, of parameters that were left out: by ``id``."""
        self._known = 0

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep what a left out parameter holds before it is trained."""
        if self._known != len(self.watch.left_alone):
            self._known = len(self.watch.left_alone)
            for _, _, parameter in self.watch.trainable():
                one = id(parameter)
                if (
                    one in self.watch.left_alone
                    and one not in self._first
                    and not parameter.is_meta
                ):
                    self._first[one] = digest(parameter)

    def after_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep the models: a function that trains takes its names with it."""
        self._models = self.watch.models()

    def at_end(self, how: str) -> None:
        """Take the fingerprints, if the script came as far as it should."""
        if how not in ("ended", "stopped"):
            return
        from torch.distributed.fsdp import FSDPModule

        for number, model in enumerate(self._models):
            whole = isinstance(model, FSDPModule)
            for name, parameter in model.named_parameters():
                place = _place(parameter)
                if parameter.requires_grad and place is not None:
                    self._facts[f"{number}:{name}{place}"] = {
                        "digest": digest(parameter),
                        "first": self._first.get(id(parameter)),
                        "model": type(model).__name__,
                        "name": name,
                        "added": whole and id(parameter) not in self.watch.left_alone,
                        "at": self._shard_of(model, whole),
                    }

    def facts(self) -> Any:
        """By parameter and the shard of it that this rank holds."""
        return self._facts

    def _shard_of(self, model: Any, whole: bool) -> tuple[str, int] | None:
        inside = set(map(id, model.modules()))
        for shard in reversed(self.watch.shards):
            mine = any(m is model if whole else id(m) in inside for m in shard.modules)
            if mine and shard.at is not None:
                return (shard.at.file, shard.at.line)
        return None

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """Parameters whose fingerprints differ."""
        drifting: dict[tuple[str, bool, Any], list[str]] = {}
        for key, first in ranks[0].items():
            held = [rank[key] for rank in ranks if key in rank]
            began = {one["first"] for one in held}
            if len(began) == 1 and len({one["digest"] for one in held}) > 1:
                at = Spot(*first["at"]) if first["at"] else None
                where = (first["model"], first["added"], at)
                drifting.setdefault(where, []).append(first["name"])
        for (model, added, at), names in drifting.items():
            some = f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            if added:
                code, why = "FSDP212", f"it was not in `{model}` when that was sharded"
            else:
                code, why = "FSDP206", f"no `fully_shard` in `{model}` manages it"
            because = () if at is None else ((at, "sharded here"),)
            yield Violation(code, f"ranks have drifted apart in {some}: {why}", at, because)


def _place(parameter: Any) -> str | None:
    """Which part of a parameter this rank holds, when other ranks hold the same; else None."""
    if not is_dtensor(parameter):
        return ""
    if any(placement.is_partial() for placement in parameter.placements):
        return None
    coordinate = parameter.device_mesh.get_coordinate()
    if coordinate is None or not any(p.is_replicate() for p in parameter.placements):
        return None
    shards = [
        at
        for at, placement in zip(coordinate, parameter.placements, strict=True)
        if not placement.is_replicate()
    ]
    return f"@{shards}"
