"""The numbers by which Slurm tells a process where it runs, for scripts that read them in place of torchrun's, and keys.

Only the program's own files get an answer: a library that finds Slurm goes another way than under torchrun.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fsdp2lint.rehearse.fakes.imports import asked_by_the_program
from fsdp2lint.rehearse.standin.replace import Counted

_SAID_BY = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_TASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_GPUS_ON_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_GPUS_PER_NODE": "LOCAL_WORLD_SIZE",
}
"""Variables of Slurm, by what torchrun calls the same."""

_ALWAYS = {
    "SLURM_NNODES": "1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_CPUS_PER_TASK": "1",
    "SLURM_CPUS_ON_NODE": "1",
    "SLURM_JOB_NAME": "rehearsal",
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_NODELIST": "localhost",
}
_KEYS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "WANDB_API_KEY")
"""What a script that reads ``os.environ[…]`` cannot go without, and nobody asks for here."""

_BETWEEN = ("os", "collections.abc", "_collections_abc", __name__)
"""Modules through which a script asks the environment."""


def install(counted: Counted) -> None:
    """Answer for Slurm from here on, where it is not there."""
    kind = type(os.environ)
    read = kind.__getitem__

    def answered(environment: os._Environ[str], name: str) -> str:
        try:
            return read(environment, name)
        except KeyError:
            if name in _KEYS and environment is os.environ and asked_by_the_program(()):
                counted.note(f"made up: {name}")
                return "made-up"
            said = _of_slurm(name, environment) if environment is os.environ else None
            if said is None or not asked_by_the_program(_BETWEEN):
                raise
            counted.note("made up: the variables of Slurm")
            return said

    kind.__getitem__ = answered  # type: ignore[method-assign]


def _of_slurm(name: object, environment: Mapping[str, str]) -> str | None:
    if name == "SLURM_JOB_ID" or name == "SLURM_JOBID":
        return environment.get("MASTER_PORT", "1")
    if name in _SAID_BY:
        return environment.get(_SAID_BY[str(name)])
    return _ALWAYS.get(str(name))
