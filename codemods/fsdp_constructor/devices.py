"""The kind of device that a call trains on: what the text proves, else what the program says when it runs.

FSDP1 takes a device, a number or nothing for ``device_id`` and works on the CPU only when it is given
``torch.device("cpu")`` (torch/distributed/fsdp/_init_utils.py, ``_get_device_from_device_id`` and
``_check_single_device_module``). A mesh wants the kind alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import (
    Either,
    Guards,
    Layout,
    Literal,
    Program,
    Source,
    Value,
    dotted,
    walk,
)

from .._common.names import born, class_of, is_none, named_once
from .._common.origins import meaning, origins
from .site import Argument, Construction

_KINDS = ("cuda", "cpu", "xpu", "npu", "hpu", "mtia", "mps")
_GROUP = "torch.distributed.init_process_group"
_DEVICE = "torch.device"
_AVAILABLE = "torch.cuda.is_available"
_PATH = re.compile(r"[\w.]+")
_RANK = re.compile(r"^(?:\w+\.)*(?:\w+_)?rank$", re.IGNORECASE)
"""What is called a rank is a number: `torch.device` of a number is an accelerator, or raises."""


@dataclass(frozen=True)
class Device:
    """A kind of device: ``text`` is the expression for it, a string of one word where the text proves it."""

    text: str
    meant: bool = True
    """Whether the program says anything of the kind; a number that comes from elsewhere does not."""
    is_default: bool = False
    """Whether it is CUDA where there is CUDA, else the CPU, as ``fully_shard`` decides without a mesh."""

    @property
    def is_known(self) -> bool:
        """Whether every run trains on the same kind."""
        return bool(re.fullmatch(r'"\w+"', self.text))

    @property
    def is_cpu(self) -> bool:
        """Whether no run trains on an accelerator."""
        return self.text == '"cpu"'


CUDA, CPU = Device('"cuda"'), Device('"cpu"')


def device_of(site: Construction) -> Device:
    """The kind of device of a call."""
    argument = site.arguments.get("device_id")
    if argument is None:  # then FSDP1 itself wants an accelerator
        return Device(site.device) if site.device else CUDA
    argument = _unless_none(argument)
    node = named_once(site.source, argument.value) or argument.value
    if isinstance(node, cst.IfExp) and (device := _of_choice(site, node)) is not None:
        return device
    kinds = list(_kinds(site.source, node))
    others = [kind for kind in kinds if kind != "cpu"]
    chosen = any(isinstance(one, cst.IfExp) for one in _with_names(site.source, node))
    if kinds and not others and not chosen:
        return CPU
    if "cpu" in kinds:
        return Device(_asked(site, argument), is_default=_is_default(site))
    if others and len(set(others)) == 1:
        return Device(f'"{others[0]}"')
    return _of_origins(site, argument)


def _unless_none(argument: Argument) -> Argument:
    """Without the side of a choice that is None: there FSDP1 wants the accelerator that is the current device."""
    choice = argument.value
    if not isinstance(choice, cst.IfExp):
        return argument
    given = [one for one in (choice.body, choice.orelse) if dotted(one) != "None"]
    values = tuple(one for one in argument.values if not is_none(one))
    return replace(argument, value=given[0], values=values) if len(given) == 1 else argument


def _of_choice(site: Construction, choice: cst.IfExp) -> Device | None:
    """The kind, where a choice between two devices that each name one is written at the call."""
    kinds = [_kinds_of(site.source, one) for one in (choice.body, choice.orelse)]
    if kinds == [{"cuda"}, {"cuda"}]:
        return CUDA
    if kinds != [{"cuda"}, {"cpu"}]:
        return None
    test = choice.test
    asked = isinstance(test, cst.Call) and meaning(site.program, site.source, test.func)
    return Device(f'"cuda" if {site.text(test)} else "cpu"', is_default=asked == _AVAILABLE)


def _of_origins(site: Construction, argument: Argument) -> Device:
    """The kind, where the expression itself names none."""
    value = argument.value
    made = list(_made(site, value))
    if any(one is None for one in made) or not made:
        is_set = _is_set(site, argument)
        if is_set or _is_number(site, argument) or uses_nccl(site.program) or _is_current(made):
            return CUDA
        return Device(_asked(site, argument), _is_device(site, argument), _is_default(site))
    kinds = {kind for one in made if one is not None for kind in _kinds_of(*one)}
    if kinds == {"cpu"}:
        return CPU
    if len(kinds) == 1:
        kind = kinds.pop()
        return Device(_asked(site, argument)) if kind == "?" else Device(f'"{kind}"')
    meant = not kinds.isdisjoint({"?", "cpu"})
    return Device(_asked(site, argument), meant, _is_default(site))


def _is_default(site: Construction) -> bool:
    """Whether every run trains on CUDA exactly where ``torch.cuda.is_available()``.

    So does ``fully_shard`` without a mesh (torch/distributed/fsdp/_fully_shard/_fsdp_init.py,
    ``_init_default_mesh``).
    """
    given = [event.options.get("device_id") for _, event in site.events]
    return bool(given) and all(one is not None and _follows_cuda(site, one) for one in given)


def _follows_cuda(site: Construction, value: Value) -> bool:
    cases = value.apart() if isinstance(value, Either) else ((Guards(), value),)
    for guards, one in cases:
        at = born(one)
        if at is None or not isinstance(at.node, cst.Call):
            return False
        asked = [guard.taken for guard in guards if guard.test.words() == f"{_AVAILABLE}()"]
        kinds = _kinds_of(at.source, at.node)
        if kinds == {"cuda"} and asked == [True]:
            continue
        if kinds == {"cpu"} and asked == [False]:
            continue
        if kinds != {"cuda", "cpu"} or not _chooses_cuda(site.program, at.source, at.node):
            return False
    return True


def _chooses_cuda(program: Program, source: Source, made: cst.Call) -> bool:
    """Whether ``torch.device("cuda" if torch.cuda.is_available() else "cpu")`` or its like makes it."""
    first = named_once(source, made.args[0].value) or made.args[0].value
    if not isinstance(first, cst.IfExp) or _kind_of(source, first.orelse) != "cpu":
        return False
    test = named_once(source, first.test) or first.test
    return isinstance(test, cst.Call) and meaning(program, source, test.func) == _AVAILABLE


def is_cpu(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression names the CPU and nothing else."""
    return _kinds_of(source, node) == {"cpu"}


def _kinds_of(source: Source, node: cst.BaseExpression) -> set[str]:
    """The kinds that an expression can be; what nobody can say is ``?``."""
    if isinstance(node, cst.Call) and dotted(node.func) == _DEVICE and node.args:
        first = named_once(source, node.args[0].value) or node.args[0].value
        chosen = [first.body, first.orelse] if isinstance(first, cst.IfExp) else [first]
        return {_kind_of(source, one) for one in chosen}
    return {_kind_of(source, node)}


def _kind_of(source: Source, node: cst.BaseExpression) -> str:
    text = source.code(node)
    said = re.match(r"""[frbu]*["'](\w+)[:"']""", text)
    if said is not None:
        return said[1] if said[1] in _KINDS else "?"
    if isinstance(node, cst.Integer | cst.BinaryOperation) or text.startswith("int("):
        return "cuda"
    module = re.match(r"torch\.(\w+)\.", text)
    if module is not None and module[1] in _KINDS:
        return module[1]
    return "cuda" if text.endswith(("get_rank()", "get_node_local_rank()")) else "?"


def _made(
    site: Construction, node: cst.BaseExpression
) -> Iterator[tuple[Source, cst.BaseExpression] | None]:
    """What the device is made by, through names and the attributes of the same class; None if unknown."""
    for one in origins(site.program, site.source, node):
        if one.node is None:
            yield None
        elif isinstance(one.node, cst.Attribute) and not meaning(
            site.program, one.source, one.node
        ):
            found = list(_assigned(one.source, one.node))
            for value in found:
                for inner in origins(site.program, one.source, value):
                    yield None if inner.node is None else (inner.source, inner.node)
            if not found:
                yield None
        else:
            yield one.source, one.node


def _assigned(source: Source, attribute: cst.Attribute) -> Iterator[cst.BaseExpression]:
    """What the class around ``self.name`` gives that attribute."""
    if dotted(attribute).count(".") != 1:
        return
    around = Layout.of(source).ancestors(attribute)
    owner = next((one for one in around if isinstance(one, cst.ClassDef)), None)
    for node in walk(owner) if owner is not None else ():
        if isinstance(node, cst.Assign):
            for target in node.targets:
                if dotted(target.target) == dotted(attribute):
                    yield node.value


def _is_set(site: Construction, argument: Argument) -> bool:
    """Whether the function makes the same value CUDA's current device, under no condition."""
    text, body = site.text(argument.value), getattr(site.scope, "body", ())
    for statement in getattr(body, "body", body):
        said = site.source.code(statement).strip() if _PATH.fullmatch(text) else ""
        if said.endswith(f"cuda.set_device({text})"):
            return True
    return False


def _is_number(site: Construction, argument: Argument) -> bool:
    """Whether the argument is a number in every run, or is annotated so: an accelerator's."""
    values = [one for one in argument.values if not is_none(one)]
    if values and all(isinstance(one, Literal) and isinstance(one.value, int) for one in values):
        return True
    if _RANK.search(site.text(argument.value)):
        return True
    scope = site.scope
    if not isinstance(argument.value, cst.Name) or not isinstance(scope, cst.FunctionDef):
        return False
    for one in (*scope.params.params, *scope.params.kwonly_params):
        if one.name.value == argument.value.value and one.annotation is not None:
            said = site.source.code(one.annotation.annotation)
            return bool(re.fullmatch(r"int( \| None)?|(typing\.)?Optional\[int\]", said))
    return False


def _is_current(made: list[tuple[Source, cst.BaseExpression] | None]) -> bool:
    """Whether it is an accelerator's current device wherever it is known."""
    known = [_kinds_of(*one) for one in made if one is not None]
    return bool(known) and all("?" not in one and "cpu" not in one for one in known)


def _is_device(site: Construction, argument: Argument) -> bool:
    """Whether the value is a ``torch.device``, or the program treats it as one."""
    node, values = argument.value, [one for one in argument.values if not is_none(one)]
    if values and all(class_of(one) == _DEVICE for one in values):
        return True
    made = [one for one in _made(site, node) if one is not None]
    if made and all(isinstance(n, cst.Call) and dotted(n.func) == _DEVICE for _, n in made):
        return True
    text = dotted(node)
    return (
        bool(text)
        and re.search(rf"(?<![\w.]){re.escape(text)}\.type\b", site.source.text) is not None
    )


def _asked(site: Construction, argument: Argument) -> str:
    """The expression that says the kind at run time."""
    text = site.text(argument.value)
    if _PATH.fullmatch(text.removesuffix("()")) and _is_device(site, argument):
        return f"{text}.type"
    if any(is_none(one) for one in argument.values):
        text = f'{text} or "cuda"'  # without one FSDP1 wants an accelerator
    of = site.name(_DEVICE)
    if text.startswith(f"{of}("):
        return f"{text}.type"
    return f"{of}({text}).type"


def uses_nccl(program: Program) -> bool:
    """Whether every process group that the program starts is one of NCCL."""
    return program.derived(_uses_nccl)


def _uses_nccl(program: Program) -> bool:
    said = []
    for reference in program.references(_GROUP):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call):
            given = [
                arg.value
                for number, arg in enumerate(call.args)
                if (number == 0 if arg.keyword is None else arg.keyword.value == "backend")
            ]
            found = [one.node for node in given for one in origins(program, reference.source, node)]
            said.append(bool(found) and all(_says_nccl(node) for node in found))
    return bool(said) and all(said)


def _says_nccl(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.SimpleString) and "nccl" in str(node.evaluated_value)


def _kinds(source: Source, node: cst.BaseExpression) -> Iterator[str]:
    """The kinds of device that an expression names, but for those that a choice in it asks about."""
    parts = list(_with_names(source, node))
    asked = {n for one in parts if isinstance(one, cst.IfExp) for n in walk(one.test)}
    asked |= {n for one in parts if isinstance(one, cst.Comparison) for n in walk(one)}
    for one in parts:
        said = ""
        if isinstance(one, cst.SimpleString):
            said = str(one.evaluated_value).partition(":")[0]
        elif isinstance(one, cst.FormattedString):
            said = source.code(one)[2:].partition(":")[0]
        elif isinstance(one, cst.Attribute) and dotted(one).startswith("torch."):
            said = dotted(one).split(".")[1]
        if said in _KINDS and one not in asked:
            yield said


def _with_names(source: Source, node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """The parts of an expression, and of what a name that ``torch.device`` is given is bound to."""
    yield from walk(node)
    if isinstance(node, cst.Call) and len(node.args) == 1:
        made = named_once(source, node.args[0].value)
        if made is not None and dotted(node.func) == _DEVICE:
            yield from walk(made)
