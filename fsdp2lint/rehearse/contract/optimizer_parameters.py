"""The optimizer holds the parameters that training computes with (FSDP201, FSDP202, FSDP220, FSDP252).

``fully_shard`` puts a new ``DTensor`` parameter in the place of each old one, and a forward puts the
gathered plain one there until the module is resharded; a load with ``assign=True`` puts its own there, as
``set_model_state_dict`` does with a model on the meta device. An optimizer over any other object trains nothing
(PyTorch docs, ``torch.distributed.fsdp.fully_shard``, ``torch.nn.Module.load_state_dict``).
"""

from __future__ import annotations

import functools
from typing import Any

from fsdp2lint.rehearse.contract.bytes import is_dtensor
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import Built, Shard, parameters_of, replace_everywhere
from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import here


class OptimizerParameters(Check):
    """Looks at an optimizer when it first steps, and at what is clipped."""

    def install(self) -> None:
        """Also listen to ``clip_grad_norm_``."""
        from torch.nn.utils import clip_grad_norm_

        self._seen: set[int] = set()
        replace_everywhere(clip_grad_norm_, self._clipping)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Compare what the optimizer holds with what the model has."""
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            self.look(optimizer, at)

    def look(self, optimizer: Any, at: Spot | None) -> None:
        """Look at what it holds, if its building was seen; ``at`` is where it steps."""
        built = self.watch.built.get(id(optimizer))
        if built is not None:
            held = parameters_of(optimizer)
            self._say_replaced(built, held, at)
            self._say_gone(built, held, at)

    def _say_replaced(self, built: Built, held: list[Any], at: Spot | None) -> None:
        for early in (True, False):
            names, shards = [], []
            for parameter in held:
                name, shard = self._replaced(parameter)
                if shard is not None and (shard.order > built.order) == early:
                    names.append(name)
                    shards.append(shard)
            if not names:
                continue
            shard = shards[-1]
            what = f"`{built.kind}` holds {_some(names)} as it was before `fully_shard` replaced it"
            message = f"{what}: it never updates the model"
            because = [(shard.at, "sharded here"), (at, "stepped here")]
            told = tuple((spot, label) for spot, label in because if spot is not None)
            self.say(Violation("FSDP201" if early else "FSDP220", message, built.at, told))

    def _say_gone(self, built: Built, held: list[Any], at: Spot | None) -> None:
        """Parameters that the model had when the optimizer was built, and has another in place of now."""
        gathered: list[str] = []
        assigned: list[str] = []
        models = {
            id(model): model for ref, _ in built.names.values() if (model := ref()) is not None
        }
        current = {key: dict(model.named_parameters()) for key, model in models.items()}
        for parameter in held:
            ref, name = built.names.get(id(parameter), (None, ""))
            if ref is None or self._replaced(parameter)[1]:
                continue
            now = current.get(id(ref()), {}).get(name)
            if now is not parameter and is_dtensor(now):
                (assigned if is_dtensor(parameter) else gathered).append(name)
        if gathered:
            message = (
                f"`{built.kind}` was built while a forward had left {_some(gathered)} gathered: "
                f"it holds the gathered tensors, which are gone, and never trains the sharded ones"
            )
            self.say(Violation("FSDP202", message, built.at))
        if assigned:
            message = (
                f"`{built.kind}` holds {_some(assigned)} as it was before a load put another parameter "
                "in its place: it never updates the model"
            )
            because = () if at is None else ((at, "stepped here"),)
            self.say(Violation("FSDP252", message, built.at, because))

    def _replaced(self, parameter: Any) -> tuple[str, Shard | None]:
        ref, name, shard = self.watch.replaced.get(id(parameter), (None, "", None))
        return (name, shard) if ref is not None and ref() is parameter else ("", None)

    def _clipping(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(parameters, "shape"):
                parameters = list(parameters)
                names = [name for p in parameters if (name := self._replaced(p)[0])]
                if names:
                    message = (
                        f"the clipped list holds {_some(names)} from before `fully_shard` "
                        "replaced it: its gradients are not those of the model"
                    )
                    self.say(Violation("FSDP220", message, here()))
            return original(parameters, *args, **kwargs)

        return clip


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"`{names[0]}`{more}"
