"""Settings that come out of one of two objects: what excludes each other in both does so after all."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import HEAD, made

PROGRAM = (
    HEAD
    + """\
import argparse
import json

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save(args, model, state):
    if args.rank == 0:
        torch.save(state if args.fsdp else model.state_dict(), "model.pt")


def load(args, model):
    state = torch.load(args.resume)
    if args.fsdp:
        model.load_state_dict(state)
    elif args.distributed:
        model.module.load_state_dict(state)
    else:
        model.load_state_dict(state)


def settings(parser):
{settings}


parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--resume")
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--distributed", action="store_true")
args = settings(parser)
dist.init_process_group("nccl")
args.rank = dist.get_rank()
model = nn.Linear(8, 8)
if args.distributed:
    if args.fsdp:
        model = FSDP(model, use_orig_params=True)
    else:
        model = DDP(model)
load(args, model)
save(args, model, None)
"""
)
ONE = "    return parser.parse_args()"
ONE_OF_TWO = """\
    args = parser.parse_args()
    if args.config is not None:
        args = argparse.Namespace(**json.load(open(args.config)))
    return args"""


@pytest.mark.parametrize("settings", [ONE, ONE_OF_TWO], ids=["one", "one of two"])
def test_branches_for_other_models_stay_as_they_are(settings: str) -> None:
    done = made(PROGRAM.format(settings=settings))
    text = done.after[0].text
    assert 'torch.save(state if args.fsdp else model.state_dict(), "model.pt")' in text
    assert (
        "        model.module.load_state_dict(state)\n    else:\n        model.load_state_dict(state)\n"
        in text
    )
    assert (
        "        set_model_state_dict(" in text.partition("if args.fsdp:")[2].partition("elif")[0]
    )
    assert text.count("set_model_state_dict(") == 1
    assert done.ledger.manual == []
