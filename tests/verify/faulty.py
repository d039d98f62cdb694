"""Faults of a run, each planted alone in a correct program, and the words by which `rehearse` names it."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from fsdp2lint.rehearse import launch
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.rehearse.rehearse import rehearse
from fsdp2lint.rehearse.warm import Forking
from fsdp2lint.rehearse.words import rendered
from tests.support import over

LIMIT = 300.0

PROGRAM = """
import os
import random
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return x + torch.tanh(self.up(self.norm(x))) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def encode(self, x):
        return self.last(self.first(x))


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    torch.manual_seed(0)
    random.seed(0)
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(4):
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            loss = model(torch.randn(4, 4).cuda()).square().mean()
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if random.random() < 0.5:
            dist.barrier()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        size = model.last.weight.detach().square().sum()
        print(step, total.item(), norm.item(), size.full_tensor().item())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(whole, "model.pt")
    weights, states = get_state_dict(model, optimizer)
    saving = dcp.async_save({"model": weights, "optimizer": states}, checkpoint_id="last")
    saving.result()
    dist.barrier()
    dist.destroy_process_group()


main()
"""


@dataclass(frozen=True)
class Fault:
    """A change of the program, and what the report must say of it."""

    old: str
    new: str
    said: str
    """A regular expression, or several that must all be found, a line each."""
    stays: bool = False
    """Whether it goes on for ever: its time is over when it is told who waits for whom."""


_STEP = "        optimizer.step()\n"
_REDUCED = "        dist.all_reduce(total)\n"
_WAITS = "FSDP40[12]|FSDP414"

FAULTS: dict[str, Fault] = {
    "a rank leaves out a step": Fault(_STEP, "        if rank == 0 or step != 2:\n            optimizer.step()\n", "FSDP414\nrank 1 leaves out step 3"),
    "a rank leaves out a backward": Fault("            (loss / 2).backward()\n", "            if rank == 0 or step != 2:\n                (loss / 2).backward()\n", f"{_WAITS}\nrank 0"),
    "a rank leaves the loop": Fault(_REDUCED, f"        if rank == 1 and step == 2:\n            break\n{_REDUCED}", f"{_WAITS}\nwaits here"),
    "a rank leaves the script": Fault(_REDUCED, f"        if rank == 1 and step == 2:\n            return\n{_REDUCED}", "FSDP402\nrank 1 has left the script"),
    "gradients are not reduced from the middle on": Fault("(micro == 1)", "(micro == 1 and step < 2)", "FSDP211\nlast 2 of 4 optimizer"),
    "gradients are never reduced": Fault("(micro == 1)", "(False)", "FSDP211\nnone of the 4"),
    "the share of a rank is read as the whole": Fault("size.full_tensor()", "size.to_local()", "FSDP218"),
    "random numbers drift where ranks must agree": Fault("    random.seed(0)\n", "    random.seed(rank)\n", _WAITS),
    "one rank reduces": Fault(_REDUCED, "        if rank == 0:\n            dist.all_reduce(total)\n", "FSDP401"),
    "one rank gathers for a file": Fault("    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n    if rank == 0:\n", "    if rank == 0:\n        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))\n", "FSDP401"),
    "one rank receives": Fault(_REDUCED, "        dist.all_reduce(total) if rank == 0 else dist.recv(total, 0)\n", "rank 0 .*`all_reduce`\nrank 1 .*`recv`"),
    "a rank spins": Fault(_STEP, f"        while rank == 1 and step == 2:\n            pass\n{_STEP}", "rank 0 waits in all_reduce at .*while rank 1 works at ", True),
    "a rank sleeps": Fault(_STEP, f"        if rank == 1 and step == 2:\n            time.sleep(600)\n{_STEP}", "rank 0 waits in all_reduce at .*while rank 1 does nothing at ", True),
    "a rank raises": Fault(_STEP, f"        if rank == 1 and step == 2:\n            raise ValueError('no data')\n{_STEP}", "rank 1 raised at \nno data"),
    "a rank is killed": Fault(_STEP, f"        if rank == 1 and step == 2:\n            os.kill(os.getpid(), 9)\n{_STEP}", "rank 1 died"),
    "the optimizer is built too early": Fault("    for block in model.blocks:\n        fully", "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n    for block in model.blocks:\n        fully", "FSDP201"),
    "clipped is a list from before": Fault("    for block in model.blocks:\n        fully", "    held = list(model.parameters())\n    for block in model.blocks:\n        fully", "FSDP220"),
    "hooks are bypassed": Fault("loss = model(torch", "loss = model.forward(torch", "FSDP203"),
    "a method without hooks": Fault("loss = model(torch", "loss = model.encode(torch", "FSDP204"),
    "the root is not sharded": Fault("    fully_shard(model)\n", "    model.set_requires_gradient_sync = lambda on: None\n", "FSDP206"),
    "a layer is added afterwards": Fault("    optimizer =", "    model.last = nn.Linear(8, 2).cuda()\n    optimizer =", "FSDP2(06|12)"),
    "ranks begin with other values": Fault("    torch.manual_seed(0)\n", "    torch.manual_seed(rank)\n", "FSDP232"),
    "shards are pickled": Fault("torch.save(whole,", "torch.save(model.state_dict(),", "FSDP301"),
    "a file is written over that is mapped": Fault("        torch.save(whole, \"model.pt\")\n", "        torch.save([whole, torch.ones(9999)], \"model.pt\")\n        torch.save(torch.load(\"model.pt\", mmap=True), \"model.pt\")\n", "rank 0 died at \nBus error: a file was written over"),
    "a save is not awaited": Fault("    saving.result()\n", "", "FSDP307"),
    "memory is never filled": Fault("    model = Net().cuda()\n", "    with torch.device('meta'):\n        model = Net()\n    model.to_empty(device='cuda')\n", "FSDP251|FSDP217"),
    "a buffer differs between ranks": Fault("    optimizer =", "    model.blocks[0].scale.mul_(1 + rank)\n    optimizer =", "FSDP2(17|61)\nscale"),
    "a part is never trained": Fault("        return self.last(x)\n", "        return self.last(x.detach())\n", "FSDP260"),
    "a part is used on one rank": Fault("self.up(self.norm(x))", "self.up(x if dist.get_rank() else self.norm(x))", "FSDP412"),
    "a unit is left out on one rank": Fault("        for block in self.blocks:\n", "        for block in self.blocks[dist.get_rank() :]:\n", "FSDP412\nrank 0 gathers blocks.0.norm.weight"),
    "a unit has no backward on one rank": Fault("            x = block(x)\n", "            x = block(x.detach() if dist.get_rank() and block is self.blocks[1] else x)\n", "FSDP412\nrank 1"),
    "a method of FSDP1": Fault("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "model.clip_grad_norm_(1.0)", "FSDP219"),
    "a context of FSDP1": Fault("            (loss / 2).backward()\n", "            with model.no_sync():\n                (loss / 2).backward()\n", "FSDP210"),
    "a plain load into shards": Fault("    optimizer =", "    model.load_state_dict({n: torch.zeros(p.shape) for n, p in Net().state_dict().items()})\n    optimizer =", "FSDP303"),
}  # fmt: skip

_SECOND = {
    "the optimizer is built too early": (
        "    fully_shard(model)\n    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n",
        "    fully_shard(model)\n",
    ),
    "clipped is a list from before": ("clip_grad_norm_(model.parameters()", "clip_grad_norm_(held"),
}
"""Where a fault takes two changes, the other."""


def changed(name: str) -> str:
    """The program with a fault."""
    text = PROGRAM
    fault = FAULTS[name]
    for old, new in filter(None, ((fault.old, fault.new), _SECOND.get(name))):
        assert text.count(old) == 1, (name, text.count(old))
        text = text.replace(old, new)
    return text


def report(forking: Forking, text: str, stays: bool = False) -> tuple[str, float]:
    """What a rehearsal says of a program, and after how long: of one that stays for ever, when it is known who waits."""
    heard: list[bytes] = []
    stalled = over.when(lambda: stays and any(b"fsdp2lint: for " in one for one in heard))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        scratch, work = Path(folder, "scratch"), Path(folder, "work")
        scratch.mkdir()
        work.mkdir()
        script = work / "train.py"
        script.write_text(text, "utf-8")
        request = Request(
            str(script), str(scratch), timeout=LIMIT, folder=str(work), root=str(work), seed=0
        )
        began = time.monotonic()
        idle = launch.IDLE if stays else 3.0
        same = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with (
            mock.patch.multiple(launch, _watch=stalled, IDLE=idle),
            mock.patch.dict(os.environ, same, clear=True),  # in another environment it starts anew
        ):
            said = rendered(rehearse(request, heard.append, forking.launch), colour=False)
        return said, time.monotonic() - began


def is_named(name: str, said: str) -> bool:
    """Whether a report has the words that belong to a fault."""
    return all(re.search(words, said) for words in FAULTS[name].said.splitlines())
