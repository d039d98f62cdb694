"""What scripts build of the classes and functions that a recipe names: torchtune, NeMo AutoModel, Hydra.

The recipe says what is built. Its other values can be set anew by each command, so the script is followed for all of them.

Sources: torchtune/config/{_instantiate,_parse}.py (0.6), nemo_automodel/components/config/loader.py (2025),
hydra/_internal/instantiate/_instantiate2.py (1.3).
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from fsdp2lint.frameworks import recipes
from fsdp2lint.interpret.imports import Namespace, module_named
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.optim import build
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import constant, instance, is_a, made_by, text
from fsdp2lint.model.values import External, Function, Instance, Part, Partial, Unknown, Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site

INSTANTIATE = "hydra.utils.instantiate"
_SETTINGS = "omegaconf.DictConfig"
_PARSE = "torchtune.config.parse"
_HYDRA = "hydra.main"

_PATHS = ("_target_", "_component_", "target", "class_path")
"""The keys under which a recipe names what is to be built."""

_NAMES = ("instantiate", "instantiate_from_config", "build_from_config", "build_from_cfg")
_KEYS = ("_target_", "_component_", '"target"', "'target'", "class_path")

_OUTSIDE = ("torch.optim.", "nemo_automodel.", "torchtune.", "transformers.")
"""Packages of which a recipe may name something; what else it names outside the project is not known."""


# -- reading a recipe ------------------------------------------------------------------------------------------------


@calls(_HYDRA)
def hydra_main(call: Call) -> Value | None:
    """A decorator: the function that it is given gets the settings."""
    return instance(call, config_path=None, config_name=None)


def handed_to(machine: Machine, function: Function, site: Site) -> Value | None:
    """The recipe that a decorator hands to a function of the script; None where none is resolved."""
    for decorator in function.decorators:
        if isinstance(decorator, External) and decorator.name == _PARSE:
            return _launched(machine, site)
        if made_by(decorator, _HYDRA):
            path = text(machine.get(decorator, "config_path", site)) or ""
            name = text(machine.get(decorator, "config_name", site))
            folder = os.path.dirname(os.path.abspath(function.scope.source.path))
            first = None if name is None else os.path.normpath(os.path.join(folder, path, name))
            return None if first is None else _read(machine, site, partial(recipes.composed, first))
    return None


def _read(machine: Machine, site: Site, way: recipes.Way) -> Value | None:
    """The settings that are read in some way, on which the run depends from then on."""
    tree = way(machine.project.files)
    machine.recipes.append((way, tree))
    return _value(machine, tree, site)


@calls("omegaconf.OmegaConf.load")
def load(call: Call) -> Value | None:
    """The settings of a file that the script names."""
    word = text(call.get(0, "file_"))
    if word is None:
        return None
    folder = os.path.dirname(os.path.abspath(call.site.source.path))
    return _read(call.machine, call.site, partial(recipes.named, word, folder))


@calls(
    "nemo_automodel.components.config._arg_parser.parse_args_and_load_config",
    "nemo_automodel.components.config.loader.load_yaml_config",
)
def load_for_nemo(call: Call) -> Value | None:
    """The recipe that a command names, or the script's own."""
    own = text(call.get(0, "default_cfg_path") or call.keywords.get("path")) or ""
    return _launched(call.machine, call.site, own)


def _launched(machine: Machine, site: Site, own: str = "") -> Value | None:
    """What the recipes have in common by which commands launch the program that runs, and its ``own``."""
    script = os.path.abspath(machine.trace.source.path)
    return _read(machine, site, partial(recipes.launched, script, own))


@calls("omegaconf.OmegaConf.merge", "omegaconf.OmegaConf.unsafe_merge")
def merge(call: Call) -> Value | None:
    """Settings with others on top: what a recipe builds stays the same where nobody replaces it."""
    known = [one for one in call.args if _is_settings(one)]
    return known[0] if len(known) == 1 else None


def _value(machine: Machine, tree: recipes.Tree, site: Site) -> Value | None:
    """Settings as an object; its constants are only what they are by default."""
    if not tree:
        return None
    made = Instance(machine.external(_SETTINGS), site)
    machine.memory.loose.add(made)
    for name, value in tree.items():
        machine.memory.write(made, f".{name}", machine.here, _entry(machine, value, site))
    return made


def _entry(machine: Machine, value: object, site: Site) -> Value:
    if isinstance(value, dict):
        return _value(machine, value, site) or machine.unknown(site)
    if isinstance(value, list):
        return machine.container("list", [_entry(machine, one, site) for one in value], open_=True)
    return machine.literal(value)


@method("get", "pop")
def get(call: Call) -> Value | None:
    """``cfg.get("model")`` is ``cfg.model``, where the recipe has it."""
    name, settings = text(call.get(0, "key")), call.receiver
    if settings is None or not _is_settings(settings) or name is None:
        return None
    stored = call.machine.memory.read(settings, f".{name}", call.machine.here)
    return None if stored is None else call.machine.get(settings, name, call.site)


def _is_settings(value: Value | None) -> bool:
    return is_a(value, _SETTINGS)


# -- building what it names --------------------------------------------------------------------------------------


def builds_what_is_named(function: Function) -> bool:
    """Whether a function of the project builds what settings name by its path, as Hydra's ``instantiate`` does."""
    return function.name in _NAMES and any(key in function.scope.source.said for key in _KEYS)


def are_settings(value: Value) -> bool:
    """Whether a value can be settings of which such a function builds something."""
    return isinstance(value, Part | Unknown) or _is_settings(value)


@calls("torchtune.config.instantiate", INSTANTIATE, "hydra.utils.call")
def instantiate(call: Call) -> Value | None:
    """Builds what the configuration names: as a recipe says; else, what is given parameters
    (``instantiate(cfg, model.parameters())``) is an optimizer or keeps them as one does.
    """
    given = Call(call.machine, call.site, call.name, None, call.args[1:], call.keywords, call.open)
    made = _built(given, call.get(0, "config"))
    if made is not None:
        return made
    first = given.get(0, "params")
    if first is None or not given.parameters(first):
        return None
    return build(given)


@method("instantiate")
def instantiate_of_nemo(call: Call) -> Value | None:
    """``cfg.model.instantiate(…)`` of NeMo AutoModel."""
    return _built(call, call.receiver) if _is_settings(call.receiver) else None


@calls("hydra.utils.get_class", "hydra.utils.get_object", "hydra.utils.get_method")
def get_object(call: Call) -> Value | None:
    """What a path names that is in a recipe."""
    said = call.get(0, "path")
    if isinstance(said, Part) and _is_settings(said.owner):
        said = call.machine.memory.read(said.owner, said.key, call.machine.here)
    path = text(said)
    return None if path is None else _named(call.machine, path, call.site)


def _built(call: Call, settings: Value | None) -> Value | None:
    """What a recipe names, built of its other entries and what the call gives; None where it names nothing known."""
    machine = call.machine
    if settings is None or not _is_settings(settings):
        return None
    entries = {str(key)[1:]: value for key, value in machine.memory.entries(settings, machine.here)}
    path = next((text(entries[key]) for key in _PATHS if key in entries), None)
    target = None if path is None else _named(machine, path, call.site)
    if target is None:
        return None
    keywords = {
        name: _argument(call, settings, name, value)
        for name, value in entries.items()
        if name not in _PATHS and not name.startswith("_")
    }
    if constant(entries.get("_partial_")) is True:
        return Partial(target, call.args, {**keywords, **call.keywords}, True)
    return machine.call(target, call.args, {**keywords, **call.keywords}, call.site, True)


def _argument(call: Call, settings: Value, name: str, value: Value) -> Value:
    """An entry of a recipe as it is handed on: built first where it names something itself."""
    inner = Call(call.machine, call.site, call.name, None, (), {}, True)
    made = _built(inner, value)
    return made if made is not None else call.machine.get(settings, name, call.site)


def _named(machine: Machine, path: str, site: Site) -> Value | None:
    """What a dotted path names: in the project, or in a package that is known."""
    file, _, inside = path.partition(".py:")  # NeMo's ``folder/file.py:name``
    parts = (f"{file.replace('/', '.')}.{inside}" if inside else path).split(".")
    if len(parts) == 1:  # torchtune looks into the script itself
        own = machine.namespaces.get(os.path.abspath(machine.trace.source.path))
        scope = None if own is None else own.scope
        return None if scope is None else scope.read(path, machine.here)
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if machine.project.resolve(module, 0, machine.trace.source) is None:
            continue
        found = module_named(machine, module, 0)
        if not isinstance(found, Namespace):
            break
        for name in parts[end:]:
            found = machine.get(found, name, site)
        return found
    return machine.external(path) if path.startswith(_OUTSIDE) else None
