"""Plans of scripts: what is read off, what stops them, and how two of them differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fsdp2lint.cli.plan import command
from fsdp2lint.plan import CannotPlan, Plan, amounts, compare_plans, plan
from fsdp2lint.plan.errand import Answer
from fsdp2lint.plan.words import record, rendered
from fsdp2lint.prove.ladder import Rung
from fsdp2lint.prove.planning import climbed
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.system.paint import plain

from .scenes import ROOT, serving

pytestmark = pytest.mark.ranks

HEAD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 16)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def wrap(model, **settings):
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True,
                device_id=torch.cuda.current_device(), **settings)

def shard(model, **settings):
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % 8)
"""
SPLIT = """
def split(model):
    heavy = [p for p in model.parameters() if p.ndim > 1]
    light = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": heavy, "weight_decay": 0.1}, {"params": light, "weight_decay": 0.0}]
"""
TRAIN = """
model(torch.randn(2, WIDTH, device="cuda")).sum().backward()
optimizer.step()
raise SystemExit("training went on")
"""


FSDP1 = (
    "model = wrap(Net(WIDTH, DEPTH).cuda())\noptimizer = torch.optim.AdamW(model.parameters())\n"
)
FSDP2 = (
    "model = shard(Net(WIDTH, DEPTH).cuda())\noptimizer = torch.optim.AdamW(model.parameters())\n"
)
HYBRID = FSDP1.replace(".cuda())", ".cuda(), sharding_strategy=ShardingStrategy.HYBRID_SHARD)", 1)
MESH = 'mesh = init_device_mesh("cuda", (128, 8), mesh_dim_names=("replicate", "shard"))\n'
ON_MESH = FSDP2.replace(".cuda())", ".cuda(), mesh=mesh)", 1)
ALONE = "fully_shard(model.blocks[0])\nfully_shard(model)\n"
PEAK = """
import resource
try:
    model(torch.randn(2, WIDTH))
finally:
    open(__file__ + ".peak", "w").write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""
SCRIPTS: dict[str, tuple[int, str]] = {
    "fsdp1": (64, FSDP1),
    "fsdp2": (64, FSDP2),
    "early": (
        64,
        "model = Net(WIDTH, DEPTH).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\nshard(model)\n",
    ),
    "filter1": (64, SPLIT + FSDP1.replace("model.parameters()", "split(model)")),
    "filter2": (64, SPLIT + FSDP2.replace("model.parameters()", "split(model)")),
    "forgotten": (
        64,
        f"model = Net(WIDTH, DEPTH)\n{ALONE}optimizer = torch.optim.AdamW(model.parameters())\n",
    ),
    "hybrid": (1024, HYBRID),
    "mesh": (1024, MESH + ON_MESH),
    "swapped": (1024, MESH.replace("(128, 8)", "(8, 128)") + ON_MESH),
    "large1": (512, "WIDTH, DEPTH = 8192, 24\n" + FSDP1 + PEAK),
    "large2": (512, "WIDTH, DEPTH = 8192, 24\n" + FSDP2 + PEAK),
}


def write(folder: Path, name: str, text: str) -> Path:
    script = folder / f"{name}.py"
    script.write_text(f"WIDTH, DEPTH = 64, 2\n{HEAD}{text}{TRAIN}")
    return script


def test_a_plan_by_itself_names_what_so_many_ranks_waste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(tmp_path, "alone", FSDP2)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["--world-size", "1024", script.name])
    assert done.exit_code == 0, done.output
    assert "plan for 1024 ranks, bytes on rank 0" in done.output
    assert "1/1024, kept" in done.output
    # 16 rows of the head over 1,024 ranks: each holds one
    assert "times the parameters are stored and sent, because 1024 shards" in done.output
    assert "B for an all-gather, so it takes as long as the network answers" in done.output
    few = CliRunner().invoke(command, ["--world-size", "2", "-f", "json", script.name])
    rendered = json.loads(few.output)
    assert (rendered["world"], rendered["amounts"]["padding"]) == (2, 0)
    assert not any("shards are more than" in text for text in rendered["warnings"])


ACTIVE = """
from torch.utils.checkpoint import checkpoint
WIDTH, DEPTH = 64, 3
class Checkpointed(Net):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)
"""
STEP = """
want = torch.zeros(4, dtype=torch.long, device="cuda")
out = model(torch.randn(4, WIDTH, device="cuda"))
if want.float().mean().item() > 1:
    raise SystemExit("decided by values")
loss = nn.functional.cross_entropy(out, want)
if not torch.isfinite(loss) or torch.isnan(out).any() or loss.item() != loss.item():
    raise SystemExit("this loss is none")
loss.backward()
raise SystemExit("training went on")
"""
MEASURED = """
from torch.distributed._tools.mem_tracker import MemTracker
def small(): return sum(v for k, v in tracker.get_tracker_snapshot(which)[torch.device("cpu")].items() if str(k).endswith(("ACT", "TEMP")))
model = KIND(WIDTH, DEPTH)
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
want, x = torch.zeros(4, dtype=torch.long), torch.randn(4, WIDTH)
tracker = MemTracker()
tracker.track_external(model, want, x)
with tracker:
    out = model(x)
    loss = nn.functional.cross_entropy(out, want)
    which = "current"
    kept = small()
    loss.backward()
which = "peak"
print("measured", kept, small())
"""


@pytest.mark.parametrize("kind", ["Net", "Checkpointed"])
def test_what_a_step_computes_is_what_pytorch_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On eight ranks without values, beside one process with values (PyTorch's MemTracker)."""
    monkeypatch.chdir(tmp_path)
    head = HEAD[: HEAD.index("dist.init_process_group")] + ACTIVE
    (tmp_path / "real.py").write_text(head + MEASURED.replace("KIND", kind))
    ran = subprocess.run(
        [sys.executable, "real.py"], capture_output=True, text=True, check=True, timeout=600
    )
    kept, peak = map(int, ran.stdout.split()[1:])
    for name, sharded in (("fsdp1", FSDP1), ("fsdp2", FSDP2)):
        text = f"WIDTH, DEPTH = 64, 3\n{HEAD}{ACTIVE}{sharded.replace('Net(', kind + '(')}{STEP}"
        (tmp_path / f"{name}.py").write_text(text)
        done = CliRunner().invoke(command, ["--world-size", "8", "-f", "json", f"{name}.py"])
        made = json.loads(done.output)
        assert made["notes"] == []
        assert made["activations"] == {"kept": kept, "peak": peak}, name


WRAPPINGS = {
    "the whole model": "fully_shard(model)\n",
    "each of `blocks.*`": "for block in model.blocks: fully_shard(block)\nfully_shard(model)\n",
    "each of `blocks.*`, and each large module beside them": (
        "for part in [*model.blocks, model.head, model]: fully_shard(part)\n"
    ),
    "two of `blocks.*` together": (
        "for two in (model.blocks[:2], model.blocks[2:]): fully_shard(list(two))\nfully_shard(model)\n"
    ),
}


def test_what_other_groups_cost_is_what_their_plans_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plans = {}
    for name, calls in WRAPPINGS.items():
        text = (
            "model = Net(12, 4).cuda()\nmodel.head, model.rest = nn.Linear(12, 400), nn.Linear(12, 12)\n"
            + calls
        )
        built = "optimizer = torch.optim.AdamW(model.parameters())\nmodel.unshard()\n"
        Path("grouped.py").write_text(
            HEAD + text + built + TRAIN.replace("WIDTH", "12").replace(".sum()", ".mean()")
        )
        done = CliRunner().invoke(command, ["--world-size", "8", "-f", "json", "grouped.py"])
        plans[name] = json.loads(done.output)
        assert plans[name]["activations"], done.output
        assert len(plans[name]["models"]) == 1, "a slice of the blocks is no model"
    for name, made in plans.items():
        own, *others = made["wrappings"]
        assert {one["name"] for one in others} == WRAPPINGS.keys() - {name}
        assert own["size"] == made["amounts"]["traffic"]["gathered"]["size"]
        for one in others:
            planned = plans[one["name"]]["wrappings"][0]
            assert {**one, "name": "as it is"} == planned, (name, one)


def test_a_step_that_cannot_be_followed_leaves_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    step = STEP.replace("nn.functional.cross", "out[out > 0].tolist()\nnn.functional.cross")
    write(tmp_path, "alone", FSDP2)
    Path("asks.py").write_text(f"WIDTH, DEPTH = 64, 2\n{HEAD}{FSDP2}{step}")
    asks, alone = (
        CliRunner().invoke(command, ["--world-size", "8", name]).output
        for name in ("asks.py", "alone.py")
    )
    assert "how much a step computes beside parameters could not be followed" in asks
    assert "a step at most" not in asks
    assert "a step at most" in alone
    assert asks.splitlines()[1:5] == alone.splitlines()[1:5]


PREPARED = """
import torch
from torch import nn
from accelerate import Accelerator, FullyShardedDataParallelPlugin
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
accelerator = Accelerator(fsdp_plugin=plugin)
model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.backward(model(torch.randn(2, 32, device=accelerator.device)).mean())
"""


def test_accelerate_finds_the_parameters_of_an_optimizer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    Path("prepared.py").write_text(PREPARED)
    done = CliRunner().invoke(command, ["--world-size", "8", "-f", "json", "prepared.py"])
    made = json.loads(done.output)
    assert sorted(made["optimizers"][0]["groups"][0]["names"]) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.weight",
    ]
    steps = 4 * 4
    assert made["amounts"]["optimizer"] == 2 * made["amounts"]["parameters"] + steps
    assert made["activations"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scripts, planned by forks of one process that has imported PyTorch."""
    folder = tmp_path_factory.mktemp("plans")
    with serving("planned") as server:
        for name, (world, text) in SCRIPTS.items():
            script = write(folder, name, text)
            server.ask(json.dumps([str(folder / name), world, str(script)]))
    return folder


@pytest.fixture(scope="module")
def plans(folder: Path) -> dict[str, Plan]:
    answers = {
        name: msgspec.json.decode((folder / name / "answer.json").read_bytes(), type=Answer)
        for name in SCRIPTS
    }
    assert {name: answer.error for name, answer in answers.items() if answer.error} == {}
    return {name: answer.plan for name, answer in answers.items()}


def test_a_right_migration_plans_the_same(plans: dict[str, Plan]) -> None:
    before, after = plans["fsdp1"], plans["fsdp2"]
    assert compare_plans(before, after) == []
    assert climbed(before, after) == Rung(2, "reached", "the same 3 units on 64 ranks")
    assert [unit.name for unit in after.units] == ["", "blocks.0", "blocks.1"]
    assert amounts(after).traffic.gathered.calls == amounts(before).traffic.gathered.calls == 5
    text = plain(rendered([before, after]))
    assert "plan for 64 ranks" in text
    assert "2x blocks.*: 6 parameters" in text
    assert text.endswith("the same parameters form the same groups and are trained alike\n")
    assert record(after)["amounts"]["traffic"]["gathered"]["calls"] == 5


def test_an_optimizer_built_too_early_trains_nothing(plans: dict[str, Plan]) -> None:
    found = compare_plans(plans["fsdp1"], plans["early"])
    assert {difference.kind for difference in found} == {"optimizer"}
    assert climbed(plans["fsdp1"], plans["early"]).state == "failed"
    assert found[0].message == "`blocks.0.down.bias`: was in an optimizer; is in no optimizer"
    assert found[-1].message == "tensors trained that no model holds: was 0 tensors; is 14 tensors"


def test_a_decay_filter_by_dimensions_chooses_others(plans: dict[str, Plan]) -> None:
    before, after = plans["filter1"], plans["filter2"]
    found = compare_plans(before, after)
    linears = ["head", *(f"blocks.{n}.{m}" for n in (0, 1) for m in ("up", "down"))]
    assert {difference.name for difference in found} == {f"`{name}.weight`" for name in linears}
    assert {(d.before, d.after) for d in found} == {("weight_decay=0.0", "weight_decay=0.1")}
    assert "and 4 others: was weight_decay=0.0" in plain(rendered([before, after]))


def test_a_forgotten_unit_is_named(plans: dict[str, Plan]) -> None:
    found = compare_plans(plans["fsdp1"], plans["forgotten"])
    named = {difference.name: difference for difference in found if difference.kind == "group"}
    assert set(named) == {f"`head.{n}`" for n in ("weight", "bias")} | {
        f"`blocks.1.{m}.{n}`" for m in ("up", "down", "norm") for n in ("weight", "bias")
    }
    moved = named["`blocks.1.up.bias`"]
    assert (moved.before, moved.after) == ("in the group of `blocks.1`", "in the group of the root")


def test_the_mesh_of_a_hybrid_strategy_is_the_node(plans: dict[str, Plan]) -> None:
    before = plans["hybrid"]
    assert {(unit.shards, unit.replicas) for unit in before.units} == {(8, 128)}
    assert amounts(before).traffic.reduced.calls == 3
    assert compare_plans(before, plans["mesh"]) == []
    differences = compare_plans(before, plans["swapped"])
    assert {difference.message.split(": ", 1)[1] for difference in differences} == {
        "was 8 shards in 128 replicas; is 128 shards in 8 replicas"
    }


@pytest.mark.parametrize("name", ["large1", "large2"])
def test_a_large_model_needs_little_memory(folder: Path, plans: dict[str, Plan], name: str) -> None:
    large = plans[name]
    assert sum(unit.stored * unit.shards for unit in large.units) / 4 > 12e9
    assert int((folder / f"{name}.py.peak").read_text()) < 2e6  # kilobytes
    total = amounts(large)
    assert total.optimizer == pytest.approx(2 * total.parameters, rel=1e-4)


def planned(folder: Path, text: str) -> Plan:
    return plan(Request(str(write(folder, "train", text)), "", timeout=600), 64)


def test_a_script_that_looks_at_values_gets_them(tmp_path: Path) -> None:
    look = "net = Net(WIDTH, DEPTH)\nassert float(net.head.weight.norm()) > 0\n"
    text = look + FSDP2.replace("Net(WIDTH, DEPTH)", "net")
    assert [len(unit.tensors) for unit in planned(tmp_path, text).units] == [2, 6, 6]


def test_a_model_that_runs_before_its_optimizer(tmp_path: Path) -> None:
    text = FSDP1.replace("optimizer", "model(torch.randn(2, WIDTH))\noptimizer", 1)
    assert len(planned(tmp_path, text).optimizers) == 1


def test_a_script_that_catches_everything(tmp_path: Path) -> None:
    step = "while True:\n    try:\n        model(torch.randn(2, WIDTH)).sum().backward()\n"
    text = f"{FSDP2}{step}    except BaseException:\n        continue\n"
    made = planned(tmp_path, text)
    assert len(list(made.units)) == 3
    assert made.activations is not None  # else only the time that was over has ended the script


def test_tensor_parallel_parts_are_parts(tmp_path: Path) -> None:
    text = (
        "from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module\n"
        'mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))\n'
        "model = Net(WIDTH, DEPTH).cuda()\n"
        'parallelize_module(model, mesh["tp"], {"blocks.*.up": ColwiseParallel()})\n'
        + FSDP2.partition("\n")[2].replace(
            "optimizer", 'shard(model, mesh=mesh["dp"])\noptimizer', 1
        )
    )
    block = next(unit for unit in planned(tmp_path, text).units if unit.name == "blocks.0")
    up, down, norm = 4 * 64 * 64 + 4 * 64, 4 * 64 * 64 + 64, 2 * 64
    assert block.shards == 8
    assert block.stored * 8 == (up / 8 + down + norm) * 4
    assert {tensor.name: tensor.shape for tensor in block.tensors}["blocks.0.up.weight"] == (
        256,
        64,
    )


def test_a_script_that_spawns_its_ranks(tmp_path: Path) -> None:
    script = ROOT / "fixtures" / "projects" / "spawned_digits" / "main.py"
    spawned = plan(Request(str(script), ""), 512)
    assert {unit.shards for unit in spawned.units} == {512}
    assert [optimizer.kind for optimizer in spawned.optimizers] == ["Adadelta"]


def test_what_cannot_be_planned_says_why(tmp_path: Path) -> None:
    with pytest.raises(CannotPlan, match=r"train\.py: ValueError: no data") as told_why:
        planned(tmp_path, "def load():\n    raise ValueError('no data')\nload()\n")
    assert [frame.function for frame in told_why.value.frames] == ["<module>", "load"]
    with pytest.raises(CannotPlan, match="it shards no model"):
        planned(tmp_path, "raise SystemExit(0)\n")
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(CannotPlan, match="the time was over"):
        plan(Request(str(slow), "", timeout=3), 8)


LACKING = """
import torch, torch.distributed as dist, wandb
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wandb.init(project="p")
model(torch.ones(2, 64)).sum().backward()
"""


def test_what_this_machine_lacks_is_made_up_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LACKING)
    words = ["--world-size", "8", "train.py"]
    failed = CliRunner().invoke(command, words)
    assert failed.exit_code != 0
    assert "No module named 'wandb' (install `wandb`, or make it up: `--fake`" in failed.output
    done = CliRunner().invoke(command, ["--fake", *words])
    assert done.exit_code == 0, done.output
    assert "note: made up: wandb" in done.output


def test_a_script_that_fails_after_sharding_is_planned_so_far(tmp_path: Path) -> None:
    found = planned(tmp_path, "model = shard(Net(WIDTH, DEPTH))\nraise KeyError('lr')\n")
    assert len(list(found.units)) == 3
    assert found.notes == (
        "no optimizer was built",
        "the script failed before it built an optimizer: KeyError: 'lr'",
    )
