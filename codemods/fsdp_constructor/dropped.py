"""Arguments of FSDP1 that ``fully_shard`` does not need, each with the reason, and imports that nothing needs any more.

Facts (torch/distributed/fsdp/_fully_shard, measured on torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp2lint.api import (
    SYMBOLS,
    Edit,
    Layout,
    Literal,
    Names,
    Program,
    Remove,
    Source,
    Splice,
    Unimport,
    walk,
)

from .._common.names import external, is_none
from .site import NEEDLESS, Argument, Construction


def drop(site: Construction) -> None:
    """Account for the arguments that just go."""
    for name, why in NEEDLESS.items():
        argument = site.arguments.get(name)
        if argument is not None and not argument.through:
            site.account(argument.node, "dropped", _flat(argument) or why)
    through = [one for one in site.arguments.values() if one.through]
    if through:
        names = " and ".join(f"`{one.name}`" for one in through)
        site.account(through[0].node, "dropped", f"FSDP2 needs no {names}: taken out before")
    argument = site.arguments.get("backward_prefetch")
    if argument is not None:
        site.account(argument.node, "dropped", _prefetch(argument))


def _flat(argument: Argument) -> str:
    off = [isinstance(v, Literal) and v.value is False for v in argument.values]
    if argument.name == "use_orig_params" and off and all(off):
        return "FSDP2 has no flat parameters: each keeps its name and shape"
    return ""


def _prefetch(argument: Argument) -> str:
    names = {external(v).rpartition(".")[2] for v in argument.values}
    if names and names <= {"BACKWARD_PRE"}:
        return "FSDP2 always prefetches like BACKWARD_PRE"
    if any(is_none(v) for v in argument.values) or "BACKWARD_POST" in names:
        return "FSDP2 always prefetches like BACKWARD_PRE: the same numbers, a little more memory"
    return "FSDP2 always prefetches like BACKWARD_PRE: the same numbers"


def forget(site: Construction) -> None:
    """Take the entries out of a field that nothing asks for any more, where they have lines of their own."""
    dropped = {account.node for account in site.accounts if account.fate == "dropped"}
    for argument in site.arguments.values():
        if argument.node not in dropped or len(argument.kept) != 1 or argument.is_read:
            continue
        (kept,) = argument.kept
        layout = Layout.of(kept.source)
        start, end = layout.span(argument.node)
        first, last = layout.line_start(start), layout.line_end(end)
        alone = not kept.source.text[first:start].strip() and _ends(kept.source.text[end:last])
        if alone and kept.node is not None and kept.node not in site.fixed:
            site.elsewhere[kept.node] = (Splice(kept.source, first, last, ""),)


def _ends(text: str) -> bool:
    """Whether a line ends with a comma, perhaps with a comment behind it."""
    return text.startswith(",") and text[1:].strip()[:1] in ("", "#")


def of_records(site: Construction) -> None:
    """Say what became of dictionaries of objects, whose fields the call asks for; one nothing else reads goes."""
    through = {one.node for one in site.arguments.values() if one.through}
    said = {account.node for account in site.accounts} - through
    for arg in site.call.args if isinstance(site.call, cst.Call) else ():
        if arg.star == "**" and arg in said:
            site.account(arg, "changed", "the object is asked for each of its fields")
            name = arg.value
            scope = site.scope
            named = [n for n in walk(scope) if isinstance(n, cst.Name) and n.deep_equals(name)]
            targets = [n for n in named if isinstance(site.layout.parents[n], cst.AssignTarget)]
            if len(named) == 2 and len(targets) == 1:
                statement = site.layout.parents[site.layout.parents[targets[0]]]
                site.edits.append(Remove(site.source, statement, comments="lone"))


_MODULES = ("torch.distributed.fsdp.fully_sharded_data_parallel", "torch.distributed.fsdp.api")
"""The modules inside that hold nothing but FSDP1."""


def unimports(program: Program, sources: Iterable[Source]) -> Iterator[Edit]:
    """For the names of FSDP1, and for ``functools``, which made policies: where nothing uses them any more."""
    for source in sources:
        names = Names.of(source)
        for one in names.imports:
            name = program.origin(source, one.loads, one.statement)
            made = name in ("functools", "functools.partial")
            is_old = program_name(name) in SYMBOLS or name in _MODULES
            is_old |= made and names.used(one.name, one.scope)
            if is_old and not _handed_on(program, source, one.name):
                yield Unimport(source, one.loads)


def program_name(name: str) -> str:
    """The canonical name, which the modules inside ``torch.distributed.fsdp`` share."""
    for inner in ("fully_sharded_data_parallel.", "api."):
        name = name.replace(f"torch.distributed.fsdp.{inner}", "torch.distributed.fsdp.")
    return name


def _handed_on(program: Program, source: Source, name: str) -> bool:
    """Whether another file imports the name from this one."""
    for other in program.sources:
        for one in Names.of(other).imports if other is not source else ():
            target, level = one.without_dots
            module, _, last = target.rpartition(".")
            if last == name and program.project.module_named(module, level, other) is source:
                return True
    return False
