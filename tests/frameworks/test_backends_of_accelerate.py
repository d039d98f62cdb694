"""Which backend accelerate starts the process group with: the page of FSDP616 and the guide say it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.support import forks
from tests.support.running import ROOT

STARTS = """\
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from accelerate.state import AcceleratorState

ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
os.environ |= {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda device: None


class Started(Exception):
    pass


def started(backend=None, **options):
    raise Started(backend)


dist.init_process_group = started


def backend(start=Accelerator, **launch):
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ |= launch
    try:
        start()
    except Started as with_backend:
        print(with_backend)
    for name in ("ACCELERATE_USE_FSDP", *launch):
        os.environ.pop(name, None)


asked = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
backend(**asked, FSDP_STATE_DICT_TYPE="SHARDED_STATE_DICT")
backend(**asked, FSDP_OFFLOAD_PARAMS="true")
backend(**asked, FSDP_STATE_DICT_TYPE="FULL_STATE_DICT")
both = "cpu:gloo,cuda:nccl"
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True)
backend(lambda: Accelerator(fsdp_plugin=plugin))
handler = InitProcessGroupKwargs(backend=both)
backend(lambda: Accelerator(fsdp_plugin=plugin, kwargs_handlers=[handler]))
if sys.argv[1:]:
    from transformers import TrainingArguments

    config = {"fsdp": "full_shard offload", "fsdp_config": {"fsdp_version": 2}}
    backend(lambda: TrainingArguments("out", **config))
    backend(lambda: TrainingArguments("out", **config, ddp_backend=both))
"""


BOTH = "cpu:gloo,cuda:nccl"


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate chooses the backend")
def test_only_the_launch_makes_accelerate_start_a_backend_for_the_cpu() -> None:
    trainer = ["with the Trainer"] if find_spec("transformers") else []
    done = forks.snippet(STARTS, *trainer, cwd=ROOT)
    launched = "cuda:nccl,cpu:gloo"
    expected = ["nccl", launched, launched, "nccl", BOTH, *(["nccl", BOTH] if trainer else [])]
    assert done.stdout.split() == expected, done.stderr
