"""Runs another script with ``guard`` in it: called before the first forward of what that script shards.

``guarding.py SCRIPT OUT`` writes how many guards a rank had, and the codes and lines that they found, to
``OUT<rank>``.
"""

import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.module import register_module_forward_pre_hook

from fsdp2lint.rehearse import guard

script, out = sys.argv[1:]
warnings.simplefilter("ignore")
guards: list[Any] = []
optimizers: list[Any] = []
seen: set[nn.Module] = set()
kind: Any = torch.optim.Optimizer
build = kind.__init__


def building(optimizer: Any, *args: Any, **kwargs: Any) -> None:
    build(optimizer, *args, **kwargs)
    optimizers.append(optimizer)


def called(module: nn.Module, _: Any) -> None:
    """The outermost module that is called is the model, where a part of it is sharded."""
    if module in seen or not any(isinstance(inner, FSDPModule) for inner in module.modules()):
        return
    seen.update(module.modules())
    mine = set(map(id, module.parameters()))
    its = [one for one in optimizers if any(id(p) in mine for p in parameters(one))]
    guards.append(guard(module, its[-1] if its else torch.optim.SGD(module.parameters())))


def parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


kind.__init__ = building
register_module_forward_pre_hook(called)
sys.argv = [script]
sys.path.insert(0, os.path.dirname(script))
try:
    runpy.run_path(script, run_name="__main__")
finally:
    for one in guards:
        one.close()
    found = sorted({(v.code, v.at.line if v.at else 0) for one in guards for v in one.violations})
    Path(out + os.environ["RANK"]).write_text(json.dumps([len(guards), found]))
