"""Options of the command line: what ``choices`` of ``argparse`` refuses, no run has.

parser.add_argument("--engine", choices=["ddp", "fsdp"], default="fsdp")
args = parser.parse_args()
if args.engine == "fsdp": ...
elif args.engine == "ddp": ...
else: ...                                       no run comes here
"""

from __future__ import annotations

from fsdp2lint.meanings.call import UNKNOWN, Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import exact, fresh, name_of, nothing, text
from fsdp2lint.model.values import Instance, Literal, OneOf, Value

_NOT_ONE = ("action", "nargs")
"""What makes an option give a list, a flag or nothing that ``choices`` was asked about."""


class Parser(Instance):
    """A parser, and the constants that each of its options can give; none where it may be another."""

    __slots__ = ("options",)

    def __init__(self, call: Call) -> None:
        super().__init__(call.machine.external(call.name), call.site)
        self.options: dict[str, tuple[object, ...]] = {}

    def add(self, name: str, constants: tuple[object, ...]) -> None:
        """One of its options; the same name is added again on another path, or by another command."""
        known = self.options.setdefault(name, constants)
        both = tuple(dict.fromkeys((*known, *constants)))
        self.options[name] = both if known and constants else ()

    def loosen(self, *names: str) -> None:
        """These options, or all without names, may be given something else as well."""
        for name in names or tuple(self.options):
            self.options[name] = ()


@calls("argparse.ArgumentParser")
def parser(call: Call) -> Value | None:
    """A parser with no options yet."""
    return Parser(call)


@method("add_argument_group", "add_mutually_exclusive_group")
def group(call: Call) -> Value | None:
    """What is added to a group is added to its parser."""
    return call.receiver if isinstance(call.receiver, Parser) else _unless_module(call)


@method("add_subparsers")
def commands(call: Call) -> Value | None:
    """A command has options of its own, which may have the names of these."""
    if not isinstance(call.receiver, Parser):
        return None
    call.receiver.loosen()
    return fresh(call)


@method("add_argument")
def option(call: Call) -> Value | None:
    """An option, with what it takes."""
    if isinstance(call.receiver, Parser):
        name = _name(call)
        if name:
            call.receiver.add(name, _constants(call))
        else:
            call.receiver.loosen()
    return _unless_module(call)


@method("set_defaults")
def defaults(call: Call) -> Value | None:
    """Nobody asks whether a default is among the choices."""
    if isinstance(call.receiver, Parser):
        call.receiver.loosen(*(() if call.open else call.keywords))
        return nothing(call)
    return _unless_module(call)


@method("parse_args", "parse_known_args")
def parsed(call: Call) -> Value | None:
    """An object with the options as attributes."""
    made = _unless_module(call)
    given_its_own = call.open or len(call.args) > 1 or "namespace" in call.keywords
    if isinstance(call.receiver, Parser) and made is not None and not given_its_own:
        owner = made if call.name == ".parse_args" else made.part("[0]")
        for name, constants in call.receiver.options.items():
            if constants:
                owner.keep(f".{name}", OneOf(owner, f".{name}", constants))
    return made


def _unless_module(call: Call) -> Value | None:
    receiver = call.receiver
    return None if receiver is None or call.is_module(receiver) else fresh(call)


def _name(call: Call) -> str:
    """The attribute of an option: ``dest``, or its first long name; empty where it is not known."""
    if call.open:
        return ""
    if "dest" in call.keywords:
        return text(call.keywords["dest"]) or ""
    said = [text(one) for one in call.args]
    if not said or None in said:
        return ""
    names = [name for name in said if name is not None]
    first = next((name for name in names if name.startswith("--")), names[0])
    return first.lstrip("-").replace("-", "_")


def _constants(call: Call) -> tuple[object, ...]:
    """What an option can give: its choices and its default; nothing where that is not known."""
    offered = exact(call.machine, call.get(-1, "choices"))
    if not offered or any(keyword in call.keywords for keyword in _NOT_ONE):
        return ()
    constants = tuple(one.value for one in offered if isinstance(one, Literal))
    default = call.constant(-1, "default", None)
    if default is UNKNOWN or len(constants) < len(offered):
        return ()
    if default is None and (_is_positional(call) or call.constant(-1, "required") is True):
        return constants
    if isinstance(default, str) and default not in constants:
        kind = call.get(-1, "type")
        if kind is not None and name_of(kind) != "builtins.str":
            return ()  # a default in words is converted
    return constants if default in constants else (*constants, default)


def _is_positional(call: Call) -> bool:
    return bool(call.args) and not (text(call.args[0]) or "-").startswith("-")
