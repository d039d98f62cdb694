"""Small scripts for the tests of the meanings: run, and told in plain words."""

from __future__ import annotations

from textwrap import dedent

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import (
    Augmented,
    Called,
    Iterated,
    Operated,
    Read,
    Returned,
    Written,
)
from fsdp2lint.model.trace import Trace
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

_DETAILS = (Augmented, Called, Iterated, Operated, Read, Returned, Written)

Scripts = dict[str, tuple[str, list[str]]]
"""A script and what it leaves behind, by a name that says what it is about."""

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
    """What happened, with its conditions; plain calls and reads left out."""
    said = []
    for event in trace_of(text).events:
        if not isinstance(event, _DETAILS):
            when = event.guards.words()
            said.append(f"{event.words()} {when}".strip())
    return said


def results(text: str, name: str = "tell") -> list[str]:
    """What the first argument of each call of the unknown function ``tell`` is."""
    found = [e for e in trace_of(text).of(Called) if e.name == f"builtins.{name}"]
    return [e.arguments[0].words() for e in found]
