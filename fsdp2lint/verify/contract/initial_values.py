"""All ranks shard the same initial weights, or load and broadcast them afterwards (FSDP232).

Each rank keeps its own part of what it built, so ranks that draw different numbers make one model out
of pieces of several initialisations.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

from fsdp2lint.verify.contract.bytes import digest, is_dtensor
from fsdp2lint.verify.contract.check import Check
from fsdp2lint.verify.contract.watch import (
    Replaced,
    Shard,
    replace_everywhere,
    wrap_method,
)
from fsdp2lint.verify.outcome import Spot, Violation


class InitialValues(Check):
    """Fingerprints of whole parameters as they are sharded; forgotten when they are overwritten."""

    def install(self) -> None:
        """Listen to sharding and to loading."""
        from torch import nn
        from torch.distributed.checkpoint.state_dict_loader import load

        self._facts: dict[str, Any] = {}
        self._held: list[tuple[str, weakref.ref[Any], str, str]] = []
        self._loaded = self._checked = False
        self.watch.listeners.append(self._note)
        wrap_method(nn.Module, "load_state_dict", self._loading)
        replace_everywhere(load, self._loading)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Before the first step: forget what was written to since it was sharded."""
        if self._checked:
            return
        self._checked = True
        for key, ref, name, before in self._held:
            module = ref()
            now = dict(module.named_parameters()).get(name) if module is not None else None
            if now is None or not is_dtensor(now) or digest(now) != before:
                self._facts.pop(key, None)

    def facts(self) -> Any:
        """By number of the shard and of the parameter in it."""
        return {} if self._loaded or not self._checked else self._facts

    def _note(self, shard: Shard, replaced: list[Replaced]) -> None:
        for number, one in enumerate(replaced):
            if one.old.is_meta or not one.old.requires_grad or self._checked:
                continue
            key = f"{shard.order}:{number}"
            spot = (shard.at.file, shard.at.line) if shard.at else None
            whole = (
                "" if is_dtensor(one.old) else digest(one.old)
            )  # one that TP cut differs by right
            self._facts[key] = {"digest": whole, "at": spot, "name": one.name}
            self._held.append((key, weakref.ref(one.module), one.name, digest(one.new)))

    def _loading(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._loaded = self._loaded or bool(self.watch.shards)
            return result

        return load

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """Parameters that were not the same when they were sharded."""
        differing = [
            fact
            for key, fact in ranks[0].items()
            if all(key in rank for rank in ranks)
            and len({rank[key]["digest"] for rank in ranks}) > 1
        ]
        if differing:
            first = differing[0]
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            message = (
                f"ranks shard different values of `{first['name']}`{more} here, and nothing is "
                "loaded or broadcast afterwards: the model is made of parts of several"
            )
            yield Violation("FSDP232", message, Spot(*first["at"]) if first["at"] else None)
