"""Wrap policies of FSDP1 as tests of a loop over the modules.

Facts (torch/distributed/fsdp/wrap.py, 2.13): the policies by class and by function always recurse, so the
units are the modules for which they hold, without the root; ``size_based_auto_wrap_policy`` and
functions of the user are asked on the way down and on the way up, with the number of parameters left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Layout,
    Partial,
    Replace,
    Source,
    Value,
    children,
    dotted,
)

from .._common.names import born, class_of, external, is_none, named_once
from .._common.origins import Origin, meaning
from .blocks import Blocks, blocks_named, blocks_of
from .custom import Mapped, is_yes_or_no, mapped
from .given import WRAP, only_feeds_fsdp1
from .site import Argument, Construction, sources_of

BY_CLASS = {
    f"{WRAP}transformer_auto_wrap_policy": "transformer_layer_cls",
    f"{WRAP}_module_wrap_policy": "module_classes",
    f"{WRAP}_wrap_module_cls_individually": "module_classes",
}
MODULE_WRAP = f"{WRAP}ModuleWrapPolicy"
CUSTOM = f"{WRAP}CustomPolicy"
BY_FUNCTION = f"{WRAP}lambda_auto_wrap_policy"
EITHER = f"{WRAP}_or_policy"


@dataclass(frozen=True)
class Chosen:
    """A test of each module: ``test`` makes its text for the name of the loop's variable."""

    test: Callable[[str], str]
    classes: str = ""
    """The classes that it asks for, where it asks for nothing else."""
    loose: bool = False
    """Whether it needs parentheses beside an ``and``."""
    first: str = ""
    """A statement that comes before the loop."""
    blocks: Blocks | None = None
    """The lists of layers that it chooses, where it chooses nothing else."""


@dataclass(frozen=True)
class Asked:
    """A policy that decides on the way through the modules: ``policy`` is its text at the call."""

    policy: str
    maybe_none: bool


@dataclass(frozen=True)
class Nothing:
    """No policy: one unit."""


Policy = Chosen | Asked | Mapped | Nothing


def policy_of(site: Construction) -> Policy | str:
    """What chooses the modules; why that is not known, if so. Accounts for the argument."""
    argument = site.arguments.get("auto_wrap_policy")
    if argument is None:
        return Nothing()
    if argument.values and all(is_none(v) for v in argument.values):
        site.account(argument.node, "dropped", "without a policy the model is one unit")
        return Nothing()
    written = _written(site, argument.value)
    if written is not None:
        site.account(
            argument.node, "changed", "wrap policy replaced by a loop over the same modules"
        )
        return written
    if CUSTOM in _makers(site, argument):
        return _custom(site, argument)
    kept = _as_classes(site, argument)
    if kept is not None:
        site.account(
            argument.node, "changed", "wrap policy replaced by a loop over the same modules"
        )
        return kept
    return _asked(site, argument)


def _asked(site: Construction, argument: Argument) -> Asked:
    why = "a helper function asks the same policy in the same order"
    site.account(argument.node, "changed", why)
    for value in argument.values:
        at = born(value)
        if at is not None:
            site.account(at.node, "preserved", "kept: an ordinary function", at.source)
    found = sources_of(site, argument)
    made = found is not None and all(_makes_one(site, one) for one in found)
    maybe = not argument.values or any(is_none(v) or not _sure(v) for v in argument.values)
    maybe = (maybe and not made) or any(one.is_none for one in found or ())
    return Asked(site.flat(argument.value), maybe)


def _makes_one(site: Construction, origin: Origin) -> bool:
    """Whether an expression is a policy of FSDP1, or a call that surely returns a policy."""
    node = origin.node
    if isinstance(node, cst.Name | cst.Attribute):
        return meaning(site.program, origin.source, node).startswith(WRAP)
    made = meaning(site.program, origin.source, node.func) if isinstance(node, cst.Call) else ""
    return made == "functools.partial" or made.startswith(WRAP)


def _makers(site: Construction, argument: Argument) -> set[str]:
    """The names of what makes the policy, as far as they are known."""
    found = {class_of(value) for value in argument.values}
    for one in sources_of(site, argument) or ():
        if isinstance(one.node, cst.Call):
            found.add(meaning(site.program, one.source, one.node.func))
    return found


def _custom(site: Construction, argument: Argument) -> Mapped | str:
    """A ``CustomPolicy`` whose function gives arguments."""
    found = sources_of(site, argument) or []
    call = found[0].node if len(found) == 1 else None
    if not isinstance(call, cst.Call) or len(call.args) != 1 or found[0].source is not site.source:
        return "its policy is one of several, or made in another file"
    made = mapped(site, call.args[0].value)
    if isinstance(made, Mapped):
        site.account(argument.node, "changed", "its function gives each unit's own arguments")
        site.account(call, "changed", "its function is asked in a loop")
    return made


def _sure(value: Value) -> bool:
    """Whether a value is certainly no None."""
    return (
        isinstance(value, Partial) or bool(external(value) or class_of(value)) or callable_(value)
    )


def callable_(value: Value) -> bool:
    """Whether a value is a function of the project."""
    return type(value).__name__ in ("Function", "Bound")


# -- a policy that is written where it can be read -----------------------------------------------------------


def _written(site: Construction, node: cst.BaseExpression) -> Chosen | None:
    """The test for a policy that is written at the call, or bound once to a local name."""
    if isinstance(node, cst.Name):
        made = named_once(site.source, node)
        found = _written(site, made) if isinstance(made, cst.Call) else None
        if made is not None and found is not None:
            site.account(made, "changed", "wrap policy replaced by a loop over the same modules")
        return found
    if isinstance(node, cst.IfExp):
        return _on_condition(site, node)
    if not isinstance(node, cst.Call):
        return None
    name, args = _made(site, site.source, node)
    if name in BY_CLASS or name == MODULE_WRAP:
        classes = args.get(BY_CLASS.get(name, "module_classes"))
        return None if classes is None else _by_classes(site, classes)
    if name in (BY_FUNCTION, CUSTOM):
        function = args.get("lambda_fn")
        return None if function is None else _by_function(site, function, name == CUSTOM)
    if name == EITHER:
        return _either(site, args.get("policies"))
    return None


def _on_condition(site: Construction, choice: cst.IfExp) -> Chosen | None:
    """The test for a policy that is written in a choice between it and none."""
    if dotted(choice.orelse) == "None":
        test, policy = site.text(choice.test), choice.body
    elif dotted(choice.body) == "None":
        test, policy = f"not ({site.text(choice.test)})", choice.orelse
    else:
        return None
    found = _written(site, policy) if isinstance(policy, cst.Call) else None
    if found is None or found.first:
        return None
    if found.classes == f"tuple({test})":  # no class is no unit
        classes = f"tuple({test} or ())"
        return Chosen(lambda variable: f"isinstance({variable}, {classes})", classes)
    if isinstance(choice.test, cst.BooleanOperation | cst.IfExp | cst.Lambda | cst.NamedExpr):
        test = f"({test})" if policy is choice.body else test

    def asked(variable: str) -> str:
        inner = found.test(variable)
        return f"{test} and {f'({inner})' if found.loose else inner}"

    return Chosen(asked)


def _made(
    site: Construction, source: Source, call: cst.Call
) -> tuple[str, dict[str, cst.BaseExpression]]:
    """The policy that a call makes, directly or through ``functools.partial``, and its arguments."""
    names = {r.node: r.name for r in site.program.named(source)}
    args = list(call.args)
    name = names.get(call.func, "")
    first = "module_classes" if name == MODULE_WRAP else "lambda_fn"
    if name == "functools.partial" and args and args[0].keyword is None:
        name = names.get(args[0].value, "")
        args = args[1:]
        first = ""
    found: dict[str, cst.BaseExpression] = {}
    for arg in args:
        key = arg.keyword.value if arg.keyword is not None else first
        if arg.star or not key:
            return "", {}
        found[key] = arg.value
    return name, found


def _by_classes(site: Construction, classes: cst.BaseExpression) -> Chosen:
    text = classes_text(site.source, classes, alone=True)
    several = classes_text(site.source, classes, alone=False)
    blocks = blocks_of(site, _each_class(classes))
    return Chosen(lambda variable: f"isinstance({variable}, {text})", several, blocks=blocks)


def _each_class(classes: cst.BaseExpression) -> tuple[cst.BaseExpression, ...]:
    """The classes of a collection that is written out."""
    if isinstance(classes, cst.Call) and dotted(classes.func) == "set" and len(classes.args) == 1:
        return _each_class(classes.args[0].value)
    if not isinstance(classes, cst.Set | cst.List | cst.Tuple):
        return ()
    return tuple(one.value for one in classes.elements)


def classes_text(source: Source, classes: cst.BaseExpression, *, alone: bool) -> str:
    """The second argument of ``isinstance`` for a collection of classes; ``alone`` one class may be bare."""
    text = source.text
    layout = Layout.of(source)
    if isinstance(classes, cst.Set | cst.List | cst.Tuple) and not any(
        isinstance(e, cst.StarredElement) for e in classes.elements
    ):
        said = [text[slice(*layout.whole(e.value))] for e in classes.elements]
        if len(said) == 1:
            return said[0] if alone else f"({said[0]},)"
        return f"({', '.join(said)})"
    inner = text[slice(*layout.whole(classes))]
    if isinstance(classes, cst.Call) and dotted(classes.func) == "set" and len(classes.args) == 1:
        return classes_text(source, classes.args[0].value, alone=alone)
    return f"tuple({inner})"


def _by_function(site: Construction, function: cst.BaseExpression, custom: bool) -> Chosen | None:
    if custom and not _says_yes_or_no(function):
        return None
    if isinstance(function, cst.Lambda):
        params = function.params.params
        if len(params) != 1:
            return None
        body = function.body
        test = _substituted(site, body, params[0].name.value)
        return Chosen(test, loose=_is_loose(body), blocks=blocks_named(site, function))
    if isinstance(function, cst.Name | cst.Attribute):
        text = site.text(function)
        return Chosen(lambda variable: f"{text}({variable})")
    return None


def _substituted(site: Construction, body: cst.BaseExpression, name: str) -> Callable[[str], str]:
    """The body of a lambda with another name for its parameter."""
    layout = site.layout
    start, end = layout.whole(body)
    places = sorted(layout.span(n) for n in _read(body) if n.value == name)

    def test(variable: str) -> str:
        pieces, at = [], start
        for one, after in places:
            pieces += [site.source.text[at:one], variable]
            at = after
        text = "".join((*pieces, site.source.text[at:end]))
        return text

    return test


def _is_loose(body: cst.BaseExpression) -> bool:
    either = isinstance(body, cst.BooleanOperation) and isinstance(body.operator, cst.Or)
    return (either or isinstance(body, cst.IfExp | cst.Lambda)) and not body.lpar


def _read(node: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that an expression reads."""
    if isinstance(node, cst.Name):
        yield node
    elif isinstance(node, cst.Attribute | cst.Arg):
        yield from _read(node.value)
    else:
        for child in children(node):
            yield from _read(child)


def _says_yes_or_no(function: cst.BaseExpression) -> bool:
    """Whether the function of a ``CustomPolicy`` surely returns no dictionary."""
    return isinstance(function, cst.Lambda) and is_yes_or_no(function.body)


def _either(site: Construction, policies: cst.BaseExpression | None) -> Chosen | None:
    if not isinstance(policies, cst.List | cst.Tuple | cst.Set):
        return None
    found = [_written(site, element.value) for element in policies.elements]
    tests: list[Chosen] = [one for one in found if one is not None]
    if len(tests) != len(found) or not tests:
        return None
    return Chosen(
        lambda variable: " or ".join(one.test(variable) for one in tests), loose=len(tests) > 1
    )


# -- a policy that is made elsewhere ----------------------------------------------------------------------------


def _as_classes(site: Construction, argument: Argument) -> Chosen | None:
    """The test for policies by class that are made elsewhere: there they become tuples of the classes."""
    found = sources_of(site, argument)
    if found is None or all(one.is_none for one in found):
        return None
    made: list[tuple[Source, cst.CSTNode, str]] = []
    for one in found:
        if not one.is_none:
            text = _tuple_of_classes(site, one)
            if text is None or one.node is None:
                return None
            made.append((one.source, one.node, text))
    for source, call, text in made:
        site.elsewhere[call] = (Replace(source, call, text),)
        site.account(call, "changed", "wrap policy replaced by its module classes", source)
    text = site.text(argument.value)
    is_name = "(" not in text
    if any(one.is_none for one in found):
        text = f"{text} or ()"
    if is_name:
        return Chosen(lambda variable: f"isinstance({variable}, {text})", text)
    name = site.free("wrap_classes", "unit_classes")
    return Chosen(
        lambda variable: f"isinstance({variable}, {name})", text, first=f"{name} = {text}"
    )


def _tuple_of_classes(site: Construction, one: Origin) -> str | None:
    if not isinstance(one.node, cst.Call) or one.source not in site.program.sources:
        return None
    name, args = _made(site, one.source, one.node)
    classes = args.get(BY_CLASS.get(name, "module_classes"))
    if name not in (*BY_CLASS, MODULE_WRAP) or classes is None:
        return None
    if one.node in site.fixed or not only_feeds_fsdp1(site, one.node):
        return None
    return classes_text(one.source, classes, alone=False)
