"""Command lines of launchers: which script ``accelerate launch …`` or ``torchrun …`` starts, how many times, and what it
puts into the environment.

The launchers read their own words: another process imports them, as this one imports no PyTorch.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import msgspec

ACCELERATE = "accelerate.commands.launch"
TORCHRUN = "torch.distributed.run"
_STARTS = {
    ("accelerate", "launch"): ACCELERATE,
    ("accelerate-launch",): ACCELERATE,
    ("torchrun",): TORCHRUN,
    ("-m", ACCELERATE): ACCELERATE,
    ("-m", TORCHRUN): TORCHRUN,
    ("-m", "torch.distributed.launch"): TORCHRUN,
}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*$")
_OF_ACCELERATE = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
"""What its launcher sets for the script; the rest is for torchrun, which has an address of its own here."""
_TIME = 600
_CUT = "fsdp2lint: "


class NoCommand(Exception):
    """A command line cannot be run here; the text says why."""


class Started(msgspec.Struct, frozen=True):
    """What a launcher starts."""

    target: str
    module: bool
    arguments: tuple[str, ...]
    processes: int | None
    """None where the launcher would ask for the number of GPUs."""
    environment: dict[str, str]
    settings: str = ""
    """accelerate's file."""


def split(words: Sequence[str]) -> tuple[dict[str, str], str, list[str]] | None:
    """The assignments, the launcher's module and its words; None when they start with no launcher."""
    rest = list(words)
    assigned = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        assigned[name] = value
    if rest and _PYTHON.match(rest[0]):
        rest.pop(0)
    for start, module in _STARTS.items():
        if tuple(rest[: len(start)]) == start:
            return assigned, module, rest[len(start) :]
    return None


def words_of(text: str) -> list[str]:
    """The words of a command in one text, lines joined; none where its quotes do not close."""
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return []


def started(words: Sequence[str]) -> Started:
    """What the command starts, read by the launcher itself.

    Raises:
        NoCommand: the launcher refuses its words, is not installed, or starts something else than ranks of PyTorch.
    """
    known = split(words)
    assert known is not None
    assigned, module, rest = known
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # fmt: off
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint.rehearse.commands", module, *rest],
        capture_output=True, text=True, timeout=_TIME, check=False,
        env=os.environ | assigned | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
    )
    # fmt: on
    answers = [line for line in done.stdout.splitlines() if line.startswith(_CUT)]
    if done.returncode or not answers:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        name = "accelerate launch" if module == ACCELERATE else "torchrun"
        raise NoCommand(f"{name} refuses the command line: {lines[-1]}")
    found = msgspec.json.decode(answers[-1].removeprefix(_CUT), type=Started)
    return msgspec.structs.replace(found, environment=assigned | found.environment)


def main(module: str, words: Sequence[str]) -> None:
    """Let a launcher read its words and print what it starts."""
    found = _of_accelerate(words) if module == ACCELERATE else _of_torchrun(words)
    print(_CUT + msgspec.json.encode(found).decode())


def _of_torchrun(words: Sequence[str]) -> Started:
    from torch.distributed import run

    args = run.get_args_parser().parse_args(words)
    nodes = int(str(args.nnodes).partition(":")[0])
    one = str(args.nproc_per_node)
    processes = nodes * int(one) if one.isdigit() else None
    return _started(args, processes, {})


def _of_accelerate(words: Sequence[str]) -> Started:
    import accelerate.commands.launch as launcher
    from accelerate.utils import launch

    found: list[Started] = []

    def ranks(args: Namespace) -> None:
        args.main_process_port = 0  # no port of this machine is to be looked at
        found.append(_with(args, args.num_processes, launch.prepare_multi_gpu_env(args)))

    def alone(args: Namespace) -> None:
        found.append(_with(args, 1, launch.prepare_simple_launcher_cmd_env(args)[1]))

    own: Any = launcher
    own.multi_gpu_launcher, own.simple_launcher = ranks, alone
    for other in ("deepspeed", "tpu", "tpu_pod", "sagemaker"):
        setattr(own, f"{other}_launcher", _refused(other))
    launcher.launch_command(launcher.launch_command_parser().parse_args(words))
    return found[0]


def _with(args: Namespace, processes: int | None, environment: dict[str, str]) -> Started:
    new = {k: v for k, v in environment.items() if k.startswith(_OF_ACCELERATE)}
    return _started(args, processes or None, new)


def _refused(name: str) -> Any:
    def refuse(*_: object) -> None:
        sys.exit(f"its settings ask for {name}, which is no FSDP")

    return refuse


def _started(args: Namespace, processes: int | None, environment: dict[str, str]) -> Started:
    if args.no_python:
        sys.exit("--no_python starts another program than Python")
    return Started(
        args.training_script,
        bool(args.module),
        tuple(args.training_script_args),
        processes,
        environment,
        getattr(args, "config_file", None) or "",
    )


def marked(words: Sequence[str]) -> list[str]:
    """The words of a command line of ours, with ``--`` before a launcher's: its options are not ours."""
    for index, word in enumerate(words):
        if word == "--":
            break
        if split(words[index:]) is not None:
            return [*words[:index], "--", *words[index:]]
    return list(words)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
