"""Tests for ``ShardedTensor``, of which FSDP1's sharded state dicts are made: FSDP2's hold DTensors.

Facts (torch/distributed/fsdp/_state_dict_utils.py, ``_sharded_post_state_dict_hook``, torch 2.13): without
a device mesh FSDP1 makes a ``ShardedTensor`` of each shard; ``fully_shard`` makes every parameter a DTensor,
and a test for the old class is false of all of them, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Account, Layout, Left, Program, Reference, Replace, Step, name_for

from .._common.loop_models import DTENSOR
from .._common.shared import unimports

_HOME = "torch.distributed._shard.sharded_tensor"
SHARDED = (f"{_HOME}.ShardedTensor", f"{_HOME}.api.ShardedTensor")
_LOCAL = ("StateDictType.LOCAL_STATE_DICT", "LocalStateDictConfig")
_OWN = re.compile(r"\.(local_shards?|local_tensor|_local_shards|sharding_spec|shards_metadata)\b")
"""What only a ``ShardedTensor`` has."""
_WHY = "a sharded state dict of FSDP2 holds DTensors"
_TODO = "ask for `DTensor`, and for `to_local()` of it"


def sharded_tensors(program: Program) -> Iterator[Step | Left]:
    """Each test for the class, where the program wraps by FSDP1 and asks for DTensors nowhere near."""
    found = [r for r in program.references(*SHARDED) if _is_tested(r)]
    if not found or "fsdp1" not in program.named_wrappers:
        return
    certain = not any(_OWN.search(s.text) for s in program.sources) and not _is_another(program)
    for one in found:
        if any(r.source is one.source for r in program.references(DTENSOR)):
            continue
        if not certain:
            yield Left(one.source, one.node, f"{_WHY}, which have other methods", _TODO)
            continue
        name = name_for(one.source, one.node, DTENSOR)
        edits = [Replace(one.source, one.node, name.text), *name.edits]
        for same in SHARDED:
            edits += unimports(program, one.source, same)
        account = Account(one.source, one.node, "changed", _WHY, own=True)
        yield Step(tuple(edits), (account,))


def _is_another(program: Program) -> bool:
    """Whether FSDP1 has flat shards in its state dicts, or DTensors already."""
    text = "".join(s.text for s in program.sources)
    return any(one in text for one in _LOCAL) or "device_mesh=" in text


def _is_tested(reference: Reference) -> bool:
    """Whether the class is what ``isinstance`` asks for, alone or in a tuple."""
    layout = Layout.of(reference.source)
    inner: cst.CSTNode = reference.node
    for around in layout.ancestors(reference.node):
        if isinstance(around, cst.Call):
            name = getattr(around.func, "value", "")
            return name == "isinstance" and len(around.args) == 2 and around.args[1] is inner
        if not isinstance(around, cst.Tuple | cst.Element | cst.Arg | cst.BinaryOperation):
            return False
        inner = around
    return False
