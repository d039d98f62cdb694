"""NeMo AutoModel: its manager of FSDP2 shards models in place where a script uses it as a library.

Sources: nemo_automodel/components/distributed/{fsdp2,parallelizer}.py (2025).
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, last
from fsdp2lint.meanings.frameworks.objects import shard
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import instance, is_a
from fsdp2lint.model.values import Value

_HOME = "nemo_automodel."


@family(_HOME)
def manager(call: Call) -> Value | None:
    """``FSDP2Manager(…)`` builds a mesh; ``fsdp2_strategy_parallelize(model, …)`` shards and returns the model."""
    if last(call.name) == "FSDP2Manager":
        return instance(call)
    model = call.get(0, "model")
    return model if last(call.name) == "fsdp2_strategy_parallelize" and shard(call, model) else None


@method("parallelize")
def parallelize(call: Call) -> Value | None:
    """``FSDP2Manager.parallelize(model)`` returns the model that it has sharded."""
    model = call.get(0, "model")
    return model if is_a(call.receiver, _HOME) and shard(call, model) else None
