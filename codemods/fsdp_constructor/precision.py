"""``MixedPrecision`` of FSDP1 as the policies of ``fully_shard``.

Facts (torch/distributed/fsdp/api.py, measured on torch 2.13): FSDP1 casts inputs at the root
(``cast_root_forward_inputs``) and not at the units below (``cast_forward_inputs``), so equality takes two
policies; it casts buffers to ``buffer_dtype``, which FSDP2 does not; with a wrap policy it runs batch
norms in fp32, as units of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Literal

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Edit,
    Kept,
    Layout,
    Names,
    Program,
    Replace,
    Source,
    dotted,
    name_for,
    walk,
)

from .._common.names import OFF, born, class_of, is_off, named_once
from .._common.origins import Origin, meaning, origins
from .._common.shared import Helpers
from .blocks import has_no_batch_norms, has_no_buffers
from .chosen import held_by
from .given import only_feeds_fsdp1
from .helpers import precision_helper
from .lines import reindented
from .pieces import Pieces
from .site import Argument, Construction, sources_of

OLD = "torch.distributed.fsdp.MixedPrecision"
NEW = "torch.distributed.fsdp.MixedPrecisionPolicy"
FIELDS = (
    "param_dtype",
    "reduce_dtype",
    "buffer_dtype",
    "keep_low_precision_grads",
    "cast_forward_inputs",
    "cast_root_forward_inputs",
    "_module_classes_to_ignore",
)


@dataclass(frozen=True)
class Settings:
    """A call ``MixedPrecision(…)`` and the expressions of its fields, as far as it gives them."""

    source: Source
    call: cst.Call
    fields: dict[str, cst.BaseExpression]

    def text(self, name: str) -> str:
        """The text of a field; ``None`` when it is left out."""
        node = self.fields.get(name)
        if node is None:
            return "None"
        return reindented(self.source.text[slice(*Layout.of(self.source).whole(node))])

    @property
    def inner_casts(self) -> str:
        """``cast_forward_inputs`` of the units below the root; without a ``param_dtype`` nothing is cast."""
        if self.text("param_dtype") == "None":
            return "True"
        return self.text("cast_forward_inputs").replace("None", "False")

    def policy(self, named: str) -> str:
        """The text of the same as a policy: on one line, unless one of its fields takes several."""
        said = [f"{n}={self.text(n)}" for n in FIELDS[:2] if self.text(n) != "None"]
        casts = self.text("cast_root_forward_inputs")
        if casts not in ("None", "True"):
            said.append(f"cast_forward_inputs={casts}")
        if not any("\n" in one for one in said):
            return f"{named}({', '.join(said)})"
        return f"{named}(\n" + "".join(indent(f"{one},\n", "    ") for one in said) + ")"


@dataclass(frozen=True)
class Precision:
    """The policy at the call: ``text`` of the root's; and what it does not hold."""

    text: str
    buffers: str
    """The dtype of buffers, an expression in which ``{policy}`` is the policy; or empty."""
    guard: str
    """The condition under which there is such a dtype, or any policy, if that is known at run time only."""
    inner_casts: str
    """``cast_forward_inputs`` of the units below the root."""
    test: str = ""
    """The condition under which ``text`` is the policy; else there is none."""
    run_time: str = ""
    """The function that makes the policy of settings known at run time; then ``text`` are the settings."""
    low: bool = True
    """Whether parameters may be cast: where none ever are, a batch norm needs no policy of its own."""


Units = Literal["", "by policy", "while built"]
"""How submodules are chosen that are sharded with a module: the policy makes one of each batch norm too."""


def precision(
    site: Construction, pieces: Pieces, helpers: Helpers, *, units: Units, inner: bool, below: bool
) -> str:
    """Plan the policies; why it cannot be done, if so.

    ``units`` are the submodules that are sharded with it, ``inner`` says whether the module is a part of another
    that is sharded too, ``below`` whether some of several modules are.
    """
    found = precision_of(site, pieces, helpers)
    if isinstance(found, Precision):
        place(site, pieces, found, units=units, inner=inner, below=below)
    return found if isinstance(found, str) else ""


def precision_of(site: Construction, pieces: Pieces, helpers: Helpers) -> Precision | str | None:
    """What the argument comes to; why it is not known, or None where there is none."""
    argument = site.arguments.get("mixed_precision")
    if argument is None:
        return None
    if argument.values and all(is_off(v) for v in argument.values):
        site.account(argument.node, "dropped", "without it everything stays in its own precision")
        return None
    found = _written(site, argument) or _converted(site, argument)
    if isinstance(found, str):
        return found
    if found is None:
        found = _at_run_time(site, pieces, helpers, argument)
    why = "inputs are cast at the root only, as FSDP1 does"
    if found.inner_casts == "True" and not found.run_time:
        why = "one policy for the model and its units, as under FSDP1"
    more = "; buffers are cast before" if found.buffers else ""
    if found.buffers and has_no_buffers(site):
        found, more = replace(found, buffers=""), "; the model has no buffers to cast"
    site.account(argument.node, "changed", why + more)
    return found


def place(
    site: Construction, pieces: Pieces, found: Precision, *, units: Units, inner: bool, below: bool
) -> None:
    """Plan the policies of the calls, and the casts that FSDP1 made beside them."""
    cast = found.low or found.buffers
    classes = _ignored(site) if units == "by policy" and cast else ""
    text = found.text
    if found.run_time:
        pieces.root["mp_policy"] = f"{found.run_time}({text}, is_root={not inner})"
        pieces.inner["mp_policy"] = f"{found.run_time}({text}, is_root=False)"
        low = f"{pieces.root['mp_policy']}.param_dtype"
    else:
        if (units or "{policy}" in found.buffers) and not re.fullmatch(r"[\w.]+", text):
            name = site.free("mp_policy", "precision")
            pieces.before += _bound(site, name, found)
            text = name
        elif found.test:
            text = f"{text} if {found.test} else {site.name(NEW)}()"
        inside = text
        if found.inner_casts != "True" and (units or below):
            replaced = site.name("dataclasses.replace")
            inside = f"{replaced}({text}, cast_forward_inputs={found.inner_casts})"
        pieces.root["mp_policy"] = inside if inner else text
        pieces.inner["mp_policy"] = inside
        low = f"{text}.param_dtype"
    if found.buffers:
        late = pieces.after if pieces.prepare else pieces.before
        late += _cast_buffers(site, found, text, classes)
    if classes and found.low:
        own = f"{site.name(NEW)}(param_dtype={site.name('torch.float32')}, output_dtype={low})"
        argument = site.arguments.get("mixed_precision")  # a dictionary may hold one, or none
        may_be_none = bool(found.test or found.guard) or (
            argument is None or any(is_off(v) for v in argument.values)
        )
        given = text if found.run_time else f"{text}.param_dtype"
        pieces.first.append((classes, {"mp_policy": own}, given if may_be_none else ""))


def _bound(site: Construction, name: str, found: Precision) -> list[str]:
    """Statements that bind the policy to a name."""
    if not found.test:
        return [f"{name} = {found.text}"]
    return [
        f"{name} = {site.name(NEW)}()",
        f"if {found.test}:",
        indent(f"{name} = {found.text}", "    "),
    ]


def _cast_buffers(site: Construction, found: Precision, policy: str, classes: str) -> list[str]:
    dtype, guard = (text.replace("{policy}", policy) for text in (found.buffers, found.guard))
    buffer = site.free("buffer", "tensor")
    cast = [
        f"if {buffer}.is_floating_point():",
        f"    {buffer}.data = {buffer}.to({dtype})",
    ]
    if classes:
        owner = site.free("module", "submodule", "layer")
        lines = [
            f"for {owner} in {{model}}.modules():",
            f"    if not isinstance({owner}, {classes}):",
            f"        for {buffer} in {owner}.buffers(recurse=False):",
            *(f"            {line}" for line in cast),
        ]
        site.taken.discard(owner)
    else:
        lines = [f"for {buffer} in {{model}}.buffers():", *(f"    {line}" for line in cast)]
    if guard:
        lines = [f"if {guard}:", *(f"    {line}" for line in lines)]
    return lines


def _ignored(site: Construction) -> str:
    """The classes that run in fp32 below a wrap policy, where the model can have any."""
    return "" if has_no_batch_norms(site) else site.name("torch.nn.modules.batchnorm._BatchNorm")


# -- settings that are written where they can be read ---------------------------------------------------------


def settings_of(source: Source, call: cst.Call) -> Settings | None:
    """The fields that a call of the class gives; None when it does not show them all."""
    fields: dict[str, cst.BaseExpression] = {}
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        name = arg.keyword.value if arg.keyword is not None else FIELDS[index]
        fields[name] = arg.value
    return Settings(source, call, fields)


def _written(site: Construction, argument: Argument) -> Precision | str | None:
    """Settings written in the argument itself, perhaps under a condition."""
    node = argument.value
    test = ""
    if isinstance(node, cst.IfExp):
        test = site.text(node.test)
        if dotted(node.body) in OFF:
            test = f"not ({test})" if " " in test else f"not {test}"
        elif dotted(node.orelse) not in OFF:
            return None
        node = node.orelse if dotted(node.body) in OFF else node.body
    if not isinstance(node, cst.Call) or not _is_settings(site, node):
        return None
    settings = settings_of(site.source, node)
    if settings is None:
        return None
    if why := _refused([settings]):
        return why
    site.account(node.func, "changed", "`MixedPrecisionPolicy` is its counterpart")
    buffers = settings.text("buffer_dtype").replace("None", "")
    policy, low = settings.policy(site.name(NEW)), settings.text("param_dtype") != "None"
    return Precision(policy, buffers, test, settings.inner_casts, test, low=low)


def _is_settings(site: Construction, call: cst.Call) -> bool:
    return meaning(site.program, site.source, call.func) == OLD


def _refused(found: list[Settings]) -> str:
    """Why settings have no counterpart; empty when they have one."""
    if any(one.text("keep_low_precision_grads") not in ("None", "False") for one in found):
        return "`keep_low_precision_grads` has no counterpart: gradients have the parameters' dtype"
    return ""


# -- settings that are made elsewhere ---------------------------------------------------------------------------


def _converted(site: Construction, argument: Argument) -> Precision | str | None:
    """Settings that are made elsewhere in the project and only for FSDP1: there they become policies."""
    made: list[Settings] = []
    found = sources_of(site, argument)
    for one in found or ():
        if one.is_none:
            continue
        if not isinstance(one.node, cst.Call) or one.source not in site.program.sources:
            return None
        if meaning(site.program, one.source, one.node.func) != OLD:
            return None
        settings = settings_of(one.source, one.node)
        if settings is None or one.node in site.fixed:
            return None
        if not only_feeds_fsdp1(site, one.node):
            return None
        made.append(settings)
    if not made:
        return None
    if why := _refused(made):
        return why
    nothing = [one for one in found or () if one.is_none]
    maybe = bool(nothing)
    buffers = _common_buffers(site, argument, made, maybe)
    # without a `param_dtype` nothing is cast, whatever the policy says
    low = [one for one in made if one.text("param_dtype") != "None"]
    casts = {one.inner_casts for one in low} or {"True"}
    reads = _reads(site.program, made)
    if buffers is None or len(casts) != 1 or reads is None:
        return None
    for settings in made:
        become_policy(site, settings)
    for source, node, field in reads:
        site.elsewhere[node] = (Replace(source, node, field),)
    text = site.text(argument.value)
    by_policy = not buffers or "{policy}" in buffers
    if nothing and not (by_policy and _become_default(site, argument, nothing)):
        text = _or_default(site, argument.value, nothing)
    guard = buffers if "{policy}" in buffers else _where_given(site, argument.value, nothing)
    return Precision(text, buffers, guard if maybe else "", casts.pop(), low=bool(low))


def _where_given(site: Construction, node: cst.BaseExpression, nothing: Sequence[Origin]) -> str:
    """The condition under which settings are not None: the test of a choice between them and None."""
    if not isinstance(node, cst.IfExp):
        return site.text(node)
    given, test = node.body, site.text(node.test)
    if dotted(node.body) == "None":
        given, test = node.orelse, f"not ({test})" if " " in test else f"not {test}"
    elif dotted(node.orelse) != "None":
        return site.text(node)
    if not _are_sides(node, nothing):
        return (
            f"({test}) and {site.text(given)}"
            if " or " in test
            else f"{test} and {site.text(given)}"
        )
    return test


def _are_sides(choice: cst.IfExp, nothing: Sequence[Origin]) -> bool:
    """Whether each None is written in the choice itself, and none comes from what it chooses."""
    return all(one.node is choice.body or one.node is choice.orelse for one in nothing)


def _reads(
    program: Program, made: list[Settings]
) -> list[tuple[Source, cst.Attribute, str]] | None:
    """The reads of what a policy does not hold, and what says the same; None where nothing does, or may not."""
    found: list[tuple[Source, cst.Attribute, str]] = []
    calls = {one.call: one for one in made}
    names = {name for one in made for name in _names(one)}
    for source in program.sources:
        if not any(f".{field}" in source.text for field in FIELDS[2:]):
            continue
        for node in walk(source.tree):
            if not isinstance(node, cst.Attribute) or node.attr.value not in FIELDS[2:]:
                continue
            owners = origins(program, source, node.value)
            held = [one for owner in owners for one in held_by(program, owner.node) or [owner]]
            mine = [
                calls[one.node]
                for one in held
                if isinstance(one.node, cst.Call) and one.node in calls
            ]
            unknown = any(not isinstance(one.node, cst.Call) and not one.is_none for one in held)
            if not mine and not (unknown and dotted(node.value).rpartition(".")[2] in names):
                continue
            text = "" if unknown or len(mine) < len(made) else _instead(source, node, made)
            if not text:
                return None
            found.append((source, node, text))
    return found


def _names(one: Settings) -> Iterator[str]:
    """The names of the variable or the field that settings are bound to where they are made."""
    assign = Layout.of(one.source).parents.get(one.call)
    for target in assign.targets if isinstance(assign, cst.Assign) else ():
        yield dotted(target.target).rpartition(".")[2]


def _instead(source: Source, read: cst.Attribute, made: list[Settings]) -> str:
    """What says the same as the field ``buffer_dtype`` of settings that are a policy now; empty if nothing does."""
    is_written = isinstance(Layout.of(source).parents[read], cst.AssignTarget | cst.AugAssign)
    if read.attr.value != "buffer_dtype" or is_written:
        return ""
    for field in FIELDS[:2]:
        if all(one.text(field) == one.text("buffer_dtype") for one in made):
            return f"{source.code(read.value)}.{field}"
    said = {one.text("buffer_dtype") for one in made}
    text = said.pop()
    is_dtype = re.fullmatch(r"torch\.\w+", text) is not None and "torch." in source.text
    return text if not said and (is_dtype or text == "None") else ""


def _become_default(site: Construction, argument: Argument, nothing: list[Origin]) -> bool:
    """Write the policy that does nothing for each None, where a variable is bound to it for this call alone."""
    node, names, layout = argument.value, Names.of(site.source), site.layout
    if not isinstance(node, cst.Name):
        return False
    reads = [
        at for at in names.uses.get(node.value, ()) if names.owner(node.value, at) is site.scope
    ]
    binding = [layout.parents.get(one.node) for one in nothing if one.node is not None]
    if len(reads) != 1 or any(one.source is not site.source for one in nothing):
        return False
    if not all(
        isinstance(one, cst.Assign) and [dotted(t.target) for t in one.targets] == [node.value]
        for one in binding
    ):
        return False
    for one in nothing:
        if one.node is not None:
            found = name_for(one.source, one.node, NEW)
            site.elsewhere[one.node] = (
                Replace(one.source, one.node, f"{found.text}()"),
                *found.edits,
            )
    return True


def _or_default(site: Construction, node: cst.BaseExpression, nothing: Sequence[Origin]) -> str:
    """The text of settings that may be None, with the policy that does nothing in its place."""
    default = f"{site.name(NEW)}()"
    if not isinstance(node, cst.IfExp) or node.lpar:
        return f"{site.text(node)} or {default}"
    sides = [
        default if dotted(one) == "None" else site.text(one) for one in (node.body, node.orelse)
    ]
    if not _are_sides(node, nothing):
        return f"({site.text(node)}) or {default}"
    return f"{sides[0]} if {site.text(node.test)} else {sides[1]}"


def _common_buffers(
    site: Construction, argument: Argument, made: list[Settings], maybe: bool
) -> str | None:
    """The dtype of buffers for all of these settings, as an expression at the call; None if there is none."""
    said = {one.text("buffer_dtype") for one in made}
    if said == {"None"}:
        return ""
    if all(one.text("buffer_dtype") == one.text("param_dtype") for one in made):
        return "{policy}.param_dtype"
    if len(made) == 1 and re.fullmatch(r"torch\.\w+", made[0].text("buffer_dtype")):
        return made[0].text("buffer_dtype")
    if all(one.text("buffer_dtype") == one.text("reduce_dtype") for one in made):
        return "{policy}.reduce_dtype"
    text = said.pop()
    if not said and text.startswith("torch."):
        return text
    node = argument.value
    if len(made) == 1 and named_once(site.source, node) is not None and not maybe:
        return text
    return "" if has_no_buffers(site) else None


def become_policy(site: Construction, one: Settings) -> None:
    """Edit a call ``MixedPrecision(…)`` so that it makes a policy."""
    found = name_for(one.source, one.call, NEW)
    args = Arguments(one.source, one.call)
    for index, arg in enumerate(one.call.args):
        name = arg.keyword.value if arg.keyword is not None else FIELDS[index]
        if name == "cast_root_forward_inputs" and one.text(name) not in ("True", "None"):
            if arg.keyword is not None:
                args.rename(name, "cast_forward_inputs")
        elif name not in FIELDS[:2]:
            args.remove(arg)
    said: tuple[Edit, ...] = (Replace(one.source, one.call.func, found.text), args)
    if short := _on_one_line(one, found.text):
        said = (Replace(one.source, one.call, short),)
    site.elsewhere[one.call] = (*said, *found.edits)
    why = "replaced by `MixedPrecisionPolicy`; its other fields are handled at the call"
    site.account(one.call, "changed", why, one.source)


def _on_one_line(one: Settings, named: str) -> str:
    """The policy on one line, where its arguments had one of their own that has room for all of it now; else empty."""
    layout = Layout.of(one.source)
    start, end = layout.span(one.call)
    text = one.source.text[start:end]
    ends = one.call.args[-1].comma if one.call.args else None
    said = one.policy(named)
    if text.count("\n") != 2 or "#" in text or isinstance(ends, cst.Comma) or "\n" in said:
        return ""
    return said if layout.place(start)[1] + len(said) <= 88 else ""


def _at_run_time(
    site: Construction, pieces: Pieces, helpers: Helpers, argument: Argument
) -> Precision:
    """Settings that only the run knows: a small function makes policies of them."""
    text = site.text(argument.value)
    if not re.fullmatch(r"[\w.]+", text):
        name = site.free("precision", "mp_settings")
        pieces.before.append(f"{name} = {site.flat(argument.value)}")
        text = name
    helper = helpers.add("precision_policy", precision_helper)
    buffers = f"{text}.buffer_dtype"
    direct = argument.values and all(class_of(v) == OLD for v in argument.values)
    sure = direct and "." not in text  # an attribute may be None in another run
    guard = buffers if sure else f"{text} and {buffers}"
    for value in argument.values:
        at = born(value)
        if at is not None and class_of(value) == OLD:
            why = "kept as plain data; the call builds the policies from it"
            site.account(at.node, "preserved", why, at.source)
    return Precision(text, buffers, guard, "False", run_time=helper)


# -- packed weights ---------------------------------------------------------------------------------------------

PACKED = (
    "bitsandbytes.nn.*",
    "transformers.BitsAndBytesConfig",
    "diffusers.BitsAndBytesConfig",
)
PACKED_WHY = (
    "packed weights: FSDP1 put those of a unit into one flat tensor, `fully_shard` shards each and gathers it as a "
    "plain parameter. Layers of 4 bits find their `quant_state` again at the module, layers of 8 bits lose their "
    "scales (FSDP236); the dtype of the storage must be the `param_dtype` of the policy"
)
"""``init_dtype_attrs`` and ``_init_sharded_param`` in torch/distributed/fsdp/_fully_shard/_fsdp_param.py;
``fix_4bit_weight_quant_state_from_module`` in bitsandbytes/nn/modules.py."""


def quantized(program: Program) -> Iterator[Kept]:
    """The first place of each file that names packed weights."""
    for source in program.sources:
        first = next((one for one in program.references(*PACKED) if one.source is source), None)
        if first is not None:
            yield Kept(source, first.node, PACKED_WHY)
