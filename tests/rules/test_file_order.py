"""Files in the order of a folder (FSDP421): the damage between two copies of one folder, and further forms."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not MEMORY.is_dir(), reason="its order must be that of writing, as in memory")
def test_shares_of_two_copies_overlap() -> None:
    names = [f"{number:03}.pt" for number in range(8)]
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as here,
        tempfile.TemporaryDirectory(dir=MEMORY) as there,
    ):
        for folder, order in ((here, names), (there, names[4:] + names[:4][::-1])):
            for name in order:
                (Path(folder) / name).touch()
        read = os.listdir(here)[0::2] + os.listdir(there)[1::2]
        in_order = sorted(os.listdir(here))[0::2] + sorted(os.listdir(there))[1::2]
    assert sorted(read) != names
    assert sorted(in_order) == names


HEAD = """\
import glob
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from elsewhere import arrange

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
rank, size = dist.get_rank(), dist.get_world_size()
"""
FORMS = {
    "one file for each rank": ("torch.load(os.listdir('data')[rank])", True),
    "a list that grew": (
        """
        names = []
        for entry in os.scandir("data"):
            names.append(entry.path)
        for name in names[rank::size]:
            torch.load(name)
        """,
        True,
    ),
    "names in a text": (
        "for n in os.listdir('data')[rank::size]:\n    torch.load(f'data/{n}')",
        True,
    ),
    "all files on each rank": ("for n in os.listdir('data'):\n    torch.load(n)", False),
    "every second file": ("for n in os.listdir('data')[::2]:\n    torch.load(n)", False),
    "the place on one host": (
        "local = int(os.environ['LOCAL_RANK'])\ntorch.load(os.listdir('data')[local])",
        False,
    ),
    "arranged by unseen code": (
        "names = os.listdir('data')\narrange(names)\nfor n in names[rank::size]:\n    torch.load(n)",
        False,
    ),
    "sorted by a key": (
        "for n in sorted(Path('data').iterdir(), key=str)[rank::size]:\n    torch.load(n)",
        False,
    ),
    "lines of each file": (
        "for p in Path('data').iterdir():\n    for line in p.read_text().splitlines()[rank::size]:\n        model(line)",
        False,
    ),
    "lines of all files": (
        "text = [p.read_text() for p in Path('data').iterdir()]\nfor n in text[rank::size]:\n    model(n)",
        False,
    ),
    "paths of the names": (
        "paths = [Path('data') / n for n in os.listdir('data')]\nfor n in paths[rank::size]:\n    torch.load(n)",
        True,
    ),
    "an object for each rank": (
        """
        class State:
            def __init__(self, path):
                self.path = path

        states = []
        for path in [str(p) for p in Path("data").glob("*.jsonl")][:size]:
            states.append(State(path))
        open(states[rank].path)
        """,
        True,
    ),
    "kept for a reader elsewhere": (
        """
        class Reader:
            def __init__(self, folder):
                self.state = {"path": glob.glob(folder)[rank]}

        arrange(Reader("data"))
        """,
        True,
    ),
    "objects of what is in the files": (
        """
        states = []
        for path in Path("data").iterdir():
            states.append({"text": path.read_text()})
        print(model(states[rank]["text"]))
        """,
        False,
    ),
    "asked for its length": ("print(len(os.listdir('data')[rank::size]))", False),
}


@pytest.mark.parametrize(("text", "found"), FORMS.values(), ids=FORMS)
def test_what_ranks_share_out(text: str, found: bool) -> None:
    source = Source("train.py", HEAD + dedent(text) + "\n")
    assert ("FSDP421" in {one.code for one in named(list(findings([source])))}) is found
