"""The fixes of some rules, shape by shape: what comes out, and where none is offered."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.source.source import Source
from tests.evidence.client import run_script
from tests.rules.test_rules import findings, mended

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or not hasattr(os, "fork"), reason="evidence needs torch and fork"
)

HEAD = """\
import contextlib
import copy
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import *
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 8)
batch = torch.randn(4, 8)
k = 4
"""
SHARDED = f"{HEAD}fully_shard(model)\n"
TRAINED = f"{SHARDED}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"


def changed(head: str, body: str) -> tuple[str, set[str]]:
    """The body after all fixes, and the codes that are left."""
    source = Source("train.py", head + body)
    (after,) = mended([source], list(findings([source])))
    marker = "dist.init_process_group"
    rest = head[head.index(marker) :]
    text = after.text[after.text.index(marker) :]
    assert text.startswith(rest)
    return text.removeprefix(rest), {rule.code for rule, _ in findings([after])}


NO_SYNC = [
    (
        "with model.no_sync() if micro < k - 1 else nullcontext():\n        # loss\n        {loss}",
        "model.set_requires_gradient_sync(micro >= k - 1)\n    # loss\n    {loss}",
    ),
    (
        "last = micro == k - 1\n    with (nullcontext() if last else model.no_sync()): {loss}",
        "last = micro == k - 1\n    model.set_requires_gradient_sync(last)\n    {loss}",
    ),
    (
        "with (model.no_sync() if (micro + 1) % k else contextlib.nullcontext()):\n        {loss}",
        "model.set_requires_gradient_sync(not ((micro + 1) % k))\n    {loss}",
    ),
    (
        "ctx = model.no_sync() if not micro == k - 1 else nullcontext()  # a\n"
        "    with ctx:\n        {loss}",
        "model.set_requires_gradient_sync(micro == k - 1)  # a\n    {loss}",
    ),
    (
        "if micro < k - 1:\n        with model.no_sync():\n            {loss}\n"
        "    else:\n        {loss}",
        "if micro < k - 1:\n        model.set_requires_gradient_sync(False)\n        {loss}\n"
        "        model.set_requires_gradient_sync(True)\n    else:\n        {loss}",
    ),
    (
        'with torch.autocast("cpu"), model.no_sync() if micro in range(k - 1) else nullcontext():\n'
        "        {loss}",
        "model.set_requires_gradient_sync(micro not in range(k - 1))\n"
        '    with torch.autocast("cpu"):\n        {loss}',
    ),
    (
        "ctx = model.no_sync()\n    with ctx:\n        {loss}\n    {loss}",
        "model.set_requires_gradient_sync(False)\n    {loss}\n"
        "    model.set_requires_gradient_sync(True)\n    {loss}",
    ),
]
LOSS = "model(batch[micro]).square().mean().backward()"


@pytest.mark.parametrize(("before", "after"), NO_SYNC)
def test_no_sync_becomes_a_switch(before: str, after: str) -> None:
    loop = "for micro in range(k):\n    {}\noptimizer.step()\n"
    new, left = changed(TRAINED, loop.format(before.format(loss=LOSS)))
    assert new == loop.format(after.format(loss=LOSS))
    assert not left


@pytest.mark.ranks
@needs_torch
def test_the_switches_train_as_a_synchronised_run_does(tmp_path: Path) -> None:
    loops = "".join(
        f"for micro in range(k):\n    {before.format(loss=LOSS)}\n"
        "optimizer.step()\noptimizer.zero_grad()\n"
        for before, _ in NO_SYNC[:5]
    )
    tail = "print(model.weight.full_tensor().tolist())\ndist.destroy_process_group()\n"
    new, _ = changed(TRAINED, loops + tail)
    assert "no_sync" not in new
    said: list[str] = []
    for name, body in (
        ("plain", (loops + tail).replace("model.no_sync()", "nullcontext()")),
        ("fixed", new),
    ):
        script = tmp_path / f"{name}.py"
        script.write_text(TRAINED.replace("batch = ", "batch = (1 + dist.get_rank()) * ") + body)
        ranks = run_script(script)
        assert [rank.outcome for rank in ranks] == ["ended", "ended"], ranks[0].stderr
        said += [rank.stdout for rank in ranks]
    weights = [[weight for row in json.loads(text) for weight in row] for text in said]
    for one in weights[1:]:
        assert one == pytest.approx(weights[0], abs=1e-6)


NOT_FOR_NO_SYNC = [
    # left in the middle while a backward follows outside
    "for micro in range(k):\n    with model.no_sync():\n        if micro: continue\n"
    "        model(batch).sum().backward()\nmodel(batch).sum().backward()\n",
    # nothing would ever be synchronised
    "with model.no_sync():\n    model(batch).sum().backward()\n",
    # no backward inside
    "with model.no_sync():\n    loss = model(batch).sum()\nloss.backward()\n",
    "with model.no_sync() as quiet:\n    model(batch).sum().backward()\nmodel(batch).sum().backward()\n",
    # the choice is made elsewhere
    "for micro in range(k):\n    if micro < k - 1:\n        ctx = model.no_sync()\n    else:\n"
    "        ctx = nullcontext()\n    with ctx:\n        model(batch).sum().backward()\n",
    # the script switches by itself
    "model.set_requires_gradient_sync(True)\nwith model.no_sync():\n    model(batch).sum().backward()\n"
    "model(batch).sum().backward()\n",
]
MAYBE_SHARDED = """\
import sys
if "--shard" in sys.argv:
    fully_shard(model)
else:
    model = nn.parallel.DistributedDataParallel(model)
with model.no_sync():
    model(batch).sum().backward()
model(batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("head", "body"), [*((TRAINED, body) for body in NOT_FOR_NO_SYNC), (HEAD, MAYBE_SHARDED)]
)
def test_no_sync_stays(head: str, body: str) -> None:
    new, left = changed(head, body)
    assert new == body
    assert "FSDP210" in left


BUILT = "optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
STEP = "model(batch).sum().backward()\noptimizer.step()\n"
MOVED_UP = [
    (
        "lr = 0.1\nprint(model(batch).shape)\n# now\n" + BUILT + STEP,
        "lr = 0.1\n# now\n" + BUILT + "print(model(batch).shape)\n" + STEP,
    ),
    (
        "lr = 0.1\nwith torch.no_grad():\n    model(batch)\nmodel(batch)\n" + BUILT + STEP,
        "lr = 0.1\n" + BUILT + "with torch.no_grad():\n    model(batch)\nmodel(batch)\n" + STEP,
    ),
]
STAYING_DOWN = [
    "model(batch)\nlr = 0.1\n" + BUILT + STEP,
    "lr = [0.1]\nmodel(batch)\nlr.append(0.2)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=lr[-1])\n" + STEP,
    "lr, optimizer = 0.1, None\nmodel(batch)\nprint(optimizer)\n" + BUILT + STEP,
    "lr = 0.1\nmodel(batch)\nif batch.shape[0]:\n    " + BUILT + STEP,
]


@pytest.mark.parametrize(("before", "after"), MOVED_UP)
def test_an_optimizer_moves_above_the_forward(before: str, after: str) -> None:
    assert changed(SHARDED, before) == (after, set())


@pytest.mark.parametrize("body", STAYING_DOWN)
def test_an_optimizer_stays_below_what_it_needs(body: str) -> None:
    assert changed(SHARDED, body) == (body, {"FSDP202"})


SHARD = "fully_shard(model)\n"
CLIP = "model(batch).sum().backward()\nnn.utils.clip_grad_norm_({}, 1.0)\n"
TAKEN = [
    ("parameters = list(model.parameters())\n", CLIP.format("parameters")),
    ("ps = [p for n, p in model.named_parameters() if n != skip]\n", CLIP.format("ps")),
    ("ps = {n: p for n, p in model.named_parameters()}\n", CLIP.format("ps.values()")),
]
KEPT = [
    "ps = list(model.parameters())\nprint(len(ps))\n" + SHARD + CLIP.format("ps"),
    "ps = qs = list(model.parameters())\n" + SHARD + CLIP.format("ps"),
    "ps = [p for n, p in model.named_parameters() if n != skip]\nskip = 'bias'\n"
    + SHARD
    + CLIP.format("ps"),
]


@pytest.mark.parametrize(("taken", "used"), TAKEN)
def test_a_list_is_taken_below_the_sharding(taken: str, used: str) -> None:
    before = "skip = ''\n" + taken + "print(k)\n" + SHARD + used
    new, left = changed(HEAD, before)
    assert "FSDP220" not in left
    assert new == "skip = ''\nprint(k)\n" + SHARD + taken + used


@pytest.mark.parametrize("body", KEPT)
def test_a_list_stays(body: str) -> None:
    new, left = changed(HEAD, "skip = ''\n" + body)
    assert new == "skip = ''\n" + body
    assert "FSDP220" in left


GET = "state = {'optim': get_optimizer_state_dict(model, optimizer)}\n"
LOAD = "dcp.load(state, checkpoint_id='c')\n"
SET = "set_optimizer_state_dict(model, optimizer, {})\n"
LOADED = [
    (GET + LOAD, GET + LOAD + SET.format('state["optim"]')),
    (
        "inner = get_optimizer_state_dict(model, optimizer)\ndcp.load(inner, checkpoint_id='c')\n",
        "inner = get_optimizer_state_dict(model, optimizer)\ndcp.load(inner, checkpoint_id='c')\n"
        + SET.format("inner"),
    ),
    (
        "m, o = get_state_dict(model, optimizer)\ndcp.load({'m': m, 'o': o}, checkpoint_id='c')\n",
        "m, o = get_state_dict(model, optimizer)\ndcp.load({'m': m, 'o': o}, checkpoint_id='c')\n"
        + SET.format("o"),
    ),
]
NOT_LOADED = [
    "dcp.load({'optim': get_optimizer_state_dict(model, optimizer)}, checkpoint_id='c')\n",
    GET.replace("optimizer)", "optimizer, options=StateDictOptions())") + LOAD,
    GET + "optimizer = torch.optim.Adam(model.parameters())\n" + LOAD,
]


@pytest.mark.parametrize(("before", "after"), LOADED)
def test_a_loaded_state_is_set(before: str, after: str) -> None:
    assert changed(TRAINED, before + "optimizer.step()\n") == (after + "optimizer.step()\n", set())


@pytest.mark.parametrize("body", NOT_LOADED)
def test_a_loaded_state_that_cannot_be_named_is_left(body: str) -> None:
    new, left = changed(TRAINED, body + "optimizer.step()\n")
    assert new == body + "optimizer.step()\n"
    assert "FSDP306" in left


FULL = "o = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
FIRST = "if dist.get_rank() == 0:\n"
GATHER = "get_model_state_dict(model, options=o)"
HOISTED = [
    (
        f"{FIRST}    torch.save({GATHER}, 'm.pt')\n",
        f"state = {GATHER}\n{FIRST}    torch.save(state, 'm.pt')\n",
    ),
    (
        f"{FIRST}    print('save')\n    # all\n    held = {GATHER}  # of it\n    print(len(held))\n",
        f"# all\nheld = {GATHER}  # of it\n{FIRST}    print('save')\n    print(len(held))\n",
    ),
    (
        f"held = None\n{FIRST}    held = {GATHER}\n    print(len(held))\n",
        f"held = None\nstate = {GATHER}\n{FIRST}    held = state\n    print(len(held))\n",
    ),
    (
        f"{FIRST}    print({GATHER}.keys(), {GATHER}.keys())\n",
        f"state = {GATHER}\nstate_2 = {GATHER}\n{FIRST}    print(state.keys(), state_2.keys())\n",
    ),
    (
        f"{FIRST}    print(model.weight.full_tensor())\n",
        f"whole = model.weight.full_tensor()\n{FIRST}    print(whole)\n",
    ),
]
NOT_HOISTED = [
    f"{FIRST}    p = StateDictOptions(full_state_dict=True)\n"
    "    print(get_model_state_dict(model, options=p))\n",
    f"{FIRST}    model.eval()\n    print({GATHER})\n",
    f"for step in range(k):\n    if dist.get_rank() == 0 and step % 2:\n        print({GATHER})\n",
    f"{FIRST}    for _ in range(2):\n        print({GATHER})\n",
    f"{FIRST}    print({GATHER} if k else None)\n",
    f"{FIRST}    print({GATHER})\nelse:\n    print('wait')\n",
    f"{FIRST}    torch.distributed.barrier()\n",
    f"{FIRST}    named = model\n{FIRST}    print(get_model_state_dict(named, options=o))\n",
    f"{FIRST}    print({{n: p.full_tensor() for n, p in model.named_parameters()}})\n",
]


@pytest.mark.parametrize(("before", "after"), HOISTED)
def test_a_gather_is_made_by_all_ranks(before: str, after: str) -> None:
    new, left = changed(TRAINED, FULL + before)
    assert new == FULL + after
    assert "FSDP401" not in left


@pytest.mark.parametrize("body", NOT_HOISTED)
def test_what_only_one_rank_can_do_stays(body: str) -> None:
    new, left = changed(TRAINED, FULL + body)
    assert new == FULL + body
    assert "FSDP401" in left


@pytest.mark.parametrize(
    ("setting", "codes"),
    [
        ("", {"FSDP306"}),
        ("set_optimizer_state_dict(model, optimizer, optim_state_dict=state)", set()),
        ("set_optimizer_state_dict(model, optimizer=optimizer, optimizer_state_dict=state)", set()),
    ],
)
def test_a_state_that_is_set_by_wrong_names_is_not_called_lost(
    setting: str, codes: set[str]
) -> None:
    text = (
        "state = get_optimizer_state_dict(model, optimizer)\n"
        'dcp.load({"optim": state}, checkpoint_id="step_1")\n'
        f"{setting}\nmodel(batch).sum().backward()\noptimizer.step()\n"
    )
    source = Source("train.py", TRAINED + text)
    assert {rule.code for rule, _ in findings([source])} == codes
