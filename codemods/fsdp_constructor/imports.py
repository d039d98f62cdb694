"""The imports that go with the last use of a name of FSDP1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsdp2lint.api import SYMBOLS, Edit, Names, Program, Source, Unimport

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
            level = len(one.target) - len(one.target.lstrip("."))
            module, _, last = one.target[level:].rpartition(".")
            path = program.project.resolve(module, level, other) if last == name else None
            if path and program.project.source(path) is source:
                return True
    return False
