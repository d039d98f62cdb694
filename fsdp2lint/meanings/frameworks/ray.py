"""Ray Train: workers run a function of the script; models are wrapped and results reported.

Sources: ray/train/torch/train_loop_utils.py, ray/train/v2/torch/train_loop_utils.py, ray/train/collective/
collectives.py, and the user guides "Get Started with Distributed Training using PyTorch" and "Saving and Loading
Checkpoints" (2.5x).
"""

from __future__ import annotations

import libcst as cst

from fsdp2lint.meanings.attributes import rank
from fsdp2lint.meanings.autograd import go_backward
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.launch import counter_as_rank
from fsdp2lint.meanings.python.objects import GIVEN_BACK
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import fresh, instance, made_by, nothing, setting, text
from fsdp2lint.model.events import Collective, Wrapping
from fsdp2lint.model.guards import Guards
from fsdp2lint.model.training import rank_dependent
from fsdp2lint.model.values import Bound, Class, Function, Literal, Value, Wrapped

_TRAINERS = ("ray.train.torch.TorchTrainer", "ray.train.torch.torch_trainer.TorchTrainer")
_TORCH = "ray.train.torch."


@calls(*_TRAINERS)
def trainer(call: Call) -> Value | None:
    """``TorchTrainer(train_loop_per_worker, train_loop_config=…)`` gets what to run, and runs it in ``fit``."""
    made = instance(call, _TRAINERS[0])
    if call.args:
        made.keep(".train_loop_per_worker", call.args[0])
    return made


@method("fit")
def fit(call: Call) -> Value | None:
    """Runs the function on every worker, with the config if it takes one."""
    if not made_by(call.receiver, *_TRAINERS):
        return None
    function = setting(call, call.receiver, "train_loop_per_worker")
    if not isinstance(function, Function | Bound):
        return None
    config = setting(call, call.receiver, "train_loop_config")
    call.run(function, *([config] if config is not None and _takes_config(function) else []))
    return fresh(call)


def _takes_config(function: Function | Bound) -> bool:
    node = function.function.node if isinstance(function, Bound) else function.node
    own = len(node.params.params) - isinstance(function, Bound)
    return own > 0 or isinstance(node.params.star_arg, cst.Param)


@calls("ray.remote")
def actor(call: Call) -> Value | None:
    """``ray.remote(Cls)`` makes an actor's class, or a task, of what it is given; so does ``ray.remote(num_gpus=1)(Cls)``.

    As decorators they do the same.
    """
    first = call.get(0)
    return call.machine.external(GIVEN_BACK) if first is None else first


@method("options")
def options(call: Call) -> Value | None:
    """``Actor.options(num_gpus=1)`` is the actor's class, with other resources."""
    return call.receiver if isinstance(call.receiver, Class | Function | Bound) else None


@method("remote")
def remote(call: Call) -> Value | None:
    """``Actor.remote(…)`` makes an actor, ``actor.fit.remote(…)`` runs its method, in another process.

    What is started in a loop gets the loop's counter as its rank; a method of an actor may count steps by it.
    """
    target, machine, here = call.receiver, call.machine, call.machine.here
    if not isinstance(target, Class | Function | Bound):
        return None
    starts = not isinstance(target, Bound)
    args = tuple(counter_as_rank(call, v) if starts else v for v in call.args)
    keywords = {
        name: counter_as_rank(call, v) if starts or "rank" in name else v
        for name, v in call.keywords.items()
    }
    machine.here = _elsewhere(here)
    made = machine.call(target, args, keywords, call.site, call.open)
    machine.here = here
    return made


def _elsewhere(here: Guards) -> Guards:
    """What holds in another process: nothing that was asked about the rank of this one."""
    kept = frozenset(c for c in here.clauses if not any(rank_dependent(g.test) for g in c))
    return Guards(kept, here.impossible, here.survived & kept, here.fatal & kept)


@calls("ray.get")
def get(call: Call) -> Value | None:
    """What a remote call gave."""
    return call.get(0, "object_refs")


@calls("ray.train.report")
def report(call: Call) -> Value | None:
    """A barrier: each worker must call it as often as the others."""
    call.emit(Collective, name=call.name, about=None)
    return nothing(call)


@calls("ray.train.collective.barrier", "ray.train.collective.broadcast_from_rank_zero")
def collective(call: Call) -> Value | None:
    """Each worker must call them."""
    call.emit(Collective, name=call.name, about=call.get(0, "data"))
    return fresh(call)


@calls("ray.train.get_context")
def context(call: Call) -> Value | None:
    """The worker that this is."""
    return instance(call)


@method("get_world_rank", "get_local_rank")
def worker_rank(call: Call) -> Value | None:
    """``ray.train.get_context().get_world_rank()``."""
    if not made_by(call.receiver, "ray.train."):
        return None
    return rank(call.machine, "global" if "world" in call.name else "local")


@calls(f"{_TORCH}prepare_model")
def prepare_model(call: Call) -> Value | None:
    """Moves the model and wraps it by ``parallel_strategy``: in DDP by default, in FSDP1 for "fsdp",
    not at all for None.
    """
    model, strategy = call.get(0, "model"), call.get(2, "parallel_strategy")
    if model is None or call.open:
        return None
    if isinstance(strategy, Literal) and strategy.value is None:
        return model
    by = "ddp" if strategy is None else {"ddp": "ddp", "fsdp": "fsdp1"}.get(text(strategy) or "")
    if by is None:
        return None

    def one(inner: Value) -> Value:
        call.use_as_module(inner)
        made = Wrapped(inner, by)
        call.emit(Wrapping, module=inner, by=by, result=made, options={})
        return made

    return call.machine.spread(model, one)


@calls(f"{_TORCH}prepare_optimizer")
def prepare_optimizer(call: Call) -> Value | None:
    """A thin wrapper that steps through a gradient scaler where one is in use."""
    return call.get(0, "optimizer")


@calls(f"{_TORCH}backward")
def backward(call: Call) -> Value | None:
    """``backward`` of a loss, scaled where a gradient scaler is in use."""
    loss = call.get(0, "tensor")
    if loss is None:
        return None
    go_backward(call, loss)
    return nothing(call)


@calls(f"{_TORCH}get_device", f"{_TORCH}get_devices", f"{_TORCH}enable_reproducibility")
def quiet(call: Call) -> Value | None:
    """They keep nothing."""
    return fresh(call)
