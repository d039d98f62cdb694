"""`summon_full_params` becomes a few lines that gather the parameters.

## What it does

A block that reads parameters gets a helper context manager, which puts whole parameters (in the dtype
that they are kept in) in place of the shards, and what is written to them back into the shards when the block
writes; `model.apply(function)` gets such a block, as FSDP1 made one for it. A block that runs the model (`generate`) is gathered by `unshard()`. Around nothing but `get_model_state_dict` and `set_model_state_dict`, which gather and
spread by themselves, no block is left.

## Why

On modules that `fully_shard` has changed, FSDP1's context gathers nothing, without an error.

## Example

```diff
+from contextlib import contextmanager
+
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP
+from torch.distributed.tensor import DTensor
+
+
+@contextmanager
+def full_params(model):
+    \"\"\"Put whole parameters in place of the shards inside the block.\"\"\"
+    for module in model.modules():
+        if isinstance(module, FSDPModule):
+            module.reshard()  # a forward without a backward leaves the root gathered
+    sharded = [
+        (module, name, p)
+        for module in model.modules()
+        for name, p in module.named_parameters(recurse=False)
+        if isinstance(p, DTensor)
+    ]
+    full = {}
+    for _, _, p in sharded:
+        whole = p.full_tensor()
+        full[p] = nn.Parameter(whole, p.requires_grad)
+    for module, name, p in sharded:
+        setattr(module, name, full[p])
+    try:
+        yield
+    finally:
+        for module, name, p in sharded:
+            setattr(module, name, p)
+

 model = FSDP(nn.Linear(8, 8))
-with FSDP.summon_full_params(model, writeback=False):
+with full_params(model):
     for name, parameter in model.named_parameters():
         print(name, parameter.norm())
```

## What it leaves

- Blocks in which the model loads a state dict or moves: `set_model_state_dict` loads into shards.
- Blocks that run the model and write to its parameters, or read gradients.
- What the ranks write must agree: rank 0's is kept. FSDP1 kept of each rank the part that it holds.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`summon_full_params`)
- https://docs.pytorch.org/docs/stable/distributed.tensor.html (`full_tensor`, `distribute_tensor`)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`unshard`, `reshard`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    Layout,
    Left,
    Program,
    Remove,
    Replace,
    Source,
    Step,
    Unwrap,
    Wrap,
    codemod,
    options,
    wrapper,
)

from .._common.loop_models import FSDP1
from .._common.loop_text import text_of
from .._common.shared import Helpers, unimports
from .full_params import full_params, unsharded
from .gathered import PUT, TAKE, Uses, block_of, states_moved, touches_parameters, uses

SUMMON = f"{FSDP1}.summon_full_params"
POSITIONS = ("module", "recurse", "writeback", "rank0_only", "offload_to_cpu", "with_grads")
FEATURES = POSITIONS[2:]
READ = "a helper context manager puts whole parameters in place of the shards"
RUN = "submodules gather their own parameters as they run; the rest of the model is gathered here"
APPLIED = "FSDP1 gathered the parameters for `apply` and kept what it wrote: so does this block"
EMPTY = "nothing is done with the parameters that it gathers"
TAKEN = "the functions that take and put its states gather and spread them by themselves"


@dataclass(frozen=True, slots=True)
class _Block:
    """A call of ``summon_full_params``: its model and its other arguments, as text."""

    source: Source
    call: cst.Call
    model: str
    given: dict[str, str]
    uses: Uses


@codemod(after=("wrapped-module", "state-dicts"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Blocks in which FSDP1 gathers the parameters."""
    rest: dict[Source, list[_Block]] = {}
    idle: dict[cst.With, list[_Block]] = {}
    applied = dict(_applied(program))
    for source, call in _calls(program):
        block = _block(program, source, call)
        around = block_of(source, call)
        if block is not None and around is not None and _only_moves_states(program, block, around):
            idle.setdefault(around, []).append(block)
            continue
        why = _trouble(block)
        if block is None or why:
            todo = "gather with full_tensor(), load with set_model_state_dict"
            yield Left(source, call, why, todo)
            continue
        if around is not None and len(around.items) == 1 and _is_empty(around):
            edits = (Remove(source, around), *unimports(program, source, FSDP1))
            yield Step(edits, (Account(source, call, "dropped", EMPTY),))
            continue
        rest.setdefault(source, []).append(block)
    for around, blocks in idle.items():
        yield _without(program, around, blocks)
    for source in dict.fromkeys((*rest, *applied)):
        yield _rewritten(program, source, rest.get(source, []), applied.get(source, []))


def _only_moves_states(program: Program, block: _Block, around: cst.With) -> bool:
    """Whether nothing uses the model in a block but functions that gather and spread states by themselves."""
    used = states_moved(program, block.source, around, block.model)
    return used == {TAKE} or (PUT in used and block.given.get("writeback", "True") == "True")


def _without(program: Program, around: cst.With, blocks: Sequence[_Block]) -> Step:
    """A ``with`` without these of its items, or none."""
    source, calls = blocks[0].source, [block.call for block in blocks]
    items = [item for item in around.items if item.item in calls]
    edits: list[Edit] = [Unwrap(source, around)]
    if len(items) < len(around.items):
        edits = [Unwrap(source, around, item=item) for item in items]
    accounts = tuple(Account(source, call, "dropped", TAKEN) for call in calls)
    return Step((*edits, *unimports(program, source, FSDP1)), accounts)


def _is_empty(around: cst.With) -> bool:
    """Whether a block holds nothing but ``pass``."""
    lines = around.body.body
    small = [
        one
        for line in lines
        for one in (line.body if isinstance(line, cst.SimpleStatementLine) else (line,))
    ]
    return all(isinstance(one, cst.Pass) for one in small)


def _calls(program: Program) -> Iterator[tuple[Source, cst.Call]]:
    """The calls, by the class and by a model."""
    seen: set[cst.CSTNode] = set()
    for reference in program.references(SUMMON):
        call = Layout.of(reference.source).parents[reference.node]
        if isinstance(call, cst.Call) and call.func is reference.node:
            seen.add(call)
            yield reference.source, call
    for events in program.sites(Called):
        site, name = events[0][1].at, events[0][1].name
        if name == SUMMON and isinstance(site.node, cst.Call) and site.node not in seen:
            yield site.source, site.node


def _applied(program: Program) -> Iterator[tuple[Source, list[cst.Call]]]:
    """``model.apply(function)``, for which FSDP1 gathers the parameters, by file."""
    found: dict[Source, list[cst.Call]] = {}
    for events in program.sites(Called):
        called, call = events[0][1], events[0][1].at.node
        if called.name != ".apply" or not isinstance(call, cst.Call) or len(call.args) != 1:
            continue
        models = [v for _, e in events if e.receiver is not None for v in options(e.receiver)]
        if "fsdp1" in {wrapper(v) for v in models} and touches_parameters(called):
            source = called.at.source
            statement = Layout.of(source).parents[call]
            if isinstance(statement, cst.Expr) and not _is_gathered(source, call):
                found.setdefault(source, []).append(call)
    yield from found.items()


def _is_gathered(source: Source, call: cst.Call) -> bool:
    """Whether a call is in a block of ``full_params`` already."""
    return any(
        isinstance(around, cst.With)
        and any(text_of(source, item.item).startswith("full_params") for item in around.items)
        for around in Layout.of(source).ancestors(call)
    )


def _block(program: Program, source: Source, call: cst.Call) -> _Block | None:
    """A call with its arguments; None when they are not written out."""
    given: dict[str, str] = {}
    for position, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and position >= len(POSITIONS)):
            return None
        name = POSITIONS[position] if arg.keyword is None else arg.keyword.value
        given[name] = text_of(source, arg.value)
    model = given.pop("module", "")
    return _Block(source, call, model, given, uses(program, source, call, model)) if model else None


def _trouble(block: _Block | None) -> str:
    """Why a block cannot be rewritten."""
    if block is None:
        return "its arguments are not written out"
    found = block.uses
    if found.replaced:
        return "the block exchanges the parameters themselves"
    if found.computes and (_writes(block) or block.given.get("with_grads", "False") != "False"):
        return "the block runs the model and changes its parameters, or reads gradients"
    return ""


def _writes(block: _Block) -> bool:
    """Whether something is written that FSDP1 kept."""
    return block.uses.writes and block.given.get("writeback", "True") != "False"


def _runs(block: _Block) -> bool:
    """Whether the block is there to run the model."""
    found = block.uses
    return found.computes or (block.given.get("recurse") == "False" and not found.reads)


def _rewritten(
    program: Program, source: Source, blocks: Sequence[_Block], applied: Sequence[cst.Call]
) -> Step:
    """The blocks of one file with functions of the script's own."""
    features = {name for block in blocks if not _runs(block) for name in _wanted(block)}
    features |= {"writeback"} if applied else set()
    layout = Layout.of(source)
    calls = sorted((*(b.call for b in blocks), *applied), key=lambda n: layout.span(n)[0])
    helpers = Helpers.above(source, calls[0])
    edits: list[Edit] = []
    accounts: list[Account] = []
    for block in blocks:
        if _runs(block):
            name = helpers.add("unsharded", unsharded(block.given.get("recurse") != "False"))
            text, why = f"{name}({block.model})", RUN
        else:
            name = helpers.add("full_params", full_params(features))
            given = "".join(f", {key}={value}" for key, value in _wanted(block).items())
            text, why = f"{name}({block.model}{given})", READ
        edits.append(Replace(source, block.call, text))
        accounts.append(Account(source, block.call, "changed", why))
    for call in applied:
        assert isinstance(call.func, cst.Attribute)
        name = helpers.add("full_params", full_params(features))
        model = text_of(source, call.func.value)
        edits.append(Wrap(source, call, f"with {name}({model}, writeback=True):"))
        accounts.append(Account(source, call, "changed", APPLIED))
    edits += (*helpers.all_edits(), *unimports(program, source, FSDP1))
    return Step(tuple(edits), tuple(accounts))


def _wanted(block: _Block) -> dict[str, str]:
    """The keywords that a block needs of ``full_params``."""
    wanted = {name: block.given.get(name, "False") for name in FEATURES}
    if _writes(block) or block.uses.hands_over:
        wanted["writeback"] = block.given.get("writeback", "True")
    else:
        del wanted["writeback"]
    return {name: value for name, value in wanted.items() if value != "False"}
