"""Hypothesis strategies that write training scripts: strange, but Python."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

HEAD = """\
import functools
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

cfg = load()
"""

NAMES = ("model", "cfg", "rank", "x", "block", "optimizer", "kw", "self", "helper", "Trainer")
ATTRIBUTES = ("layers", "fsdp", "rank", "is_main", "module", "config", "head", "weight", "T")
METHODS = (
    "parameters",
    "state_dict",
    "step",
    "backward",
    "items",
    "run",
    "to",
    "modules",
    "append",
)

RANK_TESTS = (
    "dist.get_rank() == 0",
    "rank != 0",
    'int(os.environ["RANK"]) == 0',
    'os.environ.get("LOCAL_RANK", 0)',
    "not rank",
    "rank in (0,)",
    "self.is_main",
)

TORCH_CALLS = (
    "fully_shard({})",
    "fully_shard({}, **kw)",
    "FSDP({}, use_orig_params=True)",
    "torch.compile({})",
    "torch.optim.AdamW({}.parameters(), lr=1e-3)",
    "torch.optim.SGD([{{'params': [p for n, p in {}.named_parameters()]}}])",
    "torch.nn.utils.clip_grad_norm_({}.parameters(), 1.0)",
    "torch.save({}, 'model.pt')",
    "torch.save({{'model': {}.state_dict()}}, 'model.pt')",
    "dcp.save({}, checkpoint_id='x')",
    "dcp.async_save({})",
    "model.load_state_dict({})",
    "dist.all_reduce({})",
    "dist.barrier()",
    "dist.init_process_group('nccl')",
    "nn.Sequential(nn.Linear(8, 8), {})",
    "functools.partial(fully_shard, mesh={})",
    "setattr({}, 'layers', cfg)",
    "getattr({}, 'head', None)",
    "isinstance({}, nn.Module)",
    "next(iter({}))",
    "super().__init__({})",
)

CONTEXTS = (
    "torch.no_grad()",
    "open('x') as f",
    "helper() as x",
    "model.no_sync()",
    "FSDP.state_dict_type(model, kw)",
    "cfg.a, cfg.b as (x, block)",
)
PATTERNS = (
    "'fsdp'",
    "0 | 1",
    "[x, *block]",
    "{'a': x, **kw}",
    "Trainer(rank=0)",
    "(x, None)",
    "cfg.mode",
)
DECORATORS = ("@torch.no_grad()", "@contextmanager", "@helper", "@functools.wraps(helper)", "@x.y")
PARAMETERS = (
    "",
    "self",
    "model",
    "model, cfg=None",
    "*args, **kwargs",
    "model, *rest, rank=0, **kw",
    "model, /, cfg, *, rank=helper()",
)


@dataclass(frozen=True)
class Place:
    """Where a statement stands: how much deeper it may go, and what may stand there."""

    depth: int = 3
    function: bool = False
    loop: bool = False
    klass: bool = False

    def inside(self, **changes: bool) -> Place:
        """One level deeper."""
        return replace(self, depth=self.depth - 1, **changes)


names = st.sampled_from(NAMES)
constants = st.sampled_from(
    ("0", "1", "-1", "None", "True", "False", "'fsdp'", "2.5", "...", "b''")
)
leaves = names | constants | st.builds("{}.{}".format, names, st.sampled_from(ATTRIBUTES))


def _extended(inner: SearchStrategy[str]) -> SearchStrategy[str]:
    """Expressions made of smaller ones."""
    return st.one_of(
        st.builds("{}({})".format, names, arguments(inner)),
        st.builds("{}.{}({})".format, names, st.sampled_from(METHODS), arguments(inner)),
        st.builds(str.format, st.sampled_from(TORCH_CALLS), names),
        st.builds("{}[{}]".format, names, inner),
        st.builds("{}[{}:]".format, names, inner),
        st.builds("[{}, *{}]".format, inner, names),
        st.builds("({}, {})".format, inner, inner),
        st.builds("{{'mesh': {}, **{}}}".format, inner, names),
        st.builds("{{{}, {}}}".format, inner, inner),
        st.builds("dict(mesh={}, **{})".format, inner, names),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} and {} or not {})".format, inner, inner, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(("==", "is not", "in", "<")), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(("+", "%", "|", "@", "**")), inner),
        st.builds("(lambda a, *b, c={}: {})".format, names, inner),
        st.builds("[{} for {} in {} if {}]".format, inner, names, inner, inner),
        st.builds("({} for a, b in {} for c in a)".format, inner, inner),
        st.builds("{{{}: {} for {} in {}}}".format, names, inner, names, inner),
        st.builds("f'{{{}.{}()}} {{{}!r:>10}}'".format, names, st.sampled_from(METHODS), names),
    )


@st.composite
def arguments(draw: DrawFn, inner: SearchStrategy[str]) -> str:
    """What stands between the parentheses of a call."""
    positional = draw(st.lists(inner, max_size=2))
    if draw(st.integers(0, 4)) == 0:
        positional.append("*" + draw(names))
    keywords = draw(st.lists(st.sampled_from(("mesh", "rank", "params")), max_size=2, unique=True))
    said = positional + [f"{keyword}={draw(inner)}" for keyword in keywords]
    if draw(st.integers(0, 4)) == 0:
        said.append("**" + draw(names))
    return ", ".join(said)


expressions = st.recursive(leaves, _extended, max_leaves=4)
tests = st.sampled_from(RANK_TESTS) | expressions
targets = st.one_of(
    names,
    st.builds("{}.{}".format, names, st.sampled_from(ATTRIBUTES)),
    st.builds("{}[{}]".format, names, leaves),
    st.builds("{}, *{}".format, names, names),
    st.builds("({}, [{}, {}])".format, names, names, names),
)

simple = st.one_of(
    st.builds("{} = {}".format, targets, expressions),
    st.builds("{} = {} = {}".format, names, names, expressions),
    st.builds("{} += {}".format, names, expressions),
    st.builds("{}: object = {}".format, names, expressions),
    st.builds("{}".format, expressions),
    st.builds(str.format, st.sampled_from(TORCH_CALLS), names),
    st.builds("assert {}, {}".format, tests, expressions),
    st.builds("del {}".format, names),
    st.builds("raise helper({})".format, expressions),
    st.builds("from {} import {}".format, st.sampled_from(("a.b", ".", "torch")), names),
    st.just("import torch.distributed.fsdp as fsdp; import os.path"),
    st.just("pass"),
)


def indented(lines: list[str]) -> list[str]:
    """One level further to the right."""
    return ["    " + line for line in lines]


@st.composite
def block(draw: DrawFn, place: Place) -> list[str]:
    """One to three statements."""
    found: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        found += draw(statement(place))
    return found


@st.composite
def statement(draw: DrawFn, place: Place) -> list[str]:
    """A statement that may stand at ``place``."""
    leaving = []
    if place.function:
        leaving += [st.builds("return {}".format, expressions), st.just("return")]
        leaving += [st.builds("x = yield {}".format, expressions)]
    if place.loop:
        leaving += [st.just("break"), st.just("continue")]
    if place.depth <= 0 or draw(st.booleans()):
        return [draw(st.one_of(simple, simple, *leaving))]
    compound = draw(st.sampled_from((_if, _for, _while, _try, _with, _match, _def, _class)))
    found: list[str] = draw(compound(place))
    return found


@st.composite
def _body(draw: DrawFn, place: Place, header: str) -> list[str]:
    return [header, *indented(draw(block(place)))]


@st.composite
def _if(draw: DrawFn, place: Place) -> list[str]:
    inner = place.inside()
    test = draw(tests)
    if draw(st.booleans()):
        test = f"({draw(names)} := {test})"
    found: list[str] = draw(_body(inner, f"if {test}:"))
    if draw(st.booleans()):
        found += draw(_body(inner, f"elif {draw(tests)}:"))
    if draw(st.booleans()):
        found += draw(_body(inner, "else:"))
    return found


@st.composite
def _for(draw: DrawFn, place: Place) -> list[str]:
    header = f"for {draw(targets)} in {draw(expressions)}:"
    found: list[str] = draw(_body(place.inside(loop=True), header))
    if draw(st.booleans()):
        found += draw(_body(place.inside(), "else:"))
    return found


@st.composite
def _while(draw: DrawFn, place: Place) -> list[str]:
    found: list[str] = draw(_body(place.inside(loop=True), f"while {draw(tests)}:"))
    if draw(st.booleans()):
        found += draw(_body(place.inside(), "else:"))
    return found


@st.composite
def _try(draw: DrawFn, place: Place) -> list[str]:
    inner = place.inside()
    found: list[str] = draw(_body(inner, "try:"))
    kind = draw(st.integers(0, 3))
    if kind != 0:
        found += draw(_body(inner, "except (ValueError, helper.Error) as x:"))
        if kind == 2:
            found += draw(_body(inner, "else:"))
    if kind in (0, 3):
        found += draw(_body(inner, "finally:"))
    return found


@st.composite
def _with(draw: DrawFn, place: Place) -> list[str]:
    found: list[str] = draw(_body(place.inside(), f"with {draw(st.sampled_from(CONTEXTS))}:"))
    return found


@st.composite
def _match(draw: DrawFn, place: Place) -> list[str]:
    inner = place.inside()
    found = [f"match {draw(expressions)}:"]
    for pattern in draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2)):
        guard = f" if {draw(tests)}" if draw(st.booleans()) else ""
        found += indented(draw(_body(inner, f"case {pattern}{guard}:")))
    if draw(st.booleans()):
        found += indented(draw(_body(inner, "case _:")))
    return found


@st.composite
def _def(draw: DrawFn, place: Place) -> list[str]:
    decorators = draw(st.lists(st.sampled_from(DECORATORS), max_size=2))
    if place.klass:
        decorators += draw(
            st.sampled_from(([], ["@property"], ["@classmethod"], ["@staticmethod"]))
        )
    name = draw(st.sampled_from(("helper", "run", "__init__", "forward", "__enter__", "__call__")))
    header = f"def {name}({draw(st.sampled_from(PARAMETERS))}):"
    inner = place.inside(function=True, loop=False, klass=False)
    found = [*decorators, *draw(_body(inner, header))]
    return found


@st.composite
def _class(draw: DrawFn, place: Place) -> list[str]:
    bases = draw(st.sampled_from(("", "(nn.Module)", "(Trainer)", "(helper(), metaclass=x)")))
    decorators = draw(st.sampled_from(([], ["@dataclass"], ["@helper(1)"])))
    inner = place.inside(function=False, loop=False, klass=True)
    name = draw(st.sampled_from(("Trainer", "Block")))
    found = [*decorators, *draw(_body(inner, f"class {name}{bases}:"))]
    return found


@st.composite
def programs(draw: DrawFn) -> str:
    """The text of a training script."""
    lines: list[str] = draw(block(Place()))
    for _ in range(draw(st.integers(0, 2))):
        lines += draw(statement(Place(depth=4)))
    if draw(st.booleans()):
        lines += draw(_body(Place(depth=2), 'if __name__ == "__main__":'))
    return HEAD + "\n".join(lines) + "\n"
