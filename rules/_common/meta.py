"""Models on the meta device: where they are built, and what gives them memory and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst
from libcst import CSTNode

from fsdp2lint.api import (
    WHOLE,
    Assigned,
    Bound,
    Called,
    Class,
    Container,
    Either,
    Escaped,
    Event,
    External,
    Filled,
    Forward,
    Function,
    Guard,
    Guards,
    Instance,
    Literal,
    Loaded,
    Mesh,
    Module,
    Moved,
    Optimizer,
    Parameters,
    Part,
    Restored,
    Round,
    StateDict,
    Trace,
    Value,
    Written,
    is_choice,
    lineage,
    of_buffers,
    once,
    options,
    parts_along,
    rank_dependent,
    root,
    unwrapped,
)

from .origins import is_form, is_function, only_computes
from .shared import (
    cases,
    class_name,
    has_parameters,
    is_next,
    overlap,
    sharded,
    shards,
    together,
    wrapped_by,
)
from .walks import WALKS, passes_over

_PLAIN = (
    "contextlib.",
    "torch.amp.",
    "torch.autocast",
    "torch.autograd.",
    "torch.cuda.amp.",
    "torch.cuda.nvtx.",
    "torch.cuda.stream",
    "torch.device",
    "torch.distributed.tensor.debug.CommDebugMode",
    "torch.distributed.tensor.experimental.context_parallel",
    "torch.distributed.tensor.parallel.loss_parallel",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.nn.attention.sdpa_kernel",
    "torch.no_grad",
    "torch.profiler.",
    "torch.random.fork_rng",
    "torch.set_grad_enabled",
    "torch.utils.flop_counter.FlopCounterMode",
    "torchtitan.tools.profiling.",
    "transformer_engine.pytorch.autocast",
    "transformer_engine.pytorch.fp8_autocast",
)
"""Contexts that run the operations in them as they are, and change none of their tensors but what they are given to change."""


_DTYPE = re.compile(r"torch\.(b?float\d+\w*|half|float|double)")

_EMPTY_INITS = ("accelerate.init_empty_weights", "accelerate.big_modeling.init_empty_weights")

LIBRARY_MODELS = re.compile(
    r"transformers\.(\w+\.)*(\w+\.(from_config|_from_config)|[A-Z]\w*(For[A-Z]\w+|LMHeadModel))"
)
"""Calls that build a whole model of a library, with parameters, on the device of the context."""


def plain(context: Value) -> bool:
    """Whether tensors are ordinary ones in a context: not so under ``FakeTensorMode``."""
    return all(_maker(one).startswith(_PLAIN) or _is_own(one) for one in options(context))


def _maker(context: Value) -> str:
    """The class of a library, or its function, that gives a context; nothing for others."""
    made = context.owner if isinstance(context, Part) else None
    return made.name if isinstance(made, External) else class_name(context)


def _is_own(context: Value) -> bool:
    """Whether a context is an object of a class of the project that inherits nothing from outside it: a timer."""
    return isinstance(context, Instance) and all(
        isinstance(one, Class) or (isinstance(one, External) and one.name == "builtins.object")
        for one in lineage(context.cls)
    )


@once
def born_on_meta(trace: Trace) -> list[tuple[Called, Guards]]:
    """The calls that build layers with parameters on the meta device, and under which guards they do."""
    return [(called, guards) for called in trace.of(Called) for guards in _on_meta(trace, called)]


def own_parameters_on_meta(trace: Trace) -> Iterator[tuple[Called, Guards, Module]]:
    """The calls of ``nn.Parameter`` on the meta device, under which guards, and the one module that holds each."""
    for called in trace.calls("torch.nn.Parameter"):
        holders = {unwrapped(one) for one in trace.memory.held_by.get(called.result, ())}
        for guards in _under_meta(called) if len(holders) == 1 else ():
            (holder,) = holders
            if isinstance(holder, Module) and isinstance(holder.cls, Class):
                yield called, guards, holder


def _on_meta(trace: Trace, called: Called) -> Iterator[Guards]:
    if called.keywords.get("device") is None and not called.within:
        return  # nearly all
    if has_parameters(trace, called.result, 0) or LIBRARY_MODELS.fullmatch(called.name):
        yield from _under_meta(called)


def _under_meta(called: Called) -> Iterator[Guards]:
    """The guards under which the device of a call, or of the context around it, is the meta device."""
    device = called.keywords.get("device")
    devices = [device] if device is not None else list(called.within)
    for one in devices:
        yield from meta_cases(called, one)


def meta_cases(event: Event, device: Value) -> Iterator[Guards]:
    """What must hold at an event for a device to be the meta device: of `torch.device(kind)` what its name can be."""
    for guards, value in cases(event, device):
        named = value.part(".argument0") if class_name(value) == "torch.device" else value
        for inner, name in cases(event, named):
            if is_meta(name) or _is_empty_init(name):
                yield guards.and_(inner)


def _is_empty_init(context: Value) -> bool:
    """Whether accelerate's context puts each parameter on the meta device as it is registered."""
    return _maker(context) in _EMPTY_INITS


def is_meta(value: Value) -> bool:
    """``"meta"`` or ``torch.device("meta")``."""
    if isinstance(value, Instance) and class_name(value) == "torch.device":
        value = value.part(".argument0")
    return isinstance(value, Literal) and value.value == "meta"


def built_on_meta(trace: Trace, event: Event, module: Value) -> Called | None:
    """The call that built a layer of ``module`` on the meta device, on a path that leads to ``event``."""
    for called, guards in born_on_meta(trace):
        if called.order < event.order and trace.inside(called.result, module):
            if together(guards, event.guards):
                return called
    return None


def ways_without_memory(
    trace: Trace, event: Event, module: Value, built: Guards, layer: Value | None = None
) -> Ways:
    """The paths to an event on which nothing has given the module's parameters memory.

    Of one ``layer`` of it, if that is named: memory for another layer does not count.
    """
    if _reached_from_outside(trace, module) or _data_written(trace, event, module, buffers=False):
        return ()
    touching: list[Event] = [e for e in trace.escapes(module) if e.order < event.order]
    touching += [e for e in _giving_memory(trace, module, layer) if trace.precedes(e, event)]
    return ways_around(trace, event, touching, module, built)


def _giving_memory(trace: Trace, module: Value, layer: Value | None) -> tuple[Event, ...]:
    """The events that may give a module's parameters memory, or those of one ``layer`` of it: the latest of a kind first."""
    return trace.derived(_that_give_memory, module, layer)


def _that_give_memory(trace: Trace, module: Value, layer: Value | None) -> tuple[Event, ...]:
    def among(*values: Value) -> bool:
        given = [unwrapped(one) for value in values for one in options(value)]
        if layer is None:
            return _among(trace, module, *given)
        known = [one for one in given if isinstance(one, Module)]
        walked = [one for one in given if one not in known]  # any layer may be meant
        return _among(trace, layer, *known) or _among(trace, module, *walked)

    found: list[Event] = [
        e for e in reversed(trace.of(Moved)) if among(e.module) and not _only_changes_dtype(e)
    ]
    found += [e for e in reversed(trace.of(Restored)) if among(e.into)]
    found += [
        e
        for e in reversed(trace.of(Assigned))
        if among(e.owner) and not (_is_tensor(e.value) or _leaves_parameters(trace, e))
    ]
    found += [e for e in reversed(trace.of(Loaded)) if among(*(state.of for state in e.states))]
    return tuple(found)


def _only_changes_dtype(moved: Moved) -> bool:
    """Whether a model on the meta device stays there: ``model.to(torch.bfloat16)``, ``model.half()``."""
    if moved.how in ("half", "bfloat16", "float", "double"):
        return True
    asked = [one for value in moved.to for one in options(value)]
    return (
        moved.how == "to"
        and bool(asked)
        and all(isinstance(v, External) and _DTYPE.fullmatch(v.name) for v in asked)
    )


def given_memory(trace: Trace, event: Event, module: Value) -> bool:
    """Whether anything before an event may have given the module's parameters memory, on every path to it."""
    return not ways_without_memory(trace, event, module, event.guards)


def ways_without_values(
    trace: Trace,
    start: Event,
    end: Event,
    module: Value,
    built: Guards,
    *,
    by_loads: bool = True,
    itself: bool = False,
    giving: Sequence[Event] | None = None,
) -> Ways:
    """The paths from one event to another on which nothing gives the module values.

    ``giving`` are the events among which those are that do, when the caller knows them. ``itself`` asks for what the
    module holds itself: values for one of its submodules do not count.
    """
    if _reached_from_outside(trace, module):
        return ()
    if _data_written(
        trace, end, module, start, buffers=not by_loads
    ):  # what loads leave out are buffers
        return ()
    found = giving
    if found is None:
        found = values_given(trace, start, end, module, by_loads=by_loads, itself=itself)
    touching = [e for e in found if giving is None or _gives(trace, e, module, itself)]
    if by_loads:
        touching = [e for e in touching if not _writes_buffers(e)]
    return ways_around(trace, end, touching, module, built)


Ways = tuple[Guards, ...]
"""Paths to an event, as what must hold on each; none of them holds only where another does."""


def ways_around(
    trace: Trace, end: Event, touching: Sequence[Event], module: Value, built: Guards
) -> Ways:
    """The paths to an event on which none of others happens: all paths, or those where a test that the script asks
    before one of the others comes out otherwise, or several flags are off (``resume``, ``pretrained``). ``module`` is
    what all this is about: tests of it are no choices.
    """
    found: list[Guards] = []
    ways = [end.guards]
    hooks = frozenset(clause for one in touching for clause in _not_given(one, end, touching))
    for one in touching:
        ways += [end.guards.also(refused) for refused in _refusals(trace, one, end.guards, module)]
        if len(ways) > _MOST_WAYS:
            break
    for way in (*ways, *_with_flags_off(trace, end.guards, touching, module)):
        whole = way.also(hooks) if hooks else way
        if whole.impossible or not together(built, whole):
            continue
        if any(_clauses(end, one) <= _clauses(end, whole) for one in found):
            continue
        if all(one.guards.lasting.excludes(whole) for one in touching):
            found.append(whole)
    return tuple(found)


def _clauses(end: Event, way: Guards) -> frozenset[frozenset[Guard]]:
    """What holds on a path beside what holds on all paths to an event."""
    return frozenset(way.since(end.guards))


def _refusals(
    trace: Trace, event: Event, known: Guards, module: Value
) -> Iterator[frozenset[frozenset[Guard]]]:
    """What holds where a choice of the run that an event needs, beside what is known, came out otherwise."""
    for clause in event.guards.since(known):
        if all(is_choice_of_the_run(trace, guard, module) for guard in clause):
            yield frozenset(frozenset((~guard,)) for guard in clause)


def _with_flags_off(
    trace: Trace,
    way: Guards,
    touching: Sequence[Event],
    module: Value,
    off: tuple[Event, ...] = (),
) -> Iterator[Guards]:
    """The paths to an event on which several flags are off: by the first an event does not happen, by the next another.

    Not where one happens in place of another (`elif`): one of them may always be chosen.
    """
    if len(off) > 1 and all(_can_be(guard, way) for guard in way):
        yield way
    if len(off) == _MOST_FLAGS:
        return
    for one, further in _without_next(trace, way, touching, module):
        if not any(one.guards.excludes(other.guards) for other in off):
            yield from _with_flags_off(trace, further, touching, module, (*off, one))


def _can_be(guard: Guard, way: Guards) -> bool:
    """Whether a test that stands for a long one can come out so on a path: a value that makes it so is given there."""
    asked = guard.test.owner if guard.test.key == (WHOLE,) else None
    if not isinstance(asked, Either):
        return True
    return any(
        not given.excludes(way)
        and (not isinstance(value, Literal) or bool(value.value) is guard.taken)
        for given, value in asked.options
    )


def _without_next(
    trace: Trace, way: Guards, touching: Sequence[Event], module: Value
) -> Iterator[tuple[Event, Guards]]:
    """The first event that may happen on a path, with the paths on which a flag that it needs is off too."""
    left = next((one for one in touching if not one.guards.excludes(way)), None)
    if left is None:
        return
    for refused in _refusals(trace, left, way, module):
        if all(_is_flag(guard) for clause in refused for guard in clause):
            yield left, way.also(refused)


def _is_flag(guard: Guard) -> bool:
    """Whether something is asked for whether it is set or given: one of several words is chosen by `==`."""
    test = guard.test
    asked = options(test.owner) if test.key == (WHOLE,) and test.owner else (test,)
    return all(one.operation in ("", "is", "is not") for one in asked)


def _not_given(event: Event, end: Event, touching: Sequence[Event]) -> Iterator[frozenset[Guard]]:
    """What holds where an optional function is not given, of its call: ``if hook is not None: hook(model)``.

    It can be left out whatever else is chosen, unless it is called in place of something else that does the same.
    """
    call = event.at.node
    asked = event.guards.since(end.guards) - event.guards.survived
    if not isinstance(call, cst.Call):
        return
    if len(asked) > 1 and any(one.guards.excludes(event.guards) for one in touching):
        return
    name = event.at.source.code(call.func)
    for guard in (g for clause in asked if len(clause) == 1 for g in clause):
        if guard.site is not None and guard.site.source.code(guard.site.node) in (
            name,
            f"{name} is None",
            f"{name} is not None",
        ):
            yield frozenset((~guard,))


_MOST_WAYS = 12
_MOST_FLAGS = 3
"""So many settings of a run may be left as they are: to resume, to begin with a file, to quantize."""


def is_choice_of_the_run(trace: Trace, guard: Guard, module: Value) -> bool:
    """Whether a test chooses a path of the whole run: nothing of a rank, a round of a loop or the module itself."""
    test = guard.test
    if rank_dependent(test) or is_choice(test):
        return False
    if _of_a_round(trace, test):
        return False
    if any(one.operation in ("isinstance", "hasattr", "in") for one in parts_along(test)):
        return False
    return _is_setting(trace, test, module) or not touches(trace, test, module)


def _of_a_round(trace: Trace, value: Value, depth: int = 4) -> bool:
    """Whether a value is made of what one round of a loop is about: ``any(name in n for name in names)``."""
    if any(isinstance(one.key, Round) or is_next(one) for one in parts_along(value)):
        return True
    held = trace.memory.entries(root(value)) if depth and isinstance(root(value), Container) else ()
    return any(_of_a_round(trace, one, depth - 1) for _, one in held)


def _is_setting(trace: Trace, test: Value, module: Value) -> bool:
    """Whether a test asks for something that the run gets from outside, although a module keeps it as well."""
    seen: Value = test
    while isinstance(seen, Part) and seen.owner is not None:
        if unwrapped(seen) is module or isinstance(unwrapped(seen), Module):
            return False
        seen = seen.owner
    if isinstance(
        seen, Instance
    ):  # an object of the settings, not one that has to do with the module
        return not touches(trace, seen, module) and seen not in trace.holders(module)
    return isinstance(seen, External) and not seen.name.startswith("torch.")


def on_paths(end: Event, ways: Iterable[Guards]) -> str:
    """The conditions of paths in words, as the end of a sentence; nothing when one is every path to an event."""
    said = sorted({" and ".join(sorted(map(_in_words, _of(end, way)))) for way in ways})
    return ", and".join(f" when `{one}`" for one in said) if all(said) else ""


def _of(end: Event, way: Guards) -> Iterator[Guard]:
    return (guard for clause in way.since(end.guards) for guard in clause)


def _in_words(guard: Guard) -> str:
    """A test in words; where not all sides of a long one are known, the text of the script."""
    if guard.test.key != (WHOLE,) or guard.site is None:
        return guard.words()
    asked = guard.site.source.code(guard.site.node)
    return asked if guard.taken else f"not ({asked})"


def first_forward(trace: Trace, moved: Moved) -> Forward | None:
    """The first forward after memory was given to a model, when it is an ordinary one of the sharded model."""
    module = unwrapped(moved.module)
    initialising: set[CSTNode] = set()
    for forward in trace.after(moved, Forward):
        if forward.how.lstrip("_").startswith(_INITIALISING):
            initialising.add(forward.at.node)
            continue
        if any(site.node in initialising for site in forward.moment.calls):
            continue  # a method that computes a value for a parameter or a buffer
        if not _overlap(trace, forward.module, module):
            continue
        if _only_looks(forward) or not all(map(plain, forward.within)):
            continue
        found = sharded(trace, forward, forward.module)
        if found is None and (_only_holds(trace, forward) or _never_sharded(trace, forward)):
            continue  # the forward of the sharded part is seen in it, or on another path
        ordinary = forward.how == "call" and all(map(plain, moved.within))
        if found is None or not ordinary or not together(moved.guards, forward.guards):
            return None
        return forward
    return None


def _never_sharded(trace: Trace, forward: Forward) -> bool:
    """Whether a module computes on a path of the script where it is not sharded, which others are: under DDP."""
    module = unwrapped(forward.module)
    over = [s for s in shards(trace) if overlap(trace, s.module, module) is not None]
    return bool(over) and all(shard.guards.excludes(forward.guards) for shard in over)


def _only_holds(trace: Trace, forward: Forward) -> bool:
    """Whether a module of the project that is not sharded itself computes by parts of it that are."""
    module = unwrapped(forward.module)
    return (
        forward.how == "call"
        and isinstance(module, Module)
        and isinstance(module.cls, Class)
        and any(
            trace.inside(shard.module, module) and trace.precedes(shard.event, forward)
            for shard in shards(trace)
        )
    )


def _only_looks(forward: Forward) -> bool:
    """Whether a method of a project class was called that is followed: what it does to the model is seen there."""
    module = unwrapped(forward.module)
    return (
        forward.how != "call"
        and isinstance(module, Module)
        and isinstance(module.cls, Class)
        and any(
            isinstance(one, Class) and forward.how in one.scope.names for one in lineage(module.cls)
        )
    )


_INITIALISING = ("init", "reset", "post_init")
"""How methods begin that compute nothing but values for parameters."""


def _reached_from_outside(trace: Trace, module: Value) -> bool:
    return not trace.memory.foreign.isdisjoint(trace.holders(module))


def _data_written(
    trace: Trace, end: Event, module: Value, start: Event | None = None, *, buffers: bool = True
) -> bool:
    """Whether the script may give the module's tensors other memory before an event, and after another one:
    ``p.data = …``, where ``p`` is no object of a class and nothing that was imported.
    """
    return any(
        not isinstance(owner, Instance | External)
        and (buffers or not of_buffers(owner))
        and _may_be_of(trace, owner, module)
        and not _only_apart(trace, start, end, owner)
        for owner in trace.written(".data")
    )


def _only_apart(trace: Trace, start: Event | None, end: Event, tensor: Value) -> bool:
    """Whether the memory of a tensor is set only before or after two events: while it is on the meta device, or of
    another model, as it is evaluated.
    """
    writes = [one for one in trace.of(Written) if one.owner is tensor and one.name == "data"]
    return bool(writes) and all(
        one.order > end.order or (start is not None and one.order < start.order) for one in writes
    )


def _may_be_of(trace: Trace, tensor: Value, module: Value) -> bool:
    """Whether a tensor may be one of a module: a buffer of another module is none of its parameters."""
    return not isinstance(root(tensor), Module) or touches(trace, tensor, module)


def _among(trace: Trace, module: Value, *values: Value) -> bool:
    return any(_overlap(trace, one, module) for value in values for one in options(value))


def out_of_sight(trace: Trace, event: Event, module: Value) -> bool:
    """Whether code that cannot be followed may have had its hands on a module before ``event``."""
    if any(e.order < event.order for e in trace.escapes(module)):
        return True
    return not trace.memory.foreign.isdisjoint(trace.holders(module))


def _overlap(trace: Trace, one: Value, module: Value) -> bool:
    return overlap(trace, unwrapped(one), module) is not None


_NO_VALUES = frozenset(
    ".parameters .named_parameters .modules .named_modules .children .named_children .buffers .named_buffers "
    ".register_buffer .register_parameter .train .eval .to .cuda .cpu .half .bfloat16 .float .to_empty .numel "
    ".size .nelement .dim .element_size .zero_grad .requires_grad_ .backward .step .item .state_dict .compile "
    ".load_state_dict .gradient_checkpointing_enable .gradient_checkpointing_disable .enable_input_require_grads "
    ".set_requires_gradient_sync .set_reshard_after_backward .set_reshard_after_forward .unshard .reshard "
    ".set_is_last_backward .set_requires_all_reduce .set_modules_to_forward_prefetch .set_modules_to_backward_prefetch "
    ".set_all_reduce_hook .set_gradient_divide_factor .set_reduce_scatter_divide_factor .set_unshard_in_backward "
    ".set_force_sum_reduction_for_comms .set_allocate_memory_from_process_group_for_comm .set_custom_all_gather "
    ".set_custom_reduce_scatter .set_post_optim_event "
    ".is_contiguous .get_local_rank .get_group .get_coordinate torch.nn.parallel.DistributedDataParallel "
    ".is_floating_point .is_complex .untyped_storage .data_ptr builtins.iter builtins.next typing.cast "
    "copy.copy copy.deepcopy builtins.print builtins.len builtins.list builtins.sum builtins.id builtins.type builtins.isinstance "
    "builtins.hasattr builtins.repr builtins.str torch.compile torch.nn.utils.clip_grad_norm_ "
    "torch.nn.utils.clip_grads_with_norm_ torch.nn.utils.get_total_norm torch.nn.utils.clip_grad_value_ "
    ".detach .clone .full_tensor .to_local .sum .mean .norm .std .max .min .square .tolist .register_hook "
    ".rope_init_fn torch.save torch.equal torch.allclose builtins.float builtins.dict builtins.zip builtins.enumerate builtins.reversed "
    ".values .items .keys torch.device .new .info .debug .warning .error builtins.int builtins.bool builtins.getattr "
    "builtins.max builtins.min builtins.abs builtins.round builtins.range builtins.any builtins.all builtins.sorted "
    "builtins.tuple builtins.set builtins.callable .make_local_attention".split()
)
"""Calls that give parameters no values, or values that were somewhere before."""

_NO_VALUES_BELOW = (
    "itertools.",
    "logging.",
    "loguru.",
    "math.",
    "os.path.",
    "re.",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.",
    "torch.distributed.barrier",
    "torch.distributed.checkpoint.",
    "torch.distributed.device_mesh.",
    "torch.distributed.fsdp.",
    "torch.distributed.get_",
    "torch.distributed.is_",
    "torch.distributed.tensor.parallel.",
    "torch.optim.",
    "torch.nn.functional.",
    "torch.utils.data.",
    "torchtitan.distributed.utils.",
    "transformers.get_",
    "transformers.trainer_pt_utils.",
    "xformers.ops.fmha.",
    "xformers.profiler.",
)


def valued(trace: Trace, start: Event, end: Event, module: Value, *, by_loads: bool = True) -> bool:
    """Whether anything between two events may give the module's parameters and buffers values, on any path.

    Without ``by_loads`` the loading of a state dict does not count: it holds what is persistent only.
    """
    if out_of_sight(trace, end, module) or _data_written(trace, end, module, start):
        return True
    return bool(values_given(trace, start, end, module, by_loads=by_loads))


def values_given(
    trace: Trace,
    start: Event,
    end: Event,
    module: Value,
    *,
    by_loads: bool = True,
    itself: bool = False,
) -> list[Event]:
    """The events between two others that may give a module's parameters and buffers values; only those that it holds
    ``itself``, when that is asked.
    """
    found: list[Event] = [e for e in trace.escapes(module) if e.order < end.order]
    found += [
        called
        for called in trace.of(Called)
        if start.order < called.order < end.order and _gives(trace, called, module, itself)
    ]
    later: list[Event] = [*trace.after(start, Assigned), *trace.after(start, Filled)]
    if by_loads:
        later += [*trace.after(start, Restored), *trace.after(start, Loaded)]
    return found + [e for e in later if e.order < end.order and _gives(trace, e, module, itself)]


def _gives(trace: Trace, event: Event, module: Value, itself: bool = False) -> bool:
    """Whether an event may give a module's parameters values."""
    if isinstance(event, Called):
        return not gives_no_values(event) and any(
            touches(trace, one, module, itself) and not passes_over(trace, event, one, module)
            for one in _written_into(event)
        )
    if isinstance(event, Escaped):
        return not trace.holders(module).isdisjoint((event.value, unwrapped(event.value)))
    if isinstance(event, Filled):
        return touches(trace, event.owner, module, itself)
    if isinstance(event, Assigned):
        if _leaves_parameters(trace, event):
            return False
        if itself or _is_tensor(event.value):  # nothing for the layers below
            return unwrapped(event.owner) is module
        if class_name(module) and event.owner.key is not None:
            return False  # one attribute of a part does not fill the whole model of a library
        return _among(trace, module, event.owner)
    if isinstance(event, Restored):
        return _among(trace, module, event.into)
    if isinstance(event, Loaded):
        return _among(trace, module, *(state.of for state in event.states))
    return False


def ways_without_own_values(
    trace: Trace,
    end: Event,
    holder: Value,
    parameter: Value,
    built: Guards,
    giving: Sequence[Event],
) -> Ways:
    """The paths to an event on which a parameter that a module holds beside its submodules gets no values, of what
    ``giving`` gives the whole model.
    """
    names = {
        key.removeprefix(".")
        for key, value in trace.memory.entries(holder)
        if isinstance(key, str) and parameter in options(value)
    }
    if len(names) != 1 or _reached_from_outside(trace, holder) or _data_written(trace, end, holder):
        return ()
    name = names.pop()
    touching = [one for one in giving if _gives_itself(trace, one, holder, parameter, name)]
    return ways_around(trace, end, touching, holder, built)


def _gives_itself(trace: Trace, event: Event, holder: Value, parameter: Value, name: str) -> bool:
    """Whether an event may give values to the one parameter that a module holds under a name."""
    if isinstance(event, Assigned) and unwrapped(event.owner) is holder:
        return event.name == name
    if not isinstance(event, Called):
        return _gives(trace, event, holder)
    return not gives_no_values(event) and any(
        touches(trace, one, holder, itself=True)
        and not _is_another(one, parameter, name)
        and not passes_over(trace, event, one, holder, itself=True)
        for given in _written_into(event)
        if given is not None
        for one in options(given)
    )


def _is_another(value: Value, parameter: Value, name: str) -> bool:
    """Whether a value is another parameter, or another attribute of a module, than the one under a name."""
    for one in parts_along(value):
        if isinstance(one.key, str) and one.key.startswith("."):
            owner = one.owner
            if isinstance(owner, Part) and isinstance(owner.key, Round) and one.key != f".{name}":
                return one.key[1:].isidentifier()
    whole = root(value)
    return whole is not parameter and class_name(whole) == "torch.nn.Parameter"


def _written_into(called: Called) -> tuple[Value | None, ...]:
    """What a call may write into: of a tensor's in-place method its receiver, of ``nn.init`` the tensor, of another
    call all that it is given.
    """
    if called.receiver is not None and _IN_PLACE.fullmatch(called.name):
        return (called.receiver,)
    if called.name.startswith("torch.nn.init."):  # beside the tensor, numbers: `std=self.cfg.std`
        return called.arguments[:1] or (called.keywords.get("tensor"),)
    return (called.receiver, *called.arguments, *called.keywords.values())


def writes_parameters(event: Event) -> bool:
    """Whether a call writes into what ``parameters()`` gives, which no buffer is."""
    return isinstance(event, Called) and all(
        one is None or isinstance(one, Literal) or isinstance(root(one), Parameters)
        for one in _written_into(event)
    )


def _writes_buffers(event: Event) -> bool:
    """Whether a call writes into buffers, which no parameter is: those of ``buffers()``, or one of a rotary embedding."""
    if not isinstance(event, Called) or event.receiver is None:
        return False
    return _IN_PLACE.fullmatch(event.name) is not None and all(
        of_buffers(one) or one.key in _BUFFERS for one in options(event.receiver)
    )


_BUFFERS = (".inv_freq", ".original_inv_freq", ".freqs_cis", ".cos_cached", ".sin_cached")


_IN_PLACE = re.compile(
    r"\.(add|addcdiv|addcmul|clamp|copy|div|fill|lerp|mul|sub|zero|normal|uniform|trunc_normal)_"
)


_ERROR = re.compile(r"builtins\.\w+(Error|Exception|Warning)")
_FILLING = frozenset(".add .append .clear .extend .insert .setdefault .update".split())


def gives_no_values(called: Called) -> bool:
    """Whether a call is known, and gives no parameter that it gets a value from elsewhere."""
    if called.name.startswith("torch.nn.") and called.name.count(".") == 2:
        return True  # a layer or a list is made of others
    if called.name in _FILLING and called.receiver is not None:
        if all(isinstance(one, Container) for one in options(called.receiver)):
            return True  # a list or a dictionary gets objects, as they are
    if called.name == ".update" and len(called.arguments) > 1:
        return True  # a cache of keys and values: dictionaries are given one thing
    if called.name == ".apply" and all(isinstance(v, Bound | Function) for v in called.arguments):
        return True  # what the function does is written down call by call
    return (
        called.name in _NO_VALUES
        or called.name.startswith(_NO_VALUES_BELOW)
        or _ERROR.fullmatch(called.name) is not None
        or only_computes(called)
    )


def _leaves_parameters(trace: Trace, assigned: Assigned) -> bool:
    """Whether a module has the same parameters after an attribute of it was set."""
    if assigned.name == "_compiled_call_impl":
        return True  # what `Module.compile` sets
    return _is_own_part(trace, assigned) or _is_beside(assigned.value)


def _is_own_part(trace: Trace, assigned: Assigned) -> bool:
    """Whether a module gets back what it had, compiled or with a checkpoint around it: the same parameters."""
    return all(
        wrapped_by(one, "compile", "checkpoint")
        and trace.inside(unwrapped(one), unwrapped(assigned.owner))
        for one in options(assigned.value)
    )


def _is_beside(value: Value) -> bool:
    """Whether something is beside the parameters of a model: torch takes no number, shape, method, mesh or
    generator in place of one.
    """
    return all(
        isinstance(unwrapped(one), Literal | Mesh | Bound | Function)
        or _maker(one) == "torch.Generator"
        or any(map(is_form, parts_along(one)))  # `x.shape[1]`
        for one in options(value)
    )


def _is_tensor(value: Value) -> bool:
    """Whether a value surely is a tensor that a function of torch has made, or a number: no module, no parameter."""
    if any(one.operation in _ARITHMETIC for one in parts_along(value)):
        return True
    made = root(value)
    return is_function(made.name) if isinstance(made, External) else isinstance(made, Literal)


_ARITHMETIC = ("-", "/", "//", "%", "**")
"""Operators that lists of modules do not have."""


def _walked(value: Value) -> Iterator[Value]:
    """The modules below which a walk finds a value: any of their submodules may be meant."""
    return (one.owner for one in parts_along(value) if one.key in WALKS)


def _is_name(value: Value) -> bool:
    """Whether a value is the name of a parameter, or a key of a state dict."""
    if not isinstance(value, Part):
        return False
    if value.key == ".name":
        return True
    pair = value.owner if value.key == "[0]" else None
    walked = pair.owner if isinstance(pair, Part) and isinstance(pair.key, Round) else None
    return isinstance(walked, Part) and walked.key in _PAIRS


_PAIRS = (
    ".items()",
    ".named_buffers()",
    ".named_children()",
    ".named_modules()",
    ".named_parameters()",
)


def _is_of_model(trace: Trace, holder: Value, module: Value) -> bool:
    """Whether what a holder has belongs to a model: a trainer has a model, and settings and data beside it."""
    return isinstance(unwrapped(holder), Module) or trace.inside(holder, module)


_SETTINGS = (".config", ".generation_config")
"""What models of Transformers and Diffusers keep under these names are settings, without parameters."""


def touches(trace: Trace, value: Value | None, module: Value, itself: bool = False) -> bool:
    """Whether a value is in or around a module, or made of it: a parameter, a buffer, an element of its parts.

    With ``itself`` what is in a submodule does not count.
    """

    def meets(one: Value) -> bool:
        whole = unwrapped(one)
        return trace.inside(module, whole) or (not itself and trace.inside(whole, module))

    for one in () if value is None else options(value):
        if isinstance(one, External) or _is_beside(one):
            continue  # a number or a mesh that the module holds too
        seen: Value | None = one
        while seen is not None and not isinstance(seen, Literal):
            if isinstance(seen, Parameters | StateDict):
                return any(map(meets, (seen.of, *_walked(seen.of))))
            if isinstance(seen, Optimizer) or is_form(seen) or _is_name(seen):
                break
            if seen.key in _SETTINGS and isinstance(seen, Part):
                break
            if meets(seen):
                return True
            if isinstance(seen, Module):
                break  # another part of the model: what holds it is not meant
            holders = trace.memory.held_by.get(seen, ())
            tensor = _is_tensor(seen) or class_name(seen) == "torch.nn.Parameter"
            if tensor and all(isinstance(unwrapped(h), Module) for h in holders):
                # a buffer or a parameter of a module is no part of the layers in it
                if any(h is module or (not itself and trace.inside(h, module)) for h in holders):
                    return True
            elif any(meets(h) for h in holders if _is_of_model(trace, h, module)):
                return True
            seen = seen.owner if isinstance(seen, Part) else None
    return False
