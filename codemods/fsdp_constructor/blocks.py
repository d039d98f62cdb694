"""The lists of layers that a wrap policy chooses, where it chooses all of their elements and nothing else.

    for module in reversed(list(model.modules())):          for block in model.blocks:
        if isinstance(module, Block) and …:                     fully_shard(block)
            fully_shard(module)

Known only where every run builds a resolved model, out of classes of the project and of ``torch.nn``.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Class,
    Module,
    Program,
    Source,
    Trace,
    Value,
    Wrapped,
    dotted,
    lineage,
    options,
    unwrapped,
    walk,
)

from .._common.names import class_of, external
from .._common.origins import class_named, returned, uses_of
from .site import Construction

_DICT = "torch.nn.ModuleDict"
_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential", _DICT)
_ELEMENTS = {"h": "block", "resblocks": "block", "children": "layer"}
_MAX_LISTS = 2


@dataclass(frozen=True)
class Blocks:
    """The lists, as paths of attributes below the model, and names for one element."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    singles: tuple[str, ...] = ()
    """Modules of their own, which are in none of these lists."""

    def each(self, model: str) -> str:
        """What a loop goes through."""
        said = [f"{model}{path}" for path in self.paths]
        return said[0] if len(said) == 1 else f"({', '.join(f'*{one}' for one in said)})"


@dataclass(frozen=True)
class _Inside:
    """A module below another, None if it is not known which."""

    module: Module | None
    within: str = ""
    """The path of the list of layers that it is an element of."""


def blocks_of(site: Construction, classes: tuple[cst.BaseExpression, ...]) -> Blocks | None:
    """The lists that hold all modules of some classes in the model of a call, in every run."""
    named = [class_named(site.program, site.source, one) for one in classes]
    wanted = [one[1] for one in named if one is not None]
    if not site.events or not wanted or len(wanted) < len(named):
        return None
    found: set[tuple[str, ...]] = set()
    born: set[cst.CSTNode] = set()
    for trace, event in site.events:
        for model in options(event.module):
            inside = list(_inside(trace, model, "", ""))
            found.add(tuple(_lists(model, inside, wanted)))
            born |= {one.module.born.node for one in inside if one.module and one.module.born}
    paths = found.pop() if len(found) == 1 else ()
    if not paths or not all(_is_built_there(site.program, cls, born) for cls in wanted):
        return None
    return _named(paths)


def blocks_named(site: Construction, function: cst.Lambda) -> Blocks | None:
    """The list that a function names, if it asks only whether a module is in it: ``lambda m: m in list(model.blocks)``.

    Or the method that gives it: ``lambda m: m in model.wrapped_blocks()``.
    """
    body, param = function.body, function.params.params[0].name.value
    if not isinstance(body, cst.Comparison) or len(body.comparisons) != 1:
        return None
    target, model = body.comparisons[0], f"{dotted(site.module)}."
    if not isinstance(target.operator, cst.In) or dotted(body.left) != param:
        return None
    named = target.comparator
    if isinstance(named, cst.Call) and dotted(named.func) in ("list", "tuple", "set"):
        named = named.args[0].value if len(named.args) == 1 else named
    if isinstance(named, cst.Call) and not named.args:
        method = dotted(named.func)
        given = _given_by(site.program, method.rpartition(".")[2])
        if not method.startswith(model) or not given:
            return None
        return Blocks((f".{method.removeprefix(model)}()",), _named((given[0],)).names)
    path = dotted(named)
    return _named((f".{path.removeprefix(model)}",)) if path.startswith(model) else None


def _given_by(program: Program, method: str) -> tuple[str, ...]:
    """The lists of whose elements every method of a name makes one: ``list(self.blocks)``, ``[*self.a, *self.b]``.

    Nothing where it may give something else, or what is inside of another element.
    """
    found: set[tuple[str, ...]] = set()
    for source in program.sources:
        for node in walk(source.tree) if f"def {method}(" in source.text else ():
            if isinstance(node, cst.FunctionDef) and node.name.value == method:
                given = list(returned(node))
                found.add(tuple(_listed(given[0])) if len(given) == 1 else ())
    paths = found.pop() if len(found) == 1 else ()
    nested = any(f"{one}." in f"{other}." for one in paths for other in paths if one is not other)
    return () if "" in paths or nested else paths


def _listed(node: cst.BaseExpression | None) -> Iterator[str]:
    """The attributes of ``self`` that a list is made of; an empty one for anything else."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        yield from _listed(node.left)
        yield from _listed(node.right)
    elif isinstance(node, cst.List) and node.elements:
        for one in node.elements:
            starred = isinstance(one, cst.StarredElement)
            yield _own_path(one.value) if starred else ""
    elif isinstance(node, cst.Call) and dotted(node.func) == "list" and len(node.args) == 1:
        yield _own_path(node.args[0].value)
    else:
        yield ""


def _own_path(node: cst.BaseExpression) -> str:
    path = dotted(node)
    return path.removeprefix("self") if path.startswith("self.") else ""


def _named(paths: tuple[str, ...]) -> Blocks:
    """Some lists, with names for an element."""
    last = paths[0].removesuffix(".values()").rpartition(".")[2]
    own = _ELEMENTS.get(last, last[:-1] if last.endswith("s") and len(last) > 3 else "layer")
    names = (own, "layer", "block", "module")
    return Blocks(paths, tuple(name for name in names if not keyword.iskeyword(name)))


def units_below(trace: Trace, model: Value) -> tuple[set[Value], Blocks | None]:
    """FSDP1's modules below one that it wraps last, and the lists and attributes that they are.

    None where an attribute of the model leads to none of them, or to others too.
    """
    found, singles, lists = set[Value](), list[str](), list[str]()
    for unit, path, around in _wrapped_below(trace, model, "", ""):
        found.add(unit)
        if not path and not around:
            return found, None
        (lists if around else singles).append(around or path)
    lists = list(dict.fromkeys(lists))
    if not found:
        return found, None
    return found, Blocks(tuple(lists), _named(tuple(lists or singles)).names, tuple(singles))


def _wrapped_below(
    trace: Trace, module: Value, path: str, within: str, above: tuple[Value, ...] = ()
) -> Iterator[tuple[Value, str, str]]:
    """FSDP1's modules below one, each with its path, or that of the list that holds them alone."""
    above = (*above, module)
    children = [(k, v) for k, v in trace.memory.children(module) if unwrapped(v) not in above]
    sure = {one for _, one in trace.memory.entries(module) if isinstance(one, Module | Wrapped)}
    kind, whole = class_of(module), all(_is_unit(one) and one in sure for _, one in children)
    for key, child in children:
        here = around = ""
        if not within and key.startswith(".") and child in sure:
            here = path + key
        elif path and kind in _LISTS and whole and module not in trace.memory.loose:
            around = f"{path}.values()" if kind == _DICT else path
        if _is_unit(child):
            yield child, here, around
        yield from _wrapped_below(trace, unwrapped(child), here, "" if here else "inside", above)


def _is_unit(value: Value) -> bool:
    return isinstance(value, Wrapped) and value.by == "fsdp1"


def has_no_buffers(site: Construction) -> bool:
    """Whether every run builds the model out of modules that surely have no buffers."""
    if not site.events or any(_BUFFERS.search(source.text) for source in site.program.sources):
        return False
    return all(
        _is_without_buffers(trace, one, site.program)
        for trace, event in site.events
        for model in options(event.module)
        for one in _every(trace, model)
    )


def _every(trace: Trace, model: Value) -> list[Value]:
    """A module and all that are known below it, wrapped or not."""
    found = dict.fromkeys([unwrapped(model)])
    waiting = list(found)
    while waiting:
        children = (unwrapped(one) for _, one in trace.memory.children(waiting.pop()))
        more = [one for one in children if one not in found]
        found |= dict.fromkeys(more)
        waiting += more
    return list(found)


def _is_without_buffers(trace: Trace, module: Value, program: Program) -> bool:
    """Whether a module has no buffers; what it calls and is not known may be a module that has some."""
    if not _is_known(trace, module) or module in trace.memory.out:
        return False
    assert isinstance(module, Module)
    if any(_WITH_STATISTICS.search(external(one)) for one in lineage(module.cls)):
        return False
    unknown = [
        str(key)
        for key, value in trace.memory.entries(module)
        if not all(isinstance(unwrapped(one), Module) for one in options(value))
    ]
    called = (f"self{key}(" for key in unknown if key.startswith("."))
    return not any(text in source.text for text in called for source in program.sources)


def has_no_batch_norms(site: Construction) -> bool:
    """Whether no model of the call can hold a batch norm.

    Where a model is not known, the files that its runs load have to mention none, nor a library of models
    that have some.
    """
    if site.events and all(
        _is_known(trace, one) and not _BATCH_NORM.search(_kinds(one))
        for trace, event in site.events
        for model in options(event.module)
        for one in _every(trace, model)
    ):
        return True
    begun = {trace.source for trace, _ in site.events} or set(site.program.sources)
    loaded = site.program.derived(texts_loaded, frozenset(begun))
    return not any(_WITH_BATCH_NORM.search(text) for text in loaded)


def texts_loaded(program: Program, begun: frozenset[Source]) -> tuple[str, ...]:
    """The texts of some files and of all files of the project that they import."""
    project = program.project
    known = {project.path_of(one): one for one in begun}
    waiting = list(known.values())
    while waiting:
        for path in project.imported_by(waiting.pop()):
            if path not in known and (one := project.passed_through(path)) is not None:
                known[path] = one
                waiting.append(one)
    return tuple(one.text for one in known.values())


def _kinds(module: Value | None) -> str:
    """The names of the classes outside the project that a module is derived from."""
    return (
        " ".join(external(one) for one in lineage(module.cls)) if isinstance(module, Module) else ""
    )


_BATCH_NORM = re.compile(r"BatchNorm")
_WITH_BATCH_NORM = re.compile(
    r"BatchNorm|torch\.hub\b|\btorchvision\.(models|ops)\b|from torchvision import .*\b(models|ops)\b"
    r"|\b(import|from) (timm|monai|segmentation_models_pytorch)\b"
)
"""Batch norms, and libraries of models that have some."""
_BUFFERS = re.compile(r"\bregister_buffer\(|\bBuffer\(")
_WITH_STATISTICS = re.compile(r"BatchNorm|InstanceNorm|\.quantization\.|\.ao\.")


def _is_built_there(program: Program, cls: cst.ClassDef, born: set[cst.CSTNode]) -> bool:
    """Whether the program calls a class by its name only for those modules, and derives no other from it."""
    return all(use in born for use in uses_of(program, cls))


def _lists(model: Value, inside: list[_Inside], wanted: list[cst.ClassDef]) -> Iterator[str]:
    """The paths of the lists whose elements are all modules of the classes; none where that is not known."""
    modules = [one.module for one in inside if one.module is not None]
    if len(modules) < len(inside) or len(set(modules)) < len(modules) or _is_one(model, wanted):
        return
    every: dict[str, bool] = {}
    for one in inside:
        chosen = _is_one(one.module, wanted)
        if chosen and not _is_named(one.module):
            return
        if chosen or one.within:
            every[one.within] = every.get(one.within, True) and chosen
    lists = [path for path, all_of_it in every.items() if all_of_it]
    missed = any(_is_one(one.module, wanted) and one.within not in lists for one in inside)
    if "" not in lists and not missed and len(lists) <= _MAX_LISTS:
        yield from lists


def _inside(trace: Trace, module: Value, path: str, within: str) -> Iterator[_Inside]:
    """Every module below one; no attribute of the model leads to what is inside of an element of a list."""
    if not _is_known(trace, module):
        yield _Inside(None)
        return
    kind = class_of(module)
    for key, child in trace.memory.children(module):
        if not isinstance(child, Module):
            yield _Inside(None)
            return
        here = around = ""
        if not within and key.startswith("."):
            here = path + key
        elif not within and path and kind in _LISTS:
            here = f"{path}.{key[2:-2]}" if kind == _DICT and key[2:-2].isidentifier() else ""
            around = f"{path}.values()" if kind == _DICT else path
        yield _Inside(child, around)
        yield from _inside(trace, child, here, "" if here else "inside")


def _is_known(trace: Trace, module: Value) -> bool:
    """Whether all modules in a module are resolved."""
    if not isinstance(module, Module) or module in trace.memory.loose:
        return False
    last = [external(one) for one in lineage(module.cls) if not isinstance(one, Class)]
    return bool(last) and all(one.startswith("torch.nn.") for one in last)


def _is_one(module: Value | None, wanted: list[cst.ClassDef]) -> bool:
    """Whether a module is of one of the classes."""
    kinds = lineage(module.cls) if isinstance(module, Module) else ()
    return any(isinstance(one, Class) and one.node in wanted for one in kinds)


def _is_named(module: Module | None) -> bool:
    """Whether a module was built by a call that names its class."""
    made = module.born.node if module is not None and module.born is not None else None
    kind = module.cls if module is not None else None
    called = dotted(made.func).rpartition(".")[2] if isinstance(made, cst.Call) else ""
    return isinstance(kind, Class) and kind.node.name.value == called
