"""Lightning's ``Fabric``: sets models and optimizers up, launches processes, writes checkpoints.

Sources: lightning/fabric/fabric.py, lightning/fabric/wrappers.py and
lightning/fabric/strategies/{strategy,model_parallel}.py (2.6).

``ModelParallelStrategy`` is Lightning's FSDP2: setting a module up calls the script's own ``parallelize_fn`` with
it, and an optimizer keeps the parameters that it was built over. What other strategies do is not known here.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.frameworks.lightning import ask_version, refuse_precision
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import fresh, instance, is_a, made_by, nothing, prepared, setting
from fsdp2lint.model.events import Collective
from fsdp2lint.model.values import Bound, Function, Optimizer, Partial, Value, Wrapped

_FABRIC = "lightning.fabric.Fabric"
_FSDP2 = "lightning.fabric.strategies.ModelParallelStrategy"


@calls(_FABRIC)
def fabric(call: Call) -> Value | None:
    """``Fabric(accelerator, strategy, …)`` keeps the strategy as it is."""
    made = instance(call)
    if len(call.args) > 1:
        made.keep(".strategy", call.args[1])
    ask_version(call, setting(call, made, "strategy"))
    refuse_precision(call, setting(call, made, "strategy"), "Fabric")
    return made


@calls(_FSDP2)
def model_parallel_strategy(call: Call) -> Value | None:
    """``ModelParallelStrategy(parallelize_fn, …)`` calls the function when a module is set up, not before."""
    made = instance(call)
    if call.args:
        made.keep(".parallelize_fn", call.args[0])
    return made


@method("setup", "setup_module", "setup_optimizers", "setup_dataloaders")
def set_up(call: Call) -> Value | None:
    """They return wrapped objects in the order of the arguments."""
    if not is_a(call.receiver, _FABRIC) or call.open:
        return None
    function = _parallelize(call)
    if function is None:
        call.escape_arguments()
        made = [prepared(call, value) for value in call.args]
    else:
        made = [_parallelized(call, value, function) for value in call.args]
        call.escape(*call.keywords.values())
    return made[0] if len(made) == 1 else call.machine.container("tuple", made)


def _parallelize(call: Call) -> Value | None:
    """The ``parallelize_fn`` of the strategy, if that is the one for FSDP2 and the function is the project's."""
    strategy = setting(call, call.receiver, "strategy")
    if not made_by(strategy, _FSDP2):
        return None
    function = setting(call, strategy, "parallelize_fn")
    return function if isinstance(function, Function | Bound | Partial) else None


def _parallelized(call: Call, value: Value, function: Value) -> Value:
    if call.is_module(value):
        mesh = call.machine.unknown()
        made = call.machine.call(function, (value, mesh), {}, call.site)
        return Wrapped(made if call.is_module(made) else value, "fabric")
    if isinstance(value, Optimizer):
        return value
    call.escape(value)
    return fresh(call)


@method("launch")
def launch(call: Call) -> Value | None:
    """Starts the processes; ``launch(function, *args)`` calls ``function(fabric, *args)``."""
    function = call.get(0, "function")
    if call.receiver is None or not is_a(call.receiver, _FABRIC):
        return None
    if function is None:
        return nothing(call)
    given = (call.receiver, *call.args[1:])
    keywords = {k: v for k, v in call.keywords.items() if k != "function"}
    return call.machine.call(function, given, keywords, call.site, call.open)


@method("barrier", "all_reduce", "broadcast", "all_gather", "clip_gradients", "save", "load")
def collective(call: Call) -> Value | None:
    """Methods that every process must call, as their documentation says."""
    if not is_a(call.receiver, _FABRIC):
        return None
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


@method("no_backward_sync", "autocast", "rank_zero_first", "init_module", "init_tensor")
def manager(call: Call) -> Value | None:
    """Contexts."""
    return instance(call) if is_a(call.receiver, _FABRIC) else None
