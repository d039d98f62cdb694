"""Meetings that a value keeps some ranks away from, and those of a mesh's group (FSDP401, FSDP402, FSDP411), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
model = nn.Linear(8, 8)
fully_shard(model, mesh=mesh["dp"])


def load(path):
    dcp.load({"model": model.state_dict()}, checkpoint_id=path)


"""

KEPT_AWAY = {
    "a path that rank 0 looks for": """
        path = max(os.listdir("ckpt")) if rank == 0 else None
        if path is not None:
            load(path)  # expect: FSDP401
        """,
    "a name that is bound again": """
        path = None
        if rank == 0:
            path = max(os.listdir("ckpt"))
        if path:
            load(path)  # expect: FSDP401
        """,
    "a function that gives one rank something": """
        def newest():
            if rank == 0 and os.path.isdir("ckpt"):
                return max(os.listdir("ckpt"))
            return None

        path = newest()
        if path is not None:
            load(path)  # expect: FSDP401
        """,
    "an attribute": """
        class Trainer:
            def __init__(self):
                self.log = print if rank == 0 else None

            def fit(self):
                for _ in range(10):
                    loss = model(torch.ones(1, 8)).mean()
                    if self.log is not None:
                        dist.all_reduce(loss)  # expect: FSDP401
                        self.log(loss.item())

        Trainer().fit()
        """,
    "data for the evaluation": """
        held_out = [torch.ones(1, 8)] if rank == 0 else None

        def evaluate():
            model.eval()
            with torch.no_grad():
                for x in held_out:
                    model(x)
            model.train()

        if held_out is not None:
            evaluate()  # expect: FSDP411
        """,
}

OF_A_GROUP = {
    "a helper that reduces over one dimension": """
        def mean(value):
            dist.all_reduce(value, op=dist.ReduceOp.SUM, group=mesh.get_group("dp"))
            return value / mesh["dp"].size()

        for step in range(100):
            loss = model(torch.ones(1, 8)).sum()
            loss.backward()
            if step % 10 == 0 and rank == 0:
                print(mean(loss.detach()))  # expect: FSDP401
        """,
    "a barrier of a group that the others never reach": """
        def finish():
            if rank != 0:
                return
            dist.barrier(group=mesh["dp"].get_group())  # expect: FSDP402

        finish()
        """,
    "the first rank of each node or dimension": """
        group = mesh["dp"].get_group()
        if int(os.environ["LOCAL_RANK"]) == 0:
            dist.all_reduce(torch.ones(1), group=group)
        if mesh["tp"].get_local_rank() == 0:
            dist.all_reduce(torch.ones(1), group=group)
        if mesh.get_local_rank("tp") == 0:
            dist.all_reduce(torch.ones(1), group=group)
        """,
    "the ranks of one place": """
        if rank // 4 == 0:
            dist.all_reduce(torch.ones(1), group=mesh["tp"].get_group())
        """,
    "the ranks of another node leave": """
        def finish():
            if int(os.environ["LOCAL_RANK"]) != 0:
                return
            dist.barrier(group=mesh["dp"].get_group())

        finish()
        """,
    "both sides": """
        if rank == 0:
            dist.broadcast(torch.ones(1), src=0, group=mesh.get_group("tp"))
        else:
            dist.broadcast(torch.zeros(1), src=0, group=mesh.get_group("tp"))
        """,
}


TOGETHER = {
    "the path is told to all": """
        path = max(os.listdir("ckpt")) if rank == 0 else None
        told = [path]
        dist.broadcast_object_list(told, src=0)
        path = told[0]
        if path is not None:
            load(path)
        """,
    "a list that is filled on one rank": """
        path = [None]
        if rank == 0:
            path[0] = max(os.listdir("ckpt"))
        dist.broadcast_object_list(path, src=0)
        if path[0]:
            load(path[0])
        """,
    "a function that tells it": """
        def share(value):
            box = [value if rank == 0 else None]
            dist.broadcast_object_list(box)
            return box[0]

        latest = None
        if rank == 0:
            latest = max(os.listdir("ckpt"))
        latest = share(latest)
        if latest is not None:
            load(latest)
        """,
    "a list of its own on each side": """
        if rank != 0:
            box = [None]
        else:
            box = [max(os.listdir("ckpt"))]
        dist.broadcast_object_list(box, 0)
        if box[0]:
            load(box[0])
        """,
    "a tensor that is broadcast": """
        stop = torch.zeros(1)
        if rank == 0:
            stop = torch.ones(1)
        dist.broadcast(stop, 0)
        if stop.item() == 1:
            dist.barrier()
        """,
    "a flag of a trainer that is reduced": """
        class Run:
            def __init__(self):
                self.stop = False

            def ask(self):
                if rank == 0:
                    self.stop = os.path.exists("STOP")
                flag = torch.tensor([self.stop], dtype=torch.int)
                dist.broadcast(flag, src=0)
                self.stop = bool(flag.item())

            def go(self):
                while True:
                    self.ask()
                    if self.stop:
                        dist.barrier()
                        break

        Run().go()
        """,
    "what all ranks have is gathered": """
        state = {"stop": None}
        if rank == 0:
            state["stop"] = os.path.exists("STOP")
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, state)
        if states[0]["stop"]:
            dist.barrier()
        """,
    "a file that one rank writes and all read": """
        stop = None
        if rank == 0:
            stop = os.path.exists("STOP")
            json.dump({"stop": stop}, open("state.json", "w"))
        dist.barrier()
        stop = json.load(open("state.json"))["stop"]
        if stop:
            dist.barrier()
        """,
    "both sides meet": """
        path = None
        if rank == 0:
            path = max(os.listdir("ckpt"))
        if path is not None:
            dist.barrier()
        else:
            dist.barrier()
        """,
    "only the writing is of one rank": """
        writer = open("log") if rank == 0 else None
        for _ in range(3):
            model(torch.ones(1, 8)).sum().backward()
            if writer is not None:
                writer.write("step")
            dist.barrier()
        """,
}


@pytest.mark.parametrize("form", [*KEPT_AWAY, *OF_A_GROUP, *TOGETHER])
def test_a_value_that_only_one_rank_has_keeps_the_others_away(form: str) -> None:
    script = dedent({**KEPT_AWAY, **OF_A_GROUP, **TOGETHER}[form])
    source = Source("train.py", HEAD + script)
    assert named(list(findings([source]))) == marked([source], "expect")
