"""Shell, Slurm and Make files start the ranks with torchrun.

## What it does

Rewrites `python -m torch.distributed.launch …` to `torchrun …`, without `--use_env`, and `python train.py` to
`torchrun --nproc-per-node=gpu train.py` where `train.py` asks for the rank that only torchrun gives. Only commands that
start a program in which FSDP1 wraps a model are touched. Without `--launch torchrun` all of them stay. In Python, an
argument `--local_rank` gets its default from the environment, where torchrun puts it.

## Why

`torch.distributed.launch` is deprecated since torch 1.9 and passes `--local_rank` in the arguments, which torchrun
does not. A program whose `mp.spawn` was rewritten cannot be started by `python` any more.

## Example

```diff
 # options: --launch torchrun
 import argparse
+import os

 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 parser = argparse.ArgumentParser()
-parser.add_argument("--local_rank", type=int, default=0)
+parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
 args = parser.parse_args()
 model = FSDP(nn.Linear(8, 8).to(args.local_rank))
```

## What it leaves

Commands that are put together from variables, and documentation; scripts for DeepSpeed, whose launcher passes
`--local_rank`.

## References

- https://docs.pytorch.org/docs/stable/elastic/run.html
- `torch/distributed/launch.py`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Left,
    Names,
    Program,
    Respelling,
    Source,
    Step,
    Wrapping,
    codemod,
    name_for,
    walk,
)

from ._common.launch import base_name, needs_torchrun

SCRIPTS = re.compile(r"(\.(sh|bash|slurm|sbatch|job|mk)|(^|/)Makefile)\Z")
COMMAND = re.compile(r"^[^\n#]*?(?:\\\r?\n[^\n]*?)*$", re.MULTILINE)
LAUNCH = re.compile(
    r"\b(?:python[\d.]*|\$\{?PYTHON\}?)\s+(?:-u\s+)?-m\s+torch\.distributed\.launch\b"
)
USE_ENV = re.compile(r"\s+(?:\\\r?\n\s*)?--use[_-]env\b")
PYTHON = re.compile(r"(?<![\w/.-])python3?\s+(?=(?P<script>[\w./-]+\.py)\b)")


_FSDP = "torch.distributed.fsdp"


@codemod(after=("spawn-launch",))
def rewrite(program: Program) -> Iterator[Step | Left | Respelling]:
    """Commands that start a program of this migration, and the rank in its arguments."""
    if program.options.launch == "keep" or "fsdp1" not in program.wrappers:
        return
    mine = _of_the_runs(program)
    for source in mine:
        yield from _arguments(source)
    scripts = {base_name(source): source for source in mine}
    for text in program.texts:
        if SCRIPTS.search(text.path.replace("\\", "/")):
            for command in COMMAND.finditer(text.text):
                yield from _command(text, command, scripts)


def _of_the_runs(program: Program) -> list[Source]:
    """The files of the runs that put FSDP1 around a model: beside them may be programs that stay as they are."""
    found: set[Source] = set()
    for trace in program.traces:
        if any(wrapping.by == "fsdp1" for wrapping in trace.of(Wrapping)):
            found.update(event.at.source for event in trace.of(Called))
    return [source for source in program.sources if source in found]


def _command(
    text: Source, command: re.Match[str], scripts: dict[str, Source]
) -> Iterator[Respelling]:
    said = command[0]
    started = [
        s for name, s in scripts.items() if re.search(rf"(?<![\w.-]){re.escape(name)}", said)
    ]
    if not started:
        return
    at = command.start()
    for found in LAUNCH.finditer(said):
        why = "torch.distributed.launch is deprecated; torchrun takes the same flags"
        start, end = at + found.start(), at + found.end()
        yield Respelling(text, start, end, "torchrun", "torch.distributed.launch", why)
        for flag in USE_ENV.finditer(said, found.end()):
            why = "torchrun always passes the rank in the environment"
            yield Respelling(text, at + flag.start(), at + flag.end(), "", "--use_env", why)
    for found in PYTHON.finditer(said):
        script = scripts.get(found["script"].rpartition("/")[2])
        if script is not None and needs_torchrun(script):
            why = "the program takes its rank from torchrun; `gpu` is one process for each device"
            new = "torchrun --nproc-per-node=gpu "
            yield Respelling(text, at + found.start(), at + found.end(), new, "python", why)


def _arguments(source: Source) -> Iterator[Step]:
    """``add_argument("--local_rank", default=0)``: the default comes from the environment."""
    if "local_rank" not in source.text and "local-rank" not in source.text:
        return
    imported = {one.loads for one in Names.of(source).imports}
    if "deepspeed" in imported and not any(name.startswith(_FSDP) for name in imported):
        return  # DeepSpeed's launcher passes it
    for node in walk(source.tree):
        if not isinstance(node, cst.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", None)
        first = node.args[0].value
        if name is None or name.value != "add_argument" or not isinstance(first, cst.SimpleString):
            continue
        if first.evaluated_value not in ("--local_rank", "--local-rank"):
            continue
        default = next((a for a in node.args if a.keyword and a.keyword.value == "default"), None)
        if default is not None and not isinstance(default.value, cst.Integer | cst.UnaryOperation):
            continue
        os_module = name_for(source, node, "os", module=True)
        old = "0" if default is None else source.code(default.value)
        new = f'int({os_module.text}.environ.get("LOCAL_RANK", {old}))'
        yield Step((Arguments(source, node).set("default", new), *os_module.edits), ())
