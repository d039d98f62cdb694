"""Which kinds of models a place of a program sees, also where they come from unseen code.

A trainer that nobody in the project builds, a function of a library: what its model is, no run
shows. Where the program names FSDP1, and no engine wraps models for it, it can be FSDP1's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp2lint.ask.program import Program
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Names, loads
from fsdp2lint.model.events import Called, Clipped, Event, SyncPaused
from fsdp2lint.model.guards import Guard, Guards
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import (
    Class,
    External,
    Module,
    Part,
    Value,
    unwrapped,
    wrappers_around,
)
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import statements, walk

_FSDP1_CLASS = ".FullyShardedDataParallel"
_FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
_FSDP1 = f"torch.distributed.fsdp{_FSDP1_CLASS}"

_DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.DataParallel")

BOTH_CLASSES = "models of FSDP1 and of fully_shard are both accepted: no file here builds them"
"""What the ledger says of code whose callers pass the models."""

ASKED_FROM_AFAR = ("clip_grad_norm_", "no_sync")
"""The methods of the wrapper that are called on models far from where they are wrapped."""


def wrapper(value: Value) -> str:
    """``fsdp1`` or ``ddp`` for what these have wrapped, ``plain`` for a resolved module, else ``unknown``."""
    found = next((one.by for one in wrappers_around(value) if one.by in ("fsdp1", "ddp")), "")
    return found or ("plain" if isinstance(unwrapped(value), Module) else "unknown")


def is_unit(value: Value) -> bool:
    """Whether this is a model that FSDP1 has wrapped, or one of the wrapped modules that ``fsdp_modules`` lists."""
    listed = value.owner if isinstance(value, Part) else None
    if isinstance(listed, Part) and listed.key == ".fsdp_modules()":
        return True
    return wrapper(value) == "fsdp1"


def kinds(program: Program, values: Iterable[Value]) -> frozenset[str]:
    """The kinds of models of which something is asked that plain modules do not have.

    What comes from unseen code, or was wrapped by unresolved code, is of the kinds that the program makes.
    """
    found = {wrapper(one) for value in values for one in options(value)}
    if "unknown" in found or not found & {"fsdp1", "ddp"}:
        made = program.named_wrappers
        if made:
            found = (found - {"unknown"}) | made
    return frozenset(found)


def is_no_instance(event: Event, model: Value, cls: str = _FSDP_MODULE) -> bool:
    """Whether ``model`` comes here only when it is no ``cls``."""
    if cls == _FSDP_MODULE:
        if excludes_fsdp2(event.at.source, event.at.node):
            return True
        if all(any(_is_of_ddp(guard, one) for guard in event.guards) for one in options(model)):
            return True
    tests = {guard.test for clause in event.guards.clauses for guard in clause}
    return any(
        _asks(test, cls)
        and any(test.owner is one for one in options(model))
        and event.guards.excludes(Guards(frozenset((frozenset((Guard(test, True),)),))))
        for test in tests
    )


def _is_of_ddp(guard: Guard, model: Value) -> bool:
    """Whether a guard says that a model is DDP's, which wraps around what it is given."""
    test = guard.test
    if not guard.taken or test.owner is not model or test.operation != "isinstance":
        return False
    names = [one.name if isinstance(one, External) else "" for one in test.operands]
    return bool(names) and all(n in _DDP for n in names)


def of_own_class(event: Event, value: Value) -> bool:
    """Whether a value comes to an event only when it is of a class of the project, around which no wrapper is."""
    for guard in event.guards:
        test = guard.test
        if guard.taken and test.owner is value and test.operation == "isinstance":
            if all(isinstance(one, Class) and _wraps_nothing(one) for one in test.operands):
                return True
    return False


def _wraps_nothing(cls: Value) -> bool:
    """Whether a class is the project's and does not derive from FSDP1's."""
    if isinstance(cls, External):
        return not cls.name.endswith(_FSDP1_CLASS)
    return isinstance(cls, Class) and all(_wraps_nothing(base) for base in cls.bases)


def excludes_fsdp2(source: Source, call: cst.CSTNode) -> bool:
    """Whether a call is where ``isinstance(model, FSDPModule)`` is false for the model that it is called on."""
    method = call.func if isinstance(call, cst.Call) else call
    if not isinstance(method, cst.Attribute) or "FSDPModule" not in source.text:
        return False
    inner: cst.CSTNode = call
    for around in Layout.of(source).ancestors(call):
        if isinstance(around, cst.If | cst.IfExp) and inner is not around.test:
            test, taken = around.test, around.body is inner
            if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
                test, taken = test.expression, not taken
            if not taken and isinstance(test, cst.Call) and len(test.args) == 2:
                same = test.args[0].value.deep_equals(method.value)
                if same and source.code(test.args[1].value).endswith("FSDPModule"):
                    return True
        inner = around
    return False


def _asks(test: Value, cls: str) -> bool:
    return test.operation == "isinstance" and any(
        isinstance(one, External) and one.name == cls for one in test.operands
    )


def unseen_methods(program: Program, name: str) -> Iterator[tuple[Source, cst.Attribute]]:
    """Where a method that only wrappers have is called on something of unknown origin.

    No event is there, nor does the call lead into a function of the project. Methods of
    engines, which are given the parameters, are none of these; nothing is where FSDP1 is not named.
    """
    may_be = program.named_wrappers | (frozenset() if name in _OF_ENGINES else program.wrappers)
    if "fsdp1" not in may_be or is_of_the_project(program, name):
        return
    seen = program.derived(_followed)
    for source in program.sources:
        if name not in source.text:
            continue
        layout = Layout.of(source)
        imported = {r.node for r in program.named(source)}
        for node in walk(source.tree):
            if isinstance(node, cst.Attribute) and node.attr.value == name:
                call = layout.parents[node]
                called = call if isinstance(call, cst.Call) and call.func is node else None
                root = node.value
                while isinstance(root, cst.Attribute):
                    root = root.value
                own = isinstance(root, cst.Call) and source.code(root) == "super()"
                known = (called or node) in seen or node in imported or own
                known = known or excludes_fsdp2(source, called or node)
                if not known and not isinstance(call, cst.AssignTarget):
                    if called is None or not _is_of_an_engine(source, called, name):
                        yield source, node


_OF_ENGINES = ("no_sync",)
"""Methods that the models of engines have too, as DeepSpeed's."""


def of_a_plugin(called: Called) -> bool:
    """Whether this is ``set_state_dict_type`` of accelerate's FSDP plugin, which takes the type alone.

    FSDP1's is given the module too (torch/distributed/fsdp/fully_sharded_data_parallel.py).
    """
    given = len(called.arguments) + len(called.keywords)
    return called.name == ".set_state_dict_type" and given < 2 and not called.open


def by_derived_classes(trace: Trace, method: str) -> Iterator[tuple[Source, cst.Attribute]]:
    """The calls of a static method of FSDP1 by its class, also by one that derives from it: ``Ours.fsdp_modules``.

    A method that is called on a model reaches the same function, with the model as its receiver.
    """
    asked = {called.at.node for called in trace.calls(f".{method}") if called.receiver is not None}
    for called in trace.calls(f"{_FSDP1}.{method}"):
        func = getattr(called.at.node, "func", None)
        if called.at.node not in asked and isinstance(func, cst.Attribute):
            if func.attr.value == method:
                yield called.at.source, func


def is_own(trace: Trace, method: str) -> bool:
    """Whether a class of the script's own has a method of this name, in a run that takes nothing from FSDP."""
    if any(source.derived(_takes_from_fsdp) for source in trace.sources):
        return False
    return any(
        f"def {method}(" in source.text and method in source.derived(_methods)
        for source in trace.sources
    )


def is_of_the_project(program: Program, method: str) -> bool:
    """Whether a class of the program has a method of this name, and no run puts FSDP1 around a model.

    Then the method of a model that comes from elsewhere is more likely the former's.
    """
    if "fsdp1" in program.wrappers:
        return False
    return any(
        f"def {method}(" in source.text and method in source.derived(_methods)
        for source in program.sources
    )


def is_fairscales(sources: Iterable[Source]) -> bool:
    """Whether these files take FSDP from fairscale and nothing of torch's: the words are the same.

    ``fairscale.nn.FullyShardedDataParallel`` has ``summon_full_params``, ``no_sync`` and names with
    ``_fsdp_wrapped_module`` too (fairscale/nn/data_parallel/fully_sharded_data_parallel.py).
    """
    every = tuple(sources)
    if not any(source.derived(_takes_from_fairscale) for source in every):
        return False
    return not any(source.derived(_takes_from_fsdp) for source in every)


def is_fsdp_itself(source: Source) -> bool:
    """Whether a file defines a class of FSDP1's name by itself: a copy of PyTorch's own file, or another FSDP.

    What is said in it of flat parameters and wrapped modules is how that class works, and no use of torch's.
    """
    return source.derived(_defines_fsdp)


def _defines_fsdp(source: Source) -> bool:
    return (
        _DEFINED.search(source.text) is not None
        and _WITHIN.search(source.text) is not None
        and f"{_FSDP}{_FSDP1_CLASS}(" not in source.text
        and not _takes_from_fsdp(source)
    )


_FSDP = "torch.distributed.fsdp"
_DEFINED = re.compile(rf"^class {_FSDP1_CLASS[1:]}\((?:torch\.)?(?:nn\.)?Module\)", re.MULTILINE)
_WITHIN = re.compile(r"_fsdp_wrapped_module|(?i:flat_?param|FlattenParams)")
"""What an FSDP of its own keeps the shards in."""


def _takes_from_fairscale(source: Source) -> bool:
    if "fairscale" not in source.text:
        return False
    every = source.derived(_loaded)
    return any(n.startswith("fairscale.") and n.endswith(f"{_FSDP1_CLASS}.") for n in every)


def names_the_class(trace: Trace) -> bool:
    """Whether a file of a run imports FSDP1's class, or names it through a module."""
    return any(source.derived(_names_the_class) for source in trace.sources)


def _names_the_class(source: Source) -> bool:
    if "FullyShardedDataParallel" not in source.text:
        return False
    found = _CLASS.search(source.text)
    return found is not None and (_takes_from_fsdp(source) or "torch." in found.group())


_CLASS = re.compile(r"(?<!\w)(?:torch\.[\w.]*)?FullyShardedDataParallel(?!\w)")


def _takes_from_fsdp(source: Source) -> bool:
    """Whether any import of a file, wherever it is, loads something of FSDP."""
    if "distributed" not in source.text or "fsdp" not in source.text:
        return False
    home = "torch.distributed.fsdp."
    return any(name.startswith(home) for name in source.derived(_loaded))


def _loaded(source: Source) -> tuple[str, ...]:
    """The dotted names that the imports of a file load, each with a dot at its end."""
    return tuple(
        f"{name}."
        for node in statements(source.tree)
        if isinstance(node, cst.Import | cst.ImportFrom)
        for name in loads(node)
    )


def _methods(source: Source) -> frozenset[str]:
    """The names that the class bodies of a file bind."""
    scopes = Names.of(source).bindings.items()
    return frozenset(
        name for scope, bound in scopes if isinstance(scope, cst.ClassDef) for name in bound
    )


def _is_of_an_engine(source: Source, call: cst.Call, name: str) -> bool:
    """Whether a call gives what the wrapper's method does not take: the parameters, the model."""
    if name == "clip_grad_norm_":
        return not call.args or ".parameters()" in source.code(call.args[0].value)
    return bool(call.args)


def _followed(program: Program) -> frozenset[cst.CSTNode]:
    """The calls whose meaning is known, and those that lead to where something happens."""
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        for event in trace:
            found.update(site.node for site in event.moment.calls)
            if isinstance(event, Clipped | SyncPaused):
                found.add(event.at.node)
    return frozenset(found)
