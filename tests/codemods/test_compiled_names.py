"""Checkpoints that FSDP1 wrote of a compiled model go on in the migrated program, under torchrun as it is.

A rehearsal switches ``torch.compile`` off, so these programs are run without one: they are for CPU ranks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.reading import read

pytestmark = pytest.mark.ranks

pytest.importorskip("torch")

HEAD = '''"""Train for STEPS steps from where the checkpoint FROM ends, and write the checkpoint TO."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType

# by default FSDP1 offloads it, and writes exp_avg_sq in place of exp_avg on a CPU
HERE = FullOptimStateDictConfig(offload_to_cpu=False)


def main():
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net = FSDP(net, use_orig_params=True, device_id=torch.device("cpu"))
    net = torch.compile(net, backend="eager")
    optimizer = torch.optim.AdamW(net.parameters(), lr=float(os.environ["LR"]))
    if os.environ["FROM"]:
        resume(net, optimizer, os.environ["FROM"])
    for _ in range(int(os.environ["STEPS"])):
        loss = net(torch.arange(8.0).view(2, 4)).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print("trained", loss.item(), optimizer.param_groups[0]["lr"])
    store(net, optimizer, os.environ["TO"])
    dist.barrier()
'''

FOLDERS = """

def store(net, optimizer, path):
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        states = {"net": net.state_dict(), "optim": FSDP.optim_state_dict(net, optimizer)}
    dcp.save(states, checkpoint_id=path)


def resume(net, optimizer, path):
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        state = {"net": net.state_dict()}
        dcp.load(state, checkpoint_id=path)
        net.load_state_dict(state["net"])
        reader = dcp.FileSystemReader(path)
        found = load_sharded_optimizer_state_dict(state["net"], "optim", reader)
        flat = FSDP.optim_state_dict_to_load(net, optimizer, found["optim"])
    optimizer.load_state_dict(flat)


main()
"""

FILES = """

def store(net, optimizer, path):
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), HERE):
        states = {"net": net.state_dict(), "optim": FSDP.optim_state_dict(net, optimizer)}
    if dist.get_rank() == 0:
        torch.save(states, path)


def resume(net, optimizer, path):
    held = torch.load(path)
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        net.load_state_dict(held["net"])
        flat = FSDP.optim_state_dict_to_load(net, optimizer, held["optim"])
    optimizer.load_state_dict(flat)


main()
"""


STAGES = """import os, runpy, sys
for stage in sys.argv[1:]:
    script, steps, rate, old, new = stage.split(",")
    os.environ.update(STEPS=steps, LR=rate, FROM=old, TO=new)
    if os.environ["RANK"] == "0":
        print("stage", stage, flush=True)
    runpy.run_path(script)
import torch.distributed as dist
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's worker threads may abort an interpreter that winds itself up
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_old_checkpoint_goes_on(kind: str, tmp_path: Path) -> None:
    """The losses after it, and the learning rate, are those of the old program that goes on from it."""
    before = tmp_path / "before.py"
    before.write_text(HEAD + (FOLDERS if kind == "folder" else FILES))
    made = migrate((read(before),), knowledge.codemods())
    assert made.failures == []
    (tmp_path / "after.py").write_text(made.after[0].text)
    (tmp_path / "stages.py").write_text(STAGES)
    end = "" if kind == "folder" else ".pt"
    first, wanted = run(
        tmp_path, f"before.py,2,0.1,,half{end}", f"before.py,2,0.5,half{end},old{end}"
    )
    (found,) = run(tmp_path, f"after.py,2,0.5,half{end},new{end}")
    assert len(wanted) == 2
    assert found == wanted != first
    assert all(one.endswith(" 0.1") for one in found)


def run(folder: Path, *stages: str) -> list[list[str]]:
    """What the first rank says of its steps, stage by stage."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    started = subprocess.Popen(
        [*command, "stages.py", *stages],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, problems = started.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        started.terminate()  # torchrun ends its ranks
        started.communicate(timeout=600)
        raise
    assert started.returncode == 0, problems[-3000:]
    said = re.split(r"^stage .*$", out, flags=re.MULTILINE)[1:]
    return [re.findall(r"^trained (.+)$", one, re.MULTILINE) for one in said]
