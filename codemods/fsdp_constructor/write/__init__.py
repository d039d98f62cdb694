"""The statements that shard a module, and where they go."""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import Edit, InsertAfter, InsertBefore, Names, Replace, Rewrite

from ..._common.shared import Helpers, stepped
from ..custom import Mapped
from ..helpers import FSDP, children_first, policy_helper
from ..lines import LINE, bracketed, entry, fitted, joined
from ..pieces import Pieces
from ..policies import Asked, Chosen, Nothing, Policy
from ..site import Construction
from .statement import (
    bound_between,
    follows_others,
    is_deferred,
    only_target,
    stands_alone,
)

SHORT = 30
"""Longer values get a name when several calls have them."""
_ARGUMENT = re.compile(r"#+\s*(\*{0,2}\w+\s*=(?!=)|[)\]}\s,]+$)")
"""A comment that is an argument, or the end of one, which somebody has taken out of a call."""
_PLAIN = re.compile(r"[\w.]+(\[(\w+|\"\w+\"|'\w+')\])*")


def write(site: Construction, pieces: Pieces, policy: Policy, helpers: Helpers) -> str:
    """Add the edits that make a site's call what is planned; why it cannot be done, if so."""
    layout = site.layout
    statement = layout.statement(site.call)
    writer = Writer(site, pieces, policy, helpers)
    if pieces.own and helpers.several_of_dictionaries and writer.by_function():
        return ""
    if isinstance(statement, cst.BaseCompoundStatement) or is_deferred(
        layout, site.call, statement
    ):
        return writer.deferred(statement)
    target = only_target(statement, site.call)
    if target is not None and stands_alone(layout, statement):
        writer.assigned(statement, target)
    elif isinstance(statement, cst.Expr) and statement.value is site.call:
        writer.assigned(statement, None)
    elif writer.needs_name() and follows_others(site, statement):
        return writer.deferred(statement)
    else:
        writer.in_place(statement)
    return ""


def _without_line(node: cst.CSTNode) -> bool:
    """Whether a comment behind an argument says nothing of the lines that come instead."""
    named = node.keyword.value if isinstance(node, cst.Arg) and node.keyword is not None else ""
    return named in ("sharding_strategy", "sync_module_states", "device_id", "device_mesh")


class Writer:
    """Writes the statements for one call."""

    def __init__(
        self, site: Construction, pieces: Pieces, policy: Policy, helpers: Helpers
    ) -> None:
        self.site, self.pieces, self.policy, self.helpers = site, pieces, policy, helpers
        self.shard = site.name(f"{FSDP}fully_shard")
        self.lines: list[str] = []
        self.common: list[str] = []
        """The arguments of each call, as they are written."""

    def by_function(self) -> bool:
        """Let a function of the file do what several of its calls do with dictionaries from elsewhere.

        Not where it would need names of the function around, or where comments inside the call are to be kept.
        """
        site, pieces = self.site, self.pieces
        head = f"{pieces.own} = dict("
        if not pieces.before or not pieces.before[0].startswith(head) or self._comments():
            return False
        if (
            pieces.after
            or pieces.prepare
            or pieces.shared
            or pieces.conditional
            or pieces.spread != [pieces.own]
        ):
            return False
        taken = set(site.taken)
        copy = replace(pieces, before=pieces.before[1:], root=dict(pieces.root))
        writer = Writer(site, copy, self.policy, self.helpers)
        writer._prepare("model")
        lines = [*writer.lines, f"return {writer._root('model')}"]
        if isinstance(site.scope, cst.FunctionDef):
            local = Names.of(site.source).bindings.get(site.scope, {}).keys() - {"model"}
            if local & set(re.findall(r"\w+", "\n".join(lines))):
                site.taken = taken
                return False
        body = "\n".join(f"    {line}" for line in joined(lines, 4).split("\n"))
        name = self.helpers.add(
            "shard_with",
            lambda name, named: (
                f"def {name}(model, {pieces.own}):\n"
                f'    """Shard a model by the keywords of a dictionary, which stays as it is."""\n'
                f"    {head}{pieces.own})\n{body}"
            ),
        )
        given = f"{site.module_text}, {pieces.before[0].removeprefix(head)[:-1]}"
        self._edit(Replace(site.source, site.call, f"{name}({given})"))
        return True

    # -- places ---------------------------------------------------------------------------------------------------

    def assigned(self, statement: cst.CSTNode, target: cst.BaseExpression | None) -> None:
        """``model = FSDP(model, …)`` and its like: the statement becomes several."""
        given = self.site.module_text
        bound = self.site.text(target) if target is not None else given
        model = given
        if target is not None and not _PLAIN.fullmatch(given) and self.needs_name():
            self.lines.append(f"{bound} = {given}")
            model = bound
        self._prepare(model)
        call = self._root(model)
        if self.pieces.after:
            self.lines += [call, *self._after(model)]
            call = model
        if bound != model:
            self.lines.append(f"{bound} = {call}")
        elif call != model:
            self.lines.append(call)
        self._replace(statement)

    def in_place(self, statement: cst.CSTNode) -> None:
        """The call is a part of its statement: what must come before comes before that."""
        model = self.site.module_text
        if not _PLAIN.fullmatch(model) and self.needs_name():
            name = self.site.free("model", "sharded_model", "net")
            self.lines.append(f"{name} = {model}")
            model = name
        self._prepare(model)
        call = self._root(model)
        if self.pieces.after:
            self.lines += [call, *self._after(model)]
            call = model
        layout = self.site.layout
        indent = layout.newline + layout.indentation(layout.line(statement))
        call = re.sub(r"\r?\n", indent, stepped(call, layout.unit))
        self._edit(Replace(self.site.source, self.site.call, call))
        if self.lines:
            text = stepped(joined(self.lines, len(indent)), layout.unit)
            self._edit(InsertBefore(self.site.source, statement, text))

    def deferred(self, statement: cst.CSTNode) -> str:
        """The call may not run, or run more than once: a function holds what must come before it."""
        model = self.site.module_text
        if not self.needs_name():
            self._prepare(model)
            self._edit(Replace(self.site.source, self.site.call, self._root(model)))
            return ""
        if isinstance(statement, cst.BaseCompoundStatement):
            return "it is in the header of a compound statement"
        name, text = self.function()
        inside = bound_between(self.site.layout, self.site.call, statement)
        if any(re.search(rf"\b{one}\b", text) for one in inside):
            return "what it is given is known only inside of an expression"
        self._edit(self.above(statement, text))
        self._edit(Replace(self.site.source, self.site.call, f"{name}({model})"))
        return ""

    def above(self, statement: cst.CSTNode, function: str) -> InsertBefore:
        """A function above a statement, a blank line between it and what comes before."""
        layout = self.site.layout
        top = layout.comments_above(layout.line(statement))
        text = function.lstrip("\n") if layout.blank_above(top) != top else function
        return InsertBefore(self.site.source, statement, text)

    def function(self, name: str = "") -> tuple[str, str]:
        """A function that shards the module that it is given, and returns it: its name and its text."""
        name = name or self.site.local(self.helpers, "shard", "shard_module")
        inside = self._unbound("module", "unit", "part")
        self._prepare(inside)
        call = self._root(inside)
        if self.pieces.after:
            self.lines += [call, *self._after(inside)]
            call = inside
        self.lines.append(f"return {call}")
        indent = len(self.site.layout.indentation(self.site.layout.line(self.site.call)))
        inner = joined(self.lines, indent + 4).split("\n")
        body = "\n".join(f"    {line}" if line else "" for line in inner)
        return name, stepped(f"\ndef {name}({inside}):\n{body}\n\n", self.site.layout.unit)

    def instead(self) -> tuple[Edit, ...]:
        """A function that shards instead of an expression: of its name, where it only gets one."""
        layout, source, call = self.site.layout, self.site.source, self.site.call
        statement = layout.statement(call)
        target = only_target(statement, call)
        if not isinstance(target, cst.Name) or not stands_alone(layout, statement):
            name, text = self.function()
            return self.above(statement, text), Replace(source, call, name)
        text = self.function(target.value)[1].strip("\n")
        indent = layout.newline + layout.indentation(layout.line(statement))
        text = re.sub(r"[ \t]+(\r?\n)", r"\1", re.sub(r"\r?\n", indent, text))
        line = layout.line(statement)
        top, bottom = layout.comments_above(line), layout.bottom(line)
        edits: list[Edit] = [Rewrite(source, statement, lambda inner: text)]
        if layout.blank_above(top) == top:
            edits.append(InsertBefore(source, statement, ""))
        if layout.blank_below(bottom) == bottom and not layout.ends_block(line):
            edits.append(InsertAfter(source, statement, ""))
        return tuple(edits)

    def _unbound(self, *wanted: str) -> str:
        """A free name that no planned statement uses either."""
        pieces = self.pieces
        lines = "\n".join((*pieces.before, *pieces.prepare, *pieces.after))
        name = self.site.free(*wanted)
        while re.search(rf"\b{name}\b", lines):
            name = self.site.free(*wanted)
        return name

    def _after(self, model: str) -> list[str]:
        return [line.replace("{model}", model) for line in self.pieces.after]

    def arguments(self, several: bool, kinds: set[bool]) -> dict[bool, list[str]]:
        """What calls are given before which nothing comes, by whether their module is a part of another."""
        self._share(several)
        found, root, name = {}, "", ""
        for part in sorted(kinds):
            text = (self.pieces.inner if part else self.pieces.root).get("mp_policy", "")
            text = text.replace(root, name) if root else text
            if several and len(text) > SHORT:
                root, wanted = text, "inner_policy" if name else "mp_policy"
                text = name = self._bind(text, wanted, "precision", "unit_policy")
            found[part] = [*([f"mp_policy={text}"] if text else []), *self.common]
        return found

    def needs_name(self) -> bool:
        """Whether the module is spoken of more than once."""
        pieces = self.pieces
        more = (pieces.before, pieces.first, pieces.prepare, pieces.after, pieces.conditional)
        return any(more) or not isinstance(self.policy, Nothing)

    def _edit(self, edit: Edit) -> None:
        self.site.edits.append(edit)

    def _replace(self, statement: cst.CSTNode) -> None:
        layout = self.site.layout
        indent = layout.indentation(layout.line(statement))
        text = joined([*self._comments(), *self.lines], len(indent)).removeprefix("\n")
        text = stepped(text, layout.unit)
        text = re.sub(r"[ \t]+\n", "\n", re.sub(r"\r?\n", "\n" + indent, text))
        text = text.replace("\n", layout.newline)
        self._edit(Rewrite(self.site.source, statement, lambda inner: text))

    def _comments(self) -> list[str]:
        """The comments inside the call that do not speak of what goes, beside it or right above it, and are no arguments."""
        source = self.site.source
        whole = source.range(self.site.call)
        comments = [
            one
            for one in source.comments
            if (whole.line, whole.column)
            < (one.line, one.column)
            < (whole.end_line, whole.end_column)
        ]
        alone = {c.line for c in comments if source.lines[c.line - 1].lstrip().startswith("#")}
        lines = {c.line for c in comments if c.line in alone and _ARGUMENT.match(c.text)}
        for account in self.site.accounts:
            at = source.range(account.node)
            if account.source is source and _without_line(account.node):
                lines.add(at.end_line)
            if account.fate == "dropped" and account.source is source:
                first = at.line
                while isinstance(account.node, cst.Arg) and first - 1 in alone:
                    first -= 1
                lines |= set(range(first, at.end_line + 1))
        return [one.text for one in comments if one.line not in lines]

    def _prepare(self, model: str) -> None:
        """All statements before the last sharding."""
        pieces = self.pieces
        self.lines += (line.replace("{model}", model) for line in pieces.before)
        loops = bool(pieces.first) or not isinstance(self.policy, Nothing)
        self._share(loops)
        if not loops:
            return
        inner = pieces.inner.get("mp_policy", "")
        if inner and not _PLAIN.fullmatch(inner):
            same = pieces.root["mp_policy"] == inner
            inner = self._bind(inner, "inner_policy", "unit_policy")
            pieces.root["mp_policy"] = inner if same else pieces.root["mp_policy"]
        pieces.inner = {"mp_policy": inner} if inner else {}
        if isinstance(self.policy, Chosen):
            self._loop(model, self.policy)
        elif isinstance(self.policy, Asked):
            self._ask(model, self.policy)
        elif isinstance(self.policy, Mapped):
            self._map(model, self.policy)

    def _share(self, loops: bool) -> None:
        """The arguments that all calls have: in a dictionary when they are several."""
        pieces = self.pieces
        if (
            len(pieces.spread) == 1
            and re.fullmatch(r"\w+", pieces.spread[0])
            and not pieces.conditional
        ):
            self.common = [*(f"{k}={v}" for k, v in pieces.shared.items()), f"**{pieces.spread[0]}"]
        elif pieces.conditional or (pieces.spread and (loops or pieces.shared)):
            self._in_dictionary()
        elif pieces.spread:
            self.common = [f"**{one}" for one in pieces.spread]
        elif len(pieces.shared) > 1 and loops:
            self._in_dictionary()
        else:
            for name, value in pieces.shared.items():
                if loops and len(value) > SHORT:
                    value = self._bind(value, name, f"fsdp_{name}")
                self.common.append(f"{name}={value}")

    def _in_dictionary(self) -> None:
        pieces = self.pieces
        said = [f'"{name}": {value}' for name, value in pieces.shared.items()]
        said += [f"**{one}" for one in pieces.spread]
        text = bracketed("{", said, "}", len("fsdp_kwargs = "))
        if not pieces.shared and len(pieces.spread) == 1:
            text = pieces.spread[0]
        name = self._bind(text, "fsdp_kwargs", "shard_kwargs")
        for test, key, value in pieces.conditional:
            self.lines += [f"if {test}:", f'    {name}["{key}"] = {value}']
        self.common = [f"**{name}"]

    def _bind(self, text: str, *names: str) -> str:
        name = self.site.free(*names)
        self.lines.append(fitted(f"{name} = {text}"))
        return name

    def _loop(self, model: str, policy: Chosen) -> None:
        if policy.blocks is not None and not self.pieces.first:
            for path in policy.blocks.singles:
                self.lines += (
                    one.removeprefix("    ") for one in self._unit(model + path, self.pieces.inner)
                )
            if not policy.blocks.paths:
                return
            block = self.site.free(*policy.blocks.names)
            self.lines.append(f"for {block} in {policy.blocks.each(model)}:")
            self.lines += self._unit(block, self.pieces.inner)
            return
        module = self.site.free("module", "submodule", "layer", "child")
        lines = []
        if policy.first:
            self.lines.append(policy.first)
        for classes, options, given in self.pieces.first:
            own = {k: self._bind(v, "fp32_policy", "norm_policy") for k, v in options.items()}
            test = f"isinstance({module}, {classes})"
            lines += [f"if {given} and {test}:" if given else f"if {test}:"]
            lines += self._unit(module, own)
        word = "elif" if lines else "if"
        chosen = policy.test(module)
        if policy.classes.startswith("tuple("):  # made once: what it is made of may be an iterator
            name = self._bind(policy.classes, "wrap_classes", "unit_classes")
            chosen = f"isinstance({module}, {name})"
        if len(chosen) > LINE - len(f"        if  and {module} is not {model}:"):
            name = self.site.free("chosen", "is_unit")
            lines.insert(0, f"{name} = {chosen}")
            chosen = name
        elif policy.loose:
            chosen = f"({chosen})"
        lines += [f"{word} {chosen} and {module} is not {model}:"]
        lines += self._unit(module, self.pieces.inner)
        each = f"reversed(list({model}.modules()))"
        if self.pieces.draws:
            each = f"dict.fromkeys({self.helpers.add('children_first', children_first)}({model}))"
        self.lines.append(f"for {module} in {each}:")
        self.lines += (f"    {line}" for line in lines)

    def _map(self, model: str, policy: Mapped) -> None:
        """Each module has arguments of its own."""
        if self.pieces.first:
            self._first(model)
        module = self.site.free("module", "submodule", "layer", "child")
        chosen = self.site.free("chosen", "own_kwargs")
        said = [*(f'"{k}": {v}' for k, v in self.pieces.inner.items())]
        said += [one if one.startswith("**") else entry(one) for one in self.common]
        given = self._bind(f"{{{', '.join(said)}}}", "unit_kwargs", "inner_kwargs")
        lines = [
            f"for {module} in reversed(list({model}.modules())):",
            f"    {chosen} = {policy.function}({module})",
            f"    if {chosen} and {module} is not {model}:",
            f"        {chosen} = {{}} if {chosen} is True else {chosen}",
            *(f"        {one.replace('{module}', module)}" for one in self.pieces.prepare),
            f"        {self.shard}({module}, **{{**{given}, **{chosen}}})",
        ]
        self.lines += lines

    def _unit(self, module: str, own: dict[str, str]) -> list[str]:
        prepared = [line.replace("{module}", module) for line in self.pieces.prepare]
        call = self._call(module, own, indent=8)
        return [f"    {line}" for line in (*prepared, *call.split("\n"))]

    def _call(self, module: str, own: dict[str, str], indent: int = 0) -> str:
        arguments = [*(f"{k}={v}" for k, v in own.items()), *self.common]
        return bracketed(f"{self.shard}(", [module, *arguments], ")", indent)

    def _ask(self, model: str, policy: Asked) -> None:
        """A small function asks the policy which modules to shard."""
        mixed = "mp_policy" in self.pieces.root
        ignored = self.pieces.shared.get("ignored_params", "")
        asked = policy.policy
        twice = policy.maybe_none and not _PLAIN.fullmatch(asked)
        if twice or "\n" in asked or (" " in asked and len(asked) > SHORT + 20):
            asked = self._bind(asked, "policy", "wrap_policy")
        helper = self.helpers.add("shard_by_policy", policy_helper(mixed, bool(ignored)))
        own = [f"{k}={v}" for k, v in self.pieces.inner.items()]
        if self.pieces.first:
            start = len(self.lines)
            self._first(model)
            if policy.maybe_none:  # without a policy FSDP1 makes no units of its own of them either
                start = next(
                    i
                    for i, one in enumerate(self.lines)
                    if i >= start and one.startswith(("for ", "if "))
                )
                inside = [f"    {one}" for one in self.lines[start:]]
                self.lines[start:] = [f"if {asked} is not None:", *inside]
        if self.pieces.prepare:
            shard = self._local(own)
        elif own or self.common:
            partial = self.site.name("functools.partial")
            shard = f"{partial}({', '.join([self.shard, *own, *self.common])})"
            if len(shard) > SHORT + 20:
                shard = self._bind(shard, "shard", "shard_unit")
        else:
            shard = self.shard
        call = f"{helper}({', '.join(x for x in (model, asked, shard, ignored) if x)})"
        if policy.maybe_none:
            self.lines += [f"if {asked} is not None:", f"    {call}"]
        else:
            self.lines.append(call)

    def _first(self, model: str) -> None:
        module = self.site.free("module", "submodule", "layer", "child")
        for classes, options, given in self.pieces.first:
            own = {k: self._bind(v, "fp32_policy", "norm_policy") for k, v in options.items()}
            lines = [f"if isinstance({module}, {classes}):", *self._unit(module, own)]
            lines = [f"for {module} in {model}.modules():", *(f"    {line}" for line in lines)]
            if given:
                lines = [f"if {given}:", *(f"    {line}" for line in lines)]
            self.lines += lines

    def _local(self, own: list[str]) -> str:
        """A function that prepares and shards one module."""
        name = self.site.local(self.helpers, "shard", "shard_unit")
        module = self.site.free("unit", "part")
        prepared = [line.replace("{module}", module) for line in self.pieces.prepare]
        call = f"{self.shard}({', '.join([module, *own, *self.common])})"
        body = (f"    {one}" for one in (*prepared, call))
        self.lines += ["", f"def {name}({module}):", *body, ""]
        return name

    def _root(self, model: str) -> str:
        """The call for the module itself, with what is prepared for it above."""
        self.lines += (line.replace("{module}", model) for line in self.pieces.prepare)
        return self._call(model, self.pieces.root)
