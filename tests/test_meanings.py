"""What PyTorch calls do, asked of small scripts: the events they leave, in plain words."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.meanings import load
from fsdp2lint.meanings.registry import CALLS, METHODS, canonical
from fsdp2lint.model.events import Called
from fsdp2lint.model.trace import Trace
from fsdp2lint.project import Project
from fsdp2lint.source import Source

HEADER = """
import copy, functools, itertools, os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.fsdp import fully_shard, FullyShardedDataParallel as FSDP

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

"""


def trace_of(text: str) -> Trace:
    """The trace of a script that begins with :data:`HEADER`."""
    project = Project.of([Source("train.py", HEADER + dedent(text))])
    return next(iter(traces(project)))


def happenings(text: str) -> list[str]:
    """What happened, with its conditions; plain calls left out."""
    said = []
    for event in trace_of(text).events:
        if not isinstance(event, Called):
            when = event.guards.words()
            said.append(f"{event.words()} {when}".strip())
    return said


def results(text: str, name: str = "tell") -> list[str]:
    """What the first argument of each call of the unknown function ``tell`` is."""
    found = [e for e in trace_of(text).of(Called) if e.name == f"builtins.{name}"]
    return [e.arguments[0].words() for e in found]


SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "fully_shard under its old name": (
        """
        from torch.distributed._composable.fsdp import fully_shard as shard
        from torch.distributed._composable.fsdp.fully_shard import fully_shard as other
        net = Net()
        shard(net.head)
        other(net)
        """,
        ["sharded net.head", "sharded net"],
    ),
    "the function of the same name that is FSDP1": (
        """
        from torch.distributed._composable import fully_shard as old
        net = Net()
        old(net)
        """,
        ["net escaped to torch.distributed._composable.fully_shard"],
    ),
    "fully_shard of a list": (
        """
        net = Net()
        fully_shard([net.head, net.blocks[0]])
        """,
        ["sharded net.head and net.blocks[0]"],
    ),
    "the methods of a sharded module": (
        """
        from torch.distributed.fsdp import register_fsdp_forward_method
        net = fully_shard(Net())
        net.set_requires_gradient_sync(False)
        net.set_requires_gradient_sync(net.training)
        net.unshard()
        net.reshard()
        register_fsdp_forward_method(net, "generate")
        """,
        [
            "sharded net",
            "gradient sync of net switched off",
            "gradient sync of net switched on or off",
            "unsharded net",
            "resharded net",
            "registered generate of net",
        ],
    ),
    "no_sync of a wrapper": (
        """
        net = Net()
        net = FSDP(net)
        with net.no_sync():
            net(1).backward()
        """,
        [
            "wrapped net by fsdp1",
            "no_sync of net",
            "forward of net",
            "forward of net.blocks[0]",
            "forward of net.blocks[0].lin",
            "forward of net.blocks[1]",
            "forward of net.blocks[1].lin",
            "forward of net.head",
            "backward",
        ],
    ),
    "wrap inside enable_wrap, and outside": (
        """
        from torch.distributed.fsdp.wrap import enable_wrap, wrap
        with enable_wrap(wrapper_cls=FSDP):
            inner = nn.Linear(1, 1)
            wrap(inner)
        outer = wrap(nn.Linear(1, 1))
        fully_shard(outer)
        """,
        ["wrapped inner by fsdp1", "sharded outer"],
    ),
    "state dicts of FSDP1 and their kinds": (
        """
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        net = Net()
        net = FSDP(net)
        a = net.state_dict()
        full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, full):
            b = net.state_dict()
        with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
            c = net.state_dict()
        FSDP.set_state_dict_type(net, StateDictType.LOCAL_STATE_DICT)
        d = net.state_dict()
        """,
        [
            "wrapped net by fsdp1",
            "collective state_dict",
            "full state dict of net taken",
            "collective state_dict",
            "full state dict of net taken",
            "sharded state dict of net taken",
            "sharded state dict of net taken",
        ],
    ),
    "optimizer states of FSDP1": (
        """
        net = Net()
        net = FSDP(net)
        opt = torch.optim.SGD(net.parameters(), lr=1)
        state = FSDP.optim_state_dict(net, opt)
        opt.load_state_dict(FSDP.optim_state_dict_to_load(net, opt, state))
        """,
        [
            "wrapped net by fsdp1",
            "optimizer built over net.parameters()",
            "collective optim_state_dict",
            "full optimizer state of opt taken",
            "restored opt through .load_state_dict",
        ],
    ),
    "optimizers under many names": (
        """
        import bitsandbytes as bnb
        net = Net()
        a = torch.optim.SGD([{"params": net.head.parameters()}, {"params": net.blocks.parameters()}])
        b = getattr(torch.optim, "Adam" + "W")(net.parameters())
        c = getattr(torch.optim, os.environ["OPT"])(net.parameters())
        d = bnb.optim.AdamW8bit(p for p in net.parameters() if p.requires_grad)
        e = functools.partial(torch.optim.AdamW, lr=1)(list(net.parameters()))
        f = torch.optim.lr_scheduler.StepLR(a, 1)
        f.step()
        a.step()
        a.add_param_group({"params": itertools.chain(net.head.parameters(), net.blocks.parameters())})
        """,
        [
            "optimizer built over net.head.parameters() and net.blocks.parameters()",
            *["optimizer built over net.parameters()"] * 4,
            "stepped a",
            "optimizer built over net.head.parameters() and net.blocks.parameters()",
        ],
    ),
    "an optimizer of the project": (
        """
        class Mine(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

        net = Net()
        opt = Mine(net.parameters(), 1)
        """,
        ["optimizer built over net.parameters()"],
    ),
    "a class that is given parameters and is no optimizer": (
        """
        from somewhere import Average
        net = Net()
        Average(net.parameters())
        """,
        ["net.parameters() escaped to somewhere.Average"],
    ),
    "the steps of a scaler": (
        """
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1)
        scaler = torch.amp.GradScaler("cuda")
        loss = net.head(1)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        """,
        [
            "optimizer built over net.parameters()",
            "forward of net.head",
            "backward",
            "clipped net.parameters()",
            "stepped opt",
        ],
    ),
    "parameters taken early and used late": (
        """
        net = Net()
        params = list(net.parameters())
        fully_shard(net)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        """,
        ["sharded net", "clip_grad_norm_ used net.parameters()", "clipped net.parameters()"],
    ),
    "an average of parameters taken early": (
        """
        net = Net()
        params = list(net.parameters())
        shadow = [p.detach().clone() for p in params]
        fully_shard(net)
        torch._foreach_lerp_(shadow, params, 0.1)
        """,
        ["sharded net", "_foreach_lerp_ used net.parameters()"],
    ),
    "moves of a module and of a tensor": (
        """
        net = Net().to("cuda").half()
        x = torch.ones(1).to("cuda")
        net.to_empty(device="cuda")
        net.train().eval().requires_grad_(False)
        """,
        ["moved net by to", "moved net by half", "moved net by to_empty"],
    ),
    "a module that grows": (
        """
        net = Net()
        net.blocks.append(Block())
        net.add_module("tail", nn.Linear(1, 1))
        setattr(net, "extra", nn.Linear(1, 1))
        for block in net.blocks:
            fully_shard(block)
        """,
        [
            "assigned net.blocks.2",
            "assigned net.tail",
            "assigned net.extra",
            "sharded net.blocks[0]",
            "sharded net.blocks[1]",
            "sharded net.blocks[2]",
        ],
    ),
    "forward called by hand": (
        """
        head = nn.Linear(1, 1)
        head.forward(1)
        """,
        ["forward of head through .forward"],
    ),
    "wrappers one over the other": (
        """
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.nn.parallel import DistributedDataParallel as DDP
        net = Net()
        net = checkpoint_wrapper(net)
        net = torch.compile(net)
        net = DDP(net)
        fully_shard(net.module)
        copied = copy.deepcopy(net)
        fully_shard(copied)
        """,
        [
            "wrapped net by checkpoint",
            "wrapped net by compile",
            "wrapped net by ddp",
            "collective DistributedDataParallel",
            "sharded net",
            "sharded copied",
        ],
    ),
    "recomputation calls the function": (
        """
        from torch.utils.checkpoint import checkpoint
        head = nn.Linear(1, 1)
        checkpoint(head, 1, use_reentrant=False)
        """,
        ["forward of head"],
    ),
    "the state dict helpers": (
        """
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict)
        net = fully_shard(Net())
        opt = torch.optim.SGD(net.parameters(), lr=1)
        a = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        m, o = get_state_dict(net, opt)
        set_state_dict(net, opt, model_state_dict=m, optim_state_dict=o)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(net, a, options=options)
        """,
        [
            "sharded net",
            "optimizer built over net.parameters()",
            "collective get_model_state_dict",
            "full state dict of net taken",
            "sharded state dict of net taken",
            "sharded optimizer state of opt taken",
            "restored net through torch.distributed.checkpoint.state_dict.set_state_dict",
            "restored opt through torch.distributed.checkpoint.state_dict.set_state_dict",
            "collective set_model_state_dict",
            "restored net through torch.distributed.checkpoint.state_dict.set_model_state_dict",
        ],
    ),
    "a stateful object in a checkpoint": (
        """
        class App:
            def __init__(self, net):
                self.net = net
            def state_dict(self):
                return {"model": self.net.state_dict()}
            def load_state_dict(self, state):
                self.net.load_state_dict(state["model"])

        net = fully_shard(Net())
        dcp.load({"app": App(net)}, checkpoint_id="x")
        dcp.save({"net": net}, checkpoint_id="x")
        """,
        [
            "sharded net",
            "state dict of net taken",
            "collective load",
            "loaded with load into net.state_dict()",
            "restored net through .load_state_dict",
            "state dict of net taken",
            "collective save",
            "saved net.state_dict() with save",
        ],
    ),
    "an asynchronous save": (
        """
        net = Net()
        future = dcp.async_save({"net": net.state_dict()}, checkpoint_id="x")
        future.result()
        """,
        [
            "state dict of net taken",
            "collective async_save",
            "saved net.state_dict() with async_save",
            "awaited future",
        ],
    ),
    "files of one process": (
        """
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1)
        torch.save({"m": net.state_dict(), "o": opt.state_dict()}, "x.pt")
        net.load_state_dict(torch.load("x.pt")["m"])
        """,
        [
            "optimizer built over net.parameters()",
            "state dict of net taken",
            "optimizer state of opt taken",
            "saved net.state_dict() and opt.state_dict() with save",
            "loaded with load",
            "restored net through .load_state_dict",
        ],
    ),
    "rank guards in their spellings": (
        """
        from accelerate import Accelerator
        accelerator = Accelerator()
        if dist.get_rank() == 0: dist.barrier()
        if int(os.environ["RANK"]) != 0: dist.barrier()
        if os.environ.get("LOCAL_RANK") == 0: dist.barrier()
        if not accelerator.is_main_process: dist.barrier()
        """,
        [
            "collective barrier when rank == 0",
            "collective barrier when not (rank == 0)",
            "collective barrier when local rank == 0",
            "collective barrier when not (rank == 0)",
        ],
    ),
    "whether the group is there": (
        """
        dist.init_process_group("nccl")
        if dist.is_initialized(): dist.barrier()
        dist.destroy_process_group()
        if dist.is_initialized(): dist.barrier()
        """,
        [
            "process group started on nccl",
            "collective barrier",
            "process group destroyed",
        ],
    ),
    "functions started in processes": (
        """
        import torch.multiprocessing as mp
        def work(rank, size):
            if rank == 0: dist.barrier()
        mp.spawn(work, args=(2,), nprocs=2)
        for i in range(2):
            p = mp.Process(target=work, args=(i, 2))
            p.start()
        """,
        ["collective barrier when rank == 0"] * 3,
    ),
    "meshes": (
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        if mesh["dp"].get_local_rank() == 0: dist.barrier()
        """,
        [
            "collective init_device_mesh",
            "collective barrier when dp rank == 0",
        ],
    ),
    "a framework takes the model over": (
        """
        from accelerate import Accelerator
        net = Net()
        accelerator = Accelerator()
        net = accelerator.prepare(net)
        accelerator.wait_for_everyone()
        """,
        ["net escaped to .prepare", "collective wait_for_everyone"],
    ),
    "printing and logging keep nothing": (
        """
        import logging, wandb
        net = Net()
        print(net)
        logging.getLogger(__name__).info("%s", net)
        wandb.log({"n": sum(p.numel() for p in net.parameters())})
        torch.save(net.state_dict(), "x")
        """,
        ["state dict of net taken", "saved net.state_dict() with save"],
    ),
    "unknown code keeps everything": (
        """
        from elsewhere import setup
        net = Net()
        setup(net)
        """,
        ["net escaped to elsewhere.setup"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected


VALUES: dict[str, tuple[str, list[str]]] = {
    "isinstance of what is known": (
        """
        tell(isinstance(Net(), nn.Module))
        tell(isinstance(Net(), Block))
        tell(isinstance(Net(), (Block, Net)))
        tell(isinstance(FSDP(Net()), FSDP))
        tell(isinstance([1], list))
        tell(isinstance(True, int))
        """,
        ["True", "False", "True", "True", "True", "True"],
    ),
    "the wrapper taken off if there is one": (
        """
        net = Net()
        tell(net.module if hasattr(net, "module") else net)
        outer = FSDP(net)
        tell(outer.module if hasattr(outer, "module") else outer)
        tell(outer.module if isinstance(outer, FSDP) else outer)
        """,
        ["net", "net", "net"],
    ),
    "strings and numbers": (
        """
        tell("a,b".split(",")[1])
        tell(len([1, 2]))
        tell(str(3).zfill)
        tell("AdamW".lower())
        tell(max(1, 2))
        """,
        ["'b'", "2", "'3'.zfill", "'adamw'", "2"],
    ),
    "dictionaries": (
        """
        d = dict(a=1)
        d.update(b=2)
        tell(d.get("b"))
        tell(d.get("c", 3))
        tell(d.pop("a"))
        tell(d.get("a", 4))
        for key, value in d.items():
            tell(key)
        """,
        ["2", "3", "1", "4", "'b'"],
    ),
    "sequences": (
        """
        for i, (a, b) in enumerate(zip([1, 2], [3, 4])):
            tell(i)
            tell(b)
        tell(list(reversed([5, 6]))[0])
        tell(next(iter([7])))
        """,
        ["0", "3", "1", "4", "6", "7"],
    ),
    "named tuples and namespaces": (
        """
        from collections import namedtuple
        from types import SimpleNamespace
        Pair = namedtuple("Pair", "left right")
        tell(Pair(1, 2).right)
        tell(SimpleNamespace(x=3).x)
        """,
        ["2", "3"],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_builtins_give_these_values(name: str) -> None:
    script, expected = VALUES[name]
    assert results(script) == expected


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        (
            "torch.distributed.fsdp._fully_shard._fully_shard.fully_shard",
            "torch.distributed.fsdp.fully_shard",
        ),
        (
            "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
            "torch.distributed.fsdp.FullyShardedDataParallel",
        ),
        ("torch.distributed.checkpoint.state_dict_saver.save", "torch.distributed.checkpoint.save"),
        ("torch.distributed._tensor.DTensor", "torch.distributed.tensor.DTensor"),
        ("torch.distributed._tensor.DeviceMesh", "torch.distributed.device_mesh.DeviceMesh"),
        ("torch.distributed.distributed_c10d.all_reduce", "torch.distributed.all_reduce"),
        ("torch.nn.utils.clip_grad.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
        ("torch.optim.adamw.AdamW", "torch.optim.AdamW"),
        (
            "torch.distributed._composable.fully_shard",
            "torch.distributed._composable.fully_shard",
        ),
    ],
)
def test_one_name_for_one_thing(spelled: str, meant: str) -> None:
    load()
    assert canonical(spelled) == meant
    assert canonical(meant) == meant


def test_meanings_are_kept_under_canonical_names() -> None:
    load()
    assert [name for name in CALLS if canonical(name) != name] == []


@pytest.mark.parametrize("arguments", ["", "1", "None, None", "*a, **k", "[], {}, (), net"])
def test_no_meaning_minds_odd_arguments(arguments: str) -> None:
    load()
    functions = [n for n in sorted(CALLS) if "." in n and n.replace(".", "").isidentifier()]
    imports = "".join(f"import {name.rpartition('.')[0]}\n" for name in functions)
    script = "net = Net()\nopt = torch.optim.SGD(net.parameters())\n" + "".join(
        f"{name.removeprefix('builtins.')}({arguments})\n" for name in functions
    )
    for receiver in ("x", "net", "[]", "opt"):
        script += "".join(f"{receiver}.{name}({arguments})\n" for name in sorted(METHODS))
    called = {e.name for e in trace_of(imports + script).of(Called)}
    assert called >= set(functions) - {"builtins.super"}
    assert called >= {f".{name}" for name in METHODS if name != "__init__"}
