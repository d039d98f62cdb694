"""Further fixes of rules, shape by shape: what comes out, and where none is offered."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended

IMPORTS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
"""


def after(body: str, code: str) -> tuple[str, bool]:
    """What the fixes of one rule make of a script below its imports, and whether the rule is then silent."""
    source = Source("train.py", IMPORTS + body)
    said = [one for one in findings([source]) if one[0].code == code]
    assert said, f"{code} does not speak of this"
    (new,) = mended([source], said)
    quiet = not any(rule.code == code for rule, _ in findings([new]))
    return new.text, quiet


MIXED = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.block(x))


def shard(module, policy):
    fully_shard(module, mp_policy=policy)


def options(policy):
    return {"mp_policy": policy}


low, high = torch.bfloat16, torch.float32
dist.init_process_group("gloo")
net = Model()
"""
TRAINED = "net(torch.randn(4, 8)).sum().backward()\n"


def test_output_dtype_leaves_by_position() -> None:
    body = (
        "fully_shard(net.block, mp_policy=MixedPrecisionPolicy(low, high, high))\n"
        "fully_shard(net, mp_policy=MixedPrecisionPolicy(low))\n"
    )
    new = body.replace("low, high, high", "low, high")
    assert after(MIXED + body + TRAINED, "FSDP255") == (IMPORTS + MIXED + new + TRAINED, True)


def test_output_dtype_leaves_options_that_are_shared() -> None:
    made = "given = options(MixedPrecisionPolicy(low, output_dtype=high))\n"
    root = "fully_shard(net, **given)\n"
    body = made + "fully_shard(net.block, **given, reshard_after_forward=True)\n" + root
    policy = 'replace(given["mp_policy"], output_dtype=None)'
    shown = (
        f'inner = {{**given, "mp_policy": {policy}}}\n'
        "fully_shard(net.block, **inner, reshard_after_forward=True)\n"
    )
    new = "from dataclasses import replace\n\n" + IMPORTS + MIXED + made + shown + root + TRAINED
    assert after(MIXED + body + TRAINED, "FSDP255") == (new, True)


@pytest.mark.parametrize(
    "body",
    [
        # one call for the root and its parts
        "policy = MixedPrecisionPolicy(low, output_dtype=high)\n"
        "shard(net.block, policy)\nshard(net, policy)\n",
        # what is passed on has no name
        "policy = MixedPrecisionPolicy(low, output_dtype=high)\n"
        "fully_shard(net.block, **options(policy))\nfully_shard(net, **options(policy))\n",
    ],
)
def test_output_dtype_stays(body: str) -> None:
    assert after(MIXED + body + TRAINED, "FSDP255") == (IMPORTS + MIXED + body + TRAINED, False)


LOST = "with torch.no_grad():\n    net.weight[0].zero_()\n"
BUILT = 'dist.init_process_group("gloo")\nnet = nn.Linear(8, 8)\n'
LOOP = "def shard_all(module):\n    for part in module.children():\n        fully_shard(part)\n\n\n"


@pytest.mark.parametrize(
    "shard",
    [
        "fully_shard(net)\n",
        "net = fully_shard(net)\n",
        "shard_all(net)\nfully_shard(net)\n",
    ],
)
def test_a_lost_write_moves_above_the_sharding(shard: str) -> None:
    head = IMPORTS + LOOP + BUILT
    new = head + LOST + shard
    assert after(new.removeprefix(IMPORTS).replace(LOST + shard, shard + LOST), "FSDP249") == (
        new,
        True,
    )


@pytest.mark.parametrize(
    "body",
    [
        # what is loaded between would be written over
        "fully_shard(net)\nnet.load_state_dict(kept)\n" + LOST,
        # the row is chosen between
        "fully_shard(net)\nrow = 3\nnet.weight.data[row].zero_()\n",
        # other work stands beside it
        "fully_shard(net)\n" + LOST + "    print(net.weight)\n",
        "fully_shard(net)\ntorch.manual_seed(1)\nnn.init.normal_(net.weight[0])\n",
        # it is made of the shard
        "fully_shard(net)\nnn.init.zeros_(net.weight[net.weight.device_mesh.get_local_rank()])\n",
        # the two stand in different functions
        "def shard(net):\n    fully_shard(net)\n    print('sharded')\n    return net\n\n\n"
        "net = shard(net)\n" + LOST,
    ],
)
def test_a_lost_write_stays(body: str) -> None:
    body = BUILT + "kept = net.state_dict()\n" + body
    assert after(body, "FSDP249") == (IMPORTS + body, False)


NCCL = 'dist.init_process_group("nccl")\n'
ON_GPU = "net = nn.Linear(8, 8).cuda()\nfully_shard(net)\n"
CHOICE = "torch.cuda.set_device({})\n"
RANK = 'rank = int(os.environ["LOCAL_RANK"])\n'
CHOSEN = [
    (NCCL, "import os\n\n", CHOICE.format('int(os.environ["LOCAL_RANK"])')),
    ("import os\n" + RANK + NCCL, "", CHOICE.format("rank")),
    (
        "import os\n\n\ndef start():\n    " + RANK + "    print(rank)\n\n\nstart()\n" + NCCL,
        "",
        CHOICE.format('int(os.environ["LOCAL_RANK"])'),
    ),
]


@pytest.mark.parametrize(("head", "imports", "choice"), CHOSEN)
def test_a_device_is_chosen(head: str, imports: str, choice: str) -> None:
    new = imports + IMPORTS + head.replace(NCCL, choice + NCCL) + ON_GPU
    assert after(head + ON_GPU, "FSDP405") == (new, True)


def test_a_device_is_chosen_above_the_move_where_the_backend_comes_from_elsewhere() -> None:
    head = 'def start(backend):\n    dist.init_process_group(backend)\n\n\nstart("nccl")\n'
    choice = CHOICE.format('int(os.environ["LOCAL_RANK"])')
    new = "import os\n\n" + IMPORTS + head + choice + ON_GPU
    assert after(head + ON_GPU, "FSDP405") == (new, True)


@pytest.mark.parametrize(
    "body",
    [
        # the script numbers its ranks itself
        'dist.init_process_group("nccl", rank=0, world_size=2)\n' + ON_GPU,
        'import os\nos.environ["RANK"] = "0"\n' + NCCL + ON_GPU,
        # whether there is a GPU is asked elsewhere
        "def start(backend, device):\n    dist.init_process_group(backend)\n"
        '    return nn.Linear(8, 8).to(device)\n\n\nnet = start("nccl", "cuda")\nfully_shard(net)\n',
    ],
)
def test_no_device_is_chosen(body: str) -> None:
    assert after(body, "FSDP405") == (IMPORTS + body, False)


SHARDED = NCCL + "net = nn.Linear(8, 8)\n{}fully_shard(net)\n{}"


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("", CHOICE.format("dist.get_rank() % 8")),
        ("index = 3\n", "if torch.cuda.is_available():\n    " + CHOICE.format("index")),
        ("def choose():\n    " + CHOICE.format("0") + "\n\n", "choose()\n"),
    ],
)
def test_a_choice_moves_above_the_sharding(head: str, line: str) -> None:
    new = IMPORTS + head + SHARDED.format(line, "")
    assert after(head + SHARDED.format("", line), "FSDP417") == (new, True)


@pytest.mark.parametrize(
    "body",
    [
        SHARDED.format("", "index = 3\n" + CHOICE.format("index")),
        SHARDED.format(
            "", "if torch.cuda.is_available():\n    " + CHOICE.format("0") + "    print()\n"
        ),
    ],
)
def test_a_choice_stays_below_the_sharding(body: str) -> None:
    assert after(body, "FSDP417") == (IMPORTS + body, False)


def test_a_choice_moves_above_the_function_that_shards() -> None:
    head = "def build():\n    net = nn.Linear(8, 8)\n    fully_shard(net)\n    return net\n\n\n"
    lines = (NCCL, "net = build()\n", CHOICE.format("dist.get_rank() % 8"))
    new = IMPORTS + head + "".join((lines[0], lines[2], lines[1]))
    assert after(head + "".join(lines), "FSDP417") == (new, True)


def test_a_choice_by_the_rank_stays_below_the_start_of_the_group() -> None:
    head = f"def build():\n    {NCCL}    net = nn.Linear(8, 8)\n    fully_shard(net)\n\n\n"
    body = head + "build()\n" + CHOICE.format("dist.get_rank() % 8")
    assert after(body, "FSDP417") == (IMPORTS + body, False)


NORM = "def norm(net):\n{}\n\nnorm(net)\n"
SUM = "    dist.all_reduce(total)\n"
GRADS = "nn.utils.get_total_norm({}).full_tensor()"
WRAPPED = "\n        [p.grad for p in net.parameters() if p.grad is not None]\n    "
BY_HAND = [
    (
        "    total = 0.0\n    for p in net.parameters():\n        if p.grad is not None:\n"
        "            total += p.grad.detach().norm(2).full_tensor() ** 2\n"
        + SUM
        + "    total = total ** 0.5\n    return total\n",
        f"    total = {GRADS.format(WRAPPED)}\n    return total\n",
    ),
    (
        "    total = torch.zeros(1)\n    for p in net.parameters():\n"
        "        total = total + p.grad.data.norm(2.0).full_tensor().pow(2)\n"
        + SUM
        + "    size = total.sqrt()\n    print(size)\n",
        f"    total = {GRADS.format('[p.grad for p in net.parameters()]')}\n"
        "    size = total\n    print(size)\n",
    ),
    (
        "    squares = [p.grad.norm().full_tensor() ** 2 for p in net.parameters()]\n"
        "    total = torch.stack(squares).sum()\n" + SUM + "    return total.sqrt()\n",
        "    squares = [p.grad.norm().full_tensor() ** 2 for p in net.parameters()]\n"
        "    total = torch.stack(squares).sum()\n    return total.sqrt()\n",
    ),
]
NOT_BY_HAND = [
    # another function brings the norm, and may bring other numbers
    "    total = summed(nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor())\n    return total\n",
    # a loss is summed with it
    "    total = nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor() + net(torch.randn(4, 8)).sum()\n"
    + SUM,
    # the value of the call is used
    "    total = nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor()\n"
    "    work = dist.all_reduce(total, async_op=True)\n    work.wait()\n",
]
SUMMED = "def summed(total):\n" + SUM + "    return total\n\n\n"
SHARD_AND_TRAIN = BUILT + "fully_shard(net)\n" + TRAINED


@pytest.mark.parametrize(("before", "made"), BY_HAND)
def test_a_norm_is_not_summed_again(before: str, made: str) -> None:
    new = IMPORTS + SHARD_AND_TRAIN + NORM.format(made)
    assert after(SHARD_AND_TRAIN + NORM.format(before), "FSDP246") == (new, True)


@pytest.mark.parametrize("body", NOT_BY_HAND)
def test_a_norm_with_an_unclear_sum_stays(body: str) -> None:
    body = SHARD_AND_TRAIN + SUMMED + NORM.format(body)
    assert after(body, "FSDP246") == (IMPORTS + body, False)


def test_the_squares_stay_where_they_are_used_again() -> None:
    body = (
        "    total = 0.0\n    for p in net.parameters():\n"
        "        total += p.grad.norm().full_tensor() ** 2\n"
        + SUM
        + "    size = total.sqrt()\n    return size, total\n"
    )
    new = IMPORTS + SHARD_AND_TRAIN + NORM.format(body.replace(SUM, ""))
    assert after(SHARD_AND_TRAIN + NORM.format(body), "FSDP246") == (new, True)


READ = 'import os\nhere = int(os.environ["LOCAL_RANK"])\n'


def test_the_rank_on_the_host_chooses() -> None:
    body = READ + NCCL + CHOICE.format("{}") + "net = nn.Linear(8, 8)\nfully_shard(net)\n"
    new = IMPORTS + body.format("here")
    assert after(body.format("dist.get_rank()"), "FSDP417") == (new, True)


def test_the_rank_stays_where_devices_are_named_by_it() -> None:
    body = (
        READ
        + NCCL
        + CHOICE.format("dist.get_rank()")
        + 'net = nn.Linear(8, 8).to(f"cuda:{dist.get_rank()}")\nfully_shard(net)\n'
    )
    assert after(body, "FSDP417") == (IMPORTS + body, False)


def test_a_number_that_callers_hand_over_stays() -> None:
    head = "def start(rank):\n    torch.cuda.set_device(rank)\n\n\n"
    body = head + READ + NCCL + "start(dist.get_rank())\nnet = nn.Linear(8, 8)\nfully_shard(net)\n"
    assert after(body, "FSDP417") == (IMPORTS + body, False)


WRITTEN = """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


def whole(model):
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


dist.init_process_group("gloo")
net = nn.Linear(8, 8)
fully_shard(net)
torch.save(whole(net), "last.pt")
state = whole(net)
"""


def test_a_write_that_gathers_stays_with_all_ranks() -> None:
    new = WRITTEN + 'if dist.get_rank() == 0:\n    torch.save(state, "best.pt")\n'
    text, quiet = after(WRITTEN + 'torch.save(state, "best.pt")\n', "FSDP310")
    assert (text, quiet) == (IMPORTS + new, False)


def test_files_of_each_rank_stay_where_each_rank_reads_its_own() -> None:
    head = 'dist.init_process_group("gloo")\nnet = nn.Linear(8, 8)\nfully_shard(net)\n'
    save = 'torch.save(net.state_dict(), f"shard_{dist.get_rank()}.pt")\n'
    load = 'net.load_state_dict(torch.load(f"shard_{dist.get_rank()}.pt"))\n'
    assert "full_state_dict=True" in after(head + save, "FSDP301")[0]
    assert after(head + save + load, "FSDP301") == (IMPORTS + head + save + load, False)
