"""Files of LightningCLI: the strategy in them and the LightningModule change together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import libcst as cst

from fsdp2lint.api import (
    LIGHTNING_BY_HAND,
    LIGHTNING_NEEDS_CODE,
    Account,
    CliStrategy,
    Edit,
    Layout,
    Program,
    Respelling,
    SettingsChange,
    SettingsMapping,
    Source,
    Step,
    cli_strategy,
    inventory,
    name_for,
    settings_left,
    settings_of,
)

from .._common.lightning import (
    STRATEGY,
    TRAINER,
    Module,
    classes_at_top,
    configure_model,
    lightning_modules,
    older_lightning,
)

_CLI = "lightning.pytorch.cli.LightningCLI"
_WITH_THE_MODULE = (
    "migrate this file together with the Python files of its LightningModule, or {by_hand}"
)

Planned = tuple[Source, CliStrategy]


def of_the_cli(program: Program) -> Iterator[Step | Respelling]:
    """Files of LightningCLI that ask for FSDP1."""
    older = older_lightning(program)
    of_modules: dict[cst.ClassDef, tuple[Module, list[Planned]]] = {}
    for text in program.texts:
        asked = settings_of(text)
        if asked is None or asked.framework != "Lightning" or asked.version == 2:
            continue
        plan = cli_strategy(asked, text.text, json=text.path.endswith(".json"))
        module = None if isinstance(plan, SettingsChange) else _module_of(program, plan.model)
        if older is not None:
            yield as_respelling(text, settings_left(asked, *older))
        elif isinstance(plan, SettingsChange):
            yield as_respelling(text, plan)
        elif module is None:
            yield _left(
                text, LIGHTNING_NEEDS_CODE, _WITH_THE_MODULE.format(by_hand=LIGHTNING_BY_HAND)
            )
        elif not (_has_class_path(text) or any(True for _ in program.references(_CLI))):
            yield _left(text, "no script that calls LightningCLI is among these files")
        else:
            of_modules.setdefault(module[1], (module, []))[1].append((text, plan))
    for module, planned in of_modules.values():
        yield from _together(program, module, planned)


def as_respelling(text: Source, change: SettingsChange) -> Respelling:
    """A change of a settings file as the engine makes it."""
    fate: Literal["changed", "dropped", "preserved"] = (
        "changed" if change.fate == "manual" else change.fate
    )
    start, end, said, what, _, why, todo = change
    return Respelling(text, start, end, said, what, why, todo, fate, "setting")


def _left(text: Source, why: str, todo: str = LIGHTNING_BY_HAND) -> Respelling:
    asked = settings_of(text)
    assert asked is not None
    return as_respelling(text, settings_left(asked, why, todo))


def _has_class_path(text: Source) -> bool:
    """Whether the strategy is written as LightningCLI reads it, and not as a word that any script may pass on."""
    asked = settings_of(text)
    return (
        asked is not None
        and asked.holder is not None
        and isinstance(asked.holder.value, SettingsMapping)
    )


def _module_of(program: Program, named: str) -> Module | None:
    """The LightningModule that a file names, or the call of LightningCLI, or that is the only one."""
    modules = lightning_modules(program)
    names = {named.rpartition(".")[2]} if named else set(_given_to_the_cli(program))
    found = [one for one in modules if not names or one[1].name.value in names]
    return found[0] if len(found) == 1 else None


def _given_to_the_cli(program: Program) -> Iterator[str]:
    """The last names of the model classes in calls of LightningCLI."""
    for reference in program.references(_CLI):
        call = Layout.of(reference.source).parents.get(reference.node)
        if not isinstance(call, cst.Call) or call.func is not reference.node:
            continue
        for number, arg in enumerate(call.args):
            named = arg.keyword.value if arg.keyword is not None else "model_class" * (number == 0)
            if named == "model_class":
                yield reference.source.code(arg.value).rpartition(".")[2]


def _together(
    program: Program, module: Module, planned: Sequence[Planned]
) -> Iterator[Step | Respelling]:
    """A LightningModule with all files that train it."""
    why, hooks = _hooks(program, module, planned)
    if why:
        yield from (_left(text, why) for text, _ in planned)
        return
    files = ", ".join(Path(text.path).name for text, _ in planned)
    said = f"`configure_model` shards the module, as the strategy in {files} did"
    account = Account(module[0], module[1].name, "changed", said, own=True)
    words = tuple(as_respelling(text, one) for text, plan in planned for one in plan.changes)
    yield Step(hooks, (account,), words)


def _hooks(
    program: Program, module: Module, planned: Sequence[Planned]
) -> tuple[str, tuple[Edit, ...]]:
    """The `configure_model` of a module, or why it gets none."""
    name = module[1].name.value
    if len({(plan.wrapped, plan.keeps) for _, plan in planned}) > 1:
        return f"the settings files shard `{name}` in different ways", ()
    if len(lightning_modules(program)) == 1 and _asks_itself(program):
        return "the script asks for FSDPStrategy, too", ()
    if any(one.kind not in ("import", "framework") for one in inventory(program)):
        return "the script asks FSDP1 for more than the strategy does", ()
    plan = planned[0][1]
    names, imports = _names(module, plan.wrapped)
    hooks = configure_model(module, names, keeps=plan.keeps)
    if hooks is None:
        return (
            f"`{name}` has a `configure_model` already, or only some of its steps call `self(…)`",
            (),
        )
    return "", (*hooks, *imports)


def _asks_itself(program: Program) -> bool:
    """Whether a trainer in the program has FSDP1 as its strategy: its module changes together with that."""
    if any(True for _ in program.references(STRATEGY)):
        return True
    calls = (Layout.of(r.source).parents.get(r.node) for r in program.references(TRAINER))
    given = (arg for call in calls if isinstance(call, cst.Call) for arg in call.args)
    values = (a.value for a in given if a.keyword is not None and a.keyword.value == "strategy")
    return any(isinstance(v, cst.SimpleString) and "fsdp" in v.value for v in values)


def _names(module: Module, paths: Sequence[str]) -> tuple[set[str], list[Edit]]:
    """How the module's file calls the classes that a settings file names by their import paths."""
    home, cls = module
    here = {line.name.value for line in home.tree.body if isinstance(line, cst.ClassDef)}
    own = {"", "__main__", Path(home.path).stem}
    names: set[str] = set()
    edits: list[Edit] = []
    for path in paths:
        place, _, last = path.rpartition(".")
        if last in classes_at_top(home) and (last not in here or place.rpartition(".")[2] in own):
            names.add(last)
        else:
            name = name_for(home, cls, path)
            names.add(name.text)
            edits += name.edits
    return names, edits
