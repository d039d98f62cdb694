"""Parts of a model are sharded, the model itself is not.

## What it does

Finds models that are trained and of which some parts are sharded, while parameters beside those parts
belong to no `fully_shard` call. Finds also modules that are sharded together, as a list, below a model that is not
sharded, even if no parameter is left over.

## Why is this bad

What is outside every group stays a plain tensor: its gradients are not reduced, so each rank trains a copy of
its own and the ranks drift apart without an error. Clipping over all parameters fails with "mixed
torch.Tensor and DTensor".

A group with no sharded module above it is a root of its own, and a root has to be one module: the first forward
of a list raises `RuntimeError: FSDP requires a single root module`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
 fully_shard(model[0])
+fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: the blocks of a language model of Transformers.
- Found: a parameter of the model's own, while the logged loss is reduced.
- Found: a list of modules, and nothing above them.
- Not found: a model of another library.

## Fix safety

Safe: the root is sharded below the last of its parts, with the same arguments; it takes what no other group
has.

## Known limits

Only models whose class is resolved, or models of Transformers of which blocks are sharded (`model.model.layers`, or classes named
`…Layer` or `…Block` of a walk), and
that no unresolved code is given. A walk over `modules()` is followed when it tests the class of a module, or the name of
its class; whatever else it tests, it shards no others. A parameter of a module's own counts when `nn.Parameter(…)` is
assigned to an attribute, those of a layer of torch also where a class of the project inherits from it and keeps them. What the script freezes counts only on paths that choices of the run open, or that train it again;
filters by the names of parameters are not followed. Silent when gradients or parameters are (or may be) reduced by hand,
and when the whole is wrapped in DDP. Of a list only one that is written out, or leaves out what is None, is known to hold several modules.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_lazy_init`: "requires a single root module")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

import libcst as cst
from libcst import CSTNode

from fsdp2lint.api import (
    Called,
    Escaped,
    Event,
    Finding,
    Fix,
    Forward,
    Guards,
    InsertAfter,
    Layout,
    Literal,
    Module,
    Part,
    Round,
    Sharded,
    Site,
    Trace,
    Unknown,
    Value,
    options,
    rule,
    unwrapped,
    walk,
)

from .._common.fixes import call_of, first_argument, further_arguments, path_text, stands_alone
from .._common.meta import Ways, gives_no_values, is_choice_of_the_run, on_paths, ways_around
from .._common.shared import (
    Shard,
    class_name,
    has_parameters,
    is_block_of,
    is_sharded_again,
    is_transformer,
    parts_of,
    path_below,
    shards,
    shards_before,
    together,
)
from .._common.training import freezing, kept_in_step_by_groups, unfollowed_users
from .._common.walks import reached, walk_of

_PARAMETER = "torch.nn.Parameter"


@rule(code="FSDP206", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Models of which only parts are sharded."""
    said: set[Value] = set()
    yield from _left_over(trace, said)
    yield from _groups_as_roots(trace, said)


def _left_over(trace: Trace, said: set[Value]) -> Iterator[Finding]:
    """Models that keep parameters which no group has."""
    for forward in trace.of(Forward):
        root = unwrapped(forward.module)
        if (
            any(trace.inside(root, one) for one in said)
            or forward.how != "call"
            or not isinstance(root, Module)
        ):
            continue
        parts = list(shards_before(trace, forward, partial(_is_part, trace, root)))
        parts, way = _never_whole(trace, root, parts)
        if not parts:
            continue
        if not kept_in_step_by_groups(trace, forward, root, [part.guards for part in parts]):
            continue
        left, way = next(_trained(trace, root, parts, forward, way), (None, way))
        if left is None:
            continue
        said.add(root)
        yield Finding(
            at=parts[0].event,
            message=f"`{root.words()}` itself is never sharded: nothing reduces the gradients of "
            f"{left}, and the ranks drift apart{on_paths(forward, (way,))}",
            because=((forward, f"`{root.words()}` runs forward here"),),
            fix=_root_call(trace, parts[0], root),
        )


def _is_part(trace: Trace, root: Value, shard: Shard) -> bool:
    """Whether a group is of a model or of a part of it, and is no second one."""
    return trace.inside(shard.module, root) and not is_sharded_again(shard.event)


def _trained(
    trace: Trace, root: Value, parts: list[Shard], forward: Forward, way: Guards
) -> Iterator[tuple[str, Guards]]:
    """What of a model is in no group, in words, and a path on which nothing freezes it, nor gets the model unseen."""
    handed = unfollowed_users(trace, root)
    if handed is None:
        return
    left = _left_by_library(trace, root, parts) if is_transformer(root) else None
    if left is None:
        covered = _covered(trace, parts)
        found = () if covered is None else _uncovered(trace, root, covered, forward, way)
        left = ((one, f"`{one.words()}`", way) for one in found)
    for one, said, where in left:
        known = way.also(where.clauses)
        if known.impossible:
            continue
        paths = ways_around(trace, forward, [*handed, *freezing(trace, one)], root, known)
        if paths:
            yield said, paths[0].also(known.clauses)


_ENDS = frozenset(
    ".model.embed_tokens .transformer.wte .transformer.wpe .gpt_neox.embed_in .lm_head .embed_out "
    ".get_input_embeddings() .get_output_embeddings()".split()
)
_WITH_NORM = {
    ".model.layers": ".model.norm",
    ".transformer.h": ".transformer.ln_f",
    ".gpt_neox.layers": ".gpt_neox.final_layer_norm",
}
"""Lists of blocks behind which language models of Transformers have one more norm, and the norm."""


def _left_by_library(
    trace: Trace, root: Value, parts: list[Shard]
) -> Iterable[tuple[Value, str, Guards]] | None:
    """What a model of Transformers surely holds beside its blocks, and beside its embeddings and head, and on which
    path it is in no group; None when it is not known what the groups are.
    """
    blocks = [part for part in parts if _holds_blocks_only(trace, part, root)]
    others = [part for part in parts if part not in blocks]
    known = _ends(root) | {(norm, root) for norm in _WITH_NORM.values()}
    if not blocks or not all(path_below(one.module) in known for one in others):
        return () if not others else None
    held = {path_below(one.module.owner)[0] for one in blocks if one.module.owner is not None}
    norm = next((_WITH_NORM[name] for name in _WITH_NORM if name in held), None)
    left: list[tuple[Value, str, Guards]] = []
    if norm is not None and (others or held):
        of_blocks = next(name for name in _WITH_NORM if name in held)
        for where in _without(others, blocks[0], {norm}):
            said = f"the norm behind `{root.words()}{of_blocks}`"
            left.append((root.part(".norm"), said, where))
    embeddings = root.part(".get_input_embeddings()")
    for where in _without(others, blocks[0], _ENDS):
        left.insert(0, (embeddings, f"`{embeddings.words()}`", where))
    return left


def _without(others: list[Shard], block: Shard, names: Collection[str]) -> Iterator[Guards]:
    """The path on which none of the modules with these names is in a group: everywhere, or where a test leaves them out."""
    clauses = set()
    for one in others:
        if path_below(one.module)[0] not in names:
            continue
        asked = one.guards.since(block.guards)
        if not asked or any(len(clause) > 1 for clause in asked):
            return
        clauses.add(frozenset(~guard for clause in asked for guard in clause))
    yield Guards(frozenset(clauses))


def _ends(root: Value) -> set[tuple[str, Value]]:
    return {(one, root) for one in _ENDS}


def _groups_as_roots(trace: Trace, models: set[Value]) -> Iterator[Finding]:
    """Groups of several modules that compute with nothing sharded above them, in other ``models`` than those."""
    said: set[CSTNode] = set()
    for group in trace.of(Sharded):
        modules = [unwrapped(one) for one in group.modules]
        if group.at.node in said or trace.truncated or not _are_several(trace, group):
            continue
        above = {s.module for s in shards(trace) if s.module not in modules} | models
        if any(trace.inside(one, whole) for one in modules for whole in above):
            continue
        forward = _first_alone(trace, group, modules)
        if forward is None:
            continue
        each = (_ways_unsharded(trace, group, made, forward) for made in _made(trace, group))
        ways = next(filter(None, each), ())
        if not ways:
            continue
        said.add(group.at.node)
        yield Finding(
            at=group,
            message=f"{_names(group)} are one group and no module above them is sharded: its first forward raises "
            f"RuntimeError, because a root has to be a single module{on_paths(forward, ways)}",
            because=((forward, "the group computes here"),),
            fix=_above(trace, group, modules),
        )


def _are_several(trace: Trace, group: Sharded) -> bool:
    """Whether a list has surely two modules or more, none of them in another."""
    modules = [unwrapped(one) for one in group.modules]
    if any(one is not other and trace.inside(one, other) for one in modules for other in modules):
        return False
    call = call_of(group.at)
    given = None if call is None else first_argument(call)
    if isinstance(given, cst.List | cst.Tuple):
        written = [one for one in given.elements if isinstance(one, cst.Element)]
        return len({group.at.source.code(one.value) for one in written}) > 1
    if len(modules) < 2 or not isinstance(given, cst.Name) or not _keeps_all(group.at, given.value):
        return False
    return len(set(_listed(trace, group))) > 1


def _keeps_all(site: Site, name: str) -> bool:
    """Whether each list that a function gives a name is written out, or leaves out nothing but None."""
    layout = Layout.of(site.source)
    around = (a for a in layout.ancestors(site.node) if isinstance(a, cst.FunctionDef | cst.Module))
    given = [
        one.value
        for one in walk(next(around))
        if isinstance(one, cst.Assign)
        and any(isinstance(t.target, cst.Name) and t.target.value == name for t in one.targets)
    ]
    return bool(given) and all(isinstance(one, cst.List) or _drops_none(one) for one in given)


def _drops_none(node: cst.BaseExpression) -> bool:
    """``[m for m in modules if m is not None]``."""
    if not isinstance(node, cst.ListComp) or node.for_in.inner_for_in is not None:
        return False
    asked = [one.test for one in node.for_in.ifs]
    return all(
        isinstance(test, cst.Comparison)
        and test.left.deep_equals(node.elt)
        and [type(one.operator) for one in test.comparisons] == [cst.IsNot]
        for test in asked
    )


def _listed(trace: Trace, group: Sharded) -> list[Value]:
    """The modules of a list that has a name; none where one of them may be one of several."""
    for called in trace.of(Called):
        if called.at.node is group.at.node and called.guards == group.guards:
            given = called.argument(0, "module")
            held = [] if given is None else [v for _, v in trace.memory.entries(given)]
            if all(isinstance(one, Module) and one in group.modules for one in held):
                return held
    return []


def _first_alone(trace: Trace, group: Sharded, modules: list[Value]) -> Forward | None:
    """The first forward of one of the modules, or of the model of Transformers that they are of."""
    for forward in trace.after(group, Forward):
        module = unwrapped(forward.module)
        if forward.how != "call" or not trace.precedes(group, forward):
            continue
        if module in modules or (
            is_transformer(module) and any(trace.inside(one, module) for one in modules)
        ):
            return forward
    return None


def _made(trace: Trace, group: Sharded) -> Iterator[Guards]:
    """What must hold where a group is made, or one of another composition: both sides of a test may make one."""
    yield group.guards
    for other in trace.of(Sharded):
        here, there = group.guards.since(other.guards), other.guards.since(group.guards)
        opposite = {frozenset(~guard for guard in clause) for clause in here if len(clause) == 1}
        if len(here) == 1 and there == opposite and _are_several(trace, other):
            either = group.guards.clauses & other.guards.clauses
            yield Guards(either, survived=group.guards.survived & either)


def _ways_unsharded(trace: Trace, group: Sharded, made: Guards, forward: Forward) -> Ways:
    """The paths to a forward on which no code that cannot be followed gets what holds the group, once it is sharded."""
    module = unwrapped(group.module)
    holders = trace.holders(module)
    if any(holder in trace.memory.foreign for holder in holders):
        return ()
    unseen: list[Event] = [e for e in trace.of(Escaped) if e.value in holders]
    unseen += [
        called
        for called in trace.of(Called)
        if isinstance(called.result, Unknown)
        and not gives_no_values(called)
        and any(
            one in holders
            for given in (*called.arguments, *called.keywords.values())
            for one in options(given)
        )
    ]
    between = [one for one in unseen if group.order < one.order < forward.order]
    return ways_around(trace, forward, between, module, made)


def _names(group: Sharded) -> str:
    call = call_of(group.at)
    given = None if call is None else first_argument(call)
    if not isinstance(given, cst.List | cst.Tuple):
        return f"these {len(group.modules)} modules"
    return " and ".join(f"`{group.at.source.code(one.value)}`" for one in given.elements)


def _above(trace: Trace, group: Sharded, modules: list[Value]) -> Fix | None:
    """The one module that holds all of them, sharded below the group."""
    holders = [
        one
        for one in trace.memory.holders(modules[0])
        if isinstance(one, Module)
        and one not in modules
        and all(trace.inside(module, one) for module in modules)
    ]
    shard = next(one for one in shards(trace) if one.event is group)
    return _root_call(trace, shard, holders[-1]) if holders else None


def _never_whole(trace: Trace, root: Value, parts: list[Shard]) -> tuple[list[Shard], Guards]:
    """The parts of a model that are sharded on a path on which the whole is not, and what must hold there."""
    whole = [s for s in shards(trace) if trace.inside(root, s.module)]
    if not whole:
        return parts, Guards(frozenset())
    for part in parts:
        way = Guards(
            frozenset(
                clause
                for clause in part.guards.clauses - part.guards.survived
                if all(is_choice_of_the_run(trace, guard, root) for guard in clause)
            )
        )
        if all(s.guards.excludes(way) for s in whole):
            return [one for one in parts if not one.guards.excludes(way)], way
    return [], Guards(frozenset())


def _covered(trace: Trace, parts: list[Shard]) -> list[Value] | None:
    """The modules in groups of their own; None when a loop may have reached any."""
    found: list[Value] = []
    known = [shard.module for shard in parts if isinstance(shard.module, Module)]
    for shard in parts:
        if any(one is not shard.module and trace.inside(shard.module, one) for one in known):
            continue  # that one takes all that is in it
        walk = walk_of(trace, shard, at_most=True)
        if walk is not None:
            found += reached(trace, walk)
        elif isinstance(shard.module, Part):
            whole = _whose_children(shard.module)
            if whole is None:
                return None
            found += parts_of(trace, whole)
        else:
            found.append(shard.module)
    return found


def _whose_children(element: Value) -> Value | None:
    """The module of whose direct children a walk takes one: it takes no others."""
    seen = element.owner if isinstance(element, Part) and element.key == "[1]" else element
    if not isinstance(seen, Part) or not isinstance(seen.key, Round):
        return None
    walked = seen.owner
    direct = isinstance(walked, Part) and walked.key in (".children()", ".named_children()")
    return unwrapped(walked.owner) if direct and walked.owner is not None else None


def _uncovered(
    trace: Trace,
    module: Value,
    covered: list[Value],
    forward: Forward,
    way: Guards,
    depth: int = 6,
) -> Iterator[Value]:
    """The layers with parameters below ``module``, and parameters of a module's own, that are in no group on a path."""
    if depth == 0 or any(module is c for c in covered) or not _is_made(trace, module, way):
        return
    yield from _own_parameters(trace, module, forward)
    children = parts_of(trace, module)
    for child in children:
        yield from _uncovered(trace, child, covered, forward, way, depth - 1)
    if not children and has_parameters(trace, module):
        yield module


def _given(called: Called) -> tuple[Value | None, ...]:
    return (called.receiver, *called.arguments, *called.keywords.values())


def _is_made(trace: Trace, module: Value, way: Guards) -> bool:
    """Whether a module may be built on a path."""
    made = [
        called.guards
        for called in (trace.of(Called) if way.clauses else ())
        if called.result is module and module not in _given(called)
    ]
    return not made or not all(guards.excludes(way) for guards in made)


def _own_parameters(trace: Trace, module: Value, forward: Forward) -> Iterator[Value]:
    """The trained parameters that a module surely holds itself: ``self.scale = nn.Parameter(…)``."""
    held = [v for _, v in trace.memory.entries(module, forward.guards)]
    if not any(class_name(value) == _PARAMETER for value in held):
        return
    for made in trace.calls(_PARAMETER):
        switch = made.argument(1, "requires_grad")
        trained = switch is None or (isinstance(switch, Literal) and switch.value is True)
        if made.result in held and trained and together(made.guards, forward.guards):
            yield made.result


def _holds_blocks_only(trace: Trace, part: Shard, model: Value) -> bool:
    """Whether a group is a block of a model of Transformers: from its list, or by what such classes are called."""
    if is_block_of(part.module, model):
        return True
    walk = walk_of(trace, part, at_most=True)
    return walk is not None and walk.root is model and all(map(_is_block_class, walk.classes))


def _is_block_class(cls: Value | str) -> bool:
    """``GPTNeoXLayer``, ``LlamaDecoderLayer``, ``GPT2Block``: none of them holds the embeddings."""
    name = cls if isinstance(cls, str) else cls.words()
    return name.endswith(("Layer", "Block")) and "Embed" not in name


def _root_call(trace: Trace, part: Shard, root: Value) -> Fix | None:
    """``fully_shard(root)`` below the loop or the call that shards its last part."""
    site = part.event.at
    call = call_of(site)
    argument = None if call is None else first_argument(call)
    if call is None or argument is None or stands_alone(site) is None:
        return None
    layout = Layout.of(site.source)
    loop = next(
        (a for a in layout.ancestors(site.node) if isinstance(a, cst.For | cst.FunctionDef)), None
    )
    whole = loop.iter if isinstance(loop, cst.For) else argument
    name = _owner(trace, site, whole, root, part)
    if not name:
        return None
    below = loop if isinstance(loop, cst.For) else call
    text = f"{site.source.code(call.func)}({name}{further_arguments(site, call)})"
    return Fix("shard the root too", (InsertAfter(site.source, below, text),), "safe")


def _owner(trace: Trace, site: Site, node: cst.BaseExpression, root: Value, part: Shard) -> str:
    """What the script calls ``root`` in an expression for its parts: ``model`` in ``model.blocks``."""
    if isinstance(node, cst.List | cst.Tuple) and node.elements:
        node = node.elements[0].value  # `[model.norm, model.head]`
    while isinstance(node, cst.Call):
        if node.args and isinstance(node.func, cst.Name):
            node = node.args[0].value  # reversed(…), list(…), enumerate(…)
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in ("values", "items"):
            node = node.func.value
        elif isinstance(node.func, cst.Attribute):
            walk = walk_of(trace, part)
            known = walk is not None and walk.root is root
            return path_text(site, node.func.value) if known else ""
        else:
            return ""
    if isinstance(node, cst.Subscript):
        return path_text(site, node.value) if part.module in parts_of(trace, root) else ""
    if not isinstance(node, cst.Attribute):
        return ""
    held = trace.memory.read(root, f".{node.attr.value}", part.guards)
    inside = held is not None and trace.inside(part.module, held)
    return path_text(site, node.value) if inside else ""
