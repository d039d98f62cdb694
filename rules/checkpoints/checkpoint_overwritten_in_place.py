"""Each checkpoint is written over the one before: a crash in the middle leaves neither.

## What it does

Finds `dcp.save` and `dcp.async_save` that run again and again during training with one and the same
`checkpoint_id` (or path of the writer), where no other checkpoint is kept.

## Why is this bad

Each rank writes its shards over those of the last save, and the first rank writes the metadata when all are
done. If the run dies in between (a full disk, preemption, a node lost) some shards are new, others old, and the
metadata is the old one: the checkpoint can still be read, without an error, and holds a mixture of two steps. It
was the only one.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
 for step in range(100):
     model(torch.randn(4, 8)).sum().backward()
     optimizer.step()
-    dcp.save({"model": model.state_dict()}, checkpoint_id="latest")
+    dcp.save({"model": model.state_dict()}, checkpoint_id=f"latest/step_{step}")
```

## Forms

- Found: a trainer that saves every tenth step.
- Found: the path of a writer, from a settings file.
- Not found: files that `torch.save` overwrites.

## Fix safety

Unsafe: the number of the loop's round becomes a part of the path, so checkpoints add up and whoever reads them
has to look for the last one. There is a fix where the path is a text in the call, all loops around it count, and
the script does not load from the path.

## Known limits

Paths are compared as far as they are built from texts, environment variables, arguments of the program
and files of settings. Silent
where the script moves or copies files, and where it saves anything under changing names.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`FileSystemWriter`)
- `torch/distributed/checkpoint/filesystem.py` (`FileSystemWriter.finish`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Class,
    Container,
    Either,
    External,
    Finding,
    Fix,
    Instance,
    Layout,
    Literal,
    Loaded,
    Module,
    Part,
    Replace,
    Saved,
    Site,
    Stepped,
    Trace,
    Unknown,
    Value,
    rule,
)

from .._common.fixes import call_of
from .._common.shared import DCP, class_name, together

_MOVING = (
    "os.rename",
    "os.replace",
    "os.system",
    "shutil.move",
    "shutil.copytree",
    "shutil.make_archive",
    "subprocess.run",
    "subprocess.check_call",
    "subprocess.Popen",
    ".rename",
)
_STABLE = (
    "argparse.",
    "parse_args",
    "parse_known_args",
    "os.environ",
    "os.getenv",
    "os.path.",
    "os.getcwd",
    "pathlib.",
    "sys.argv",
    "yaml.",
    "json.load",
    "tomllib.",
)
"""What is read once, as a program begins, and what paths are made by."""


@rule(code="FSDP328", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves that come back to a path that was written before the last steps."""
    saves = trace.of(Saved)
    if any(True for _ in trace.calls(*_MOVING)) or not all(_stable(s.path) for s in saves):
        return
    for saved in saves:
        if not saved.via.startswith(DCP):
            continue
        for again in trace.after(saved, Saved):
            if again.path is not saved.path or not again.via.startswith(DCP):
                continue
            stepped = _step_between(trace, saved, again)
            if stepped is None or not together(saved.guards, again.guards):
                continue
            path = f"`{saved.path.value}`" if isinstance(saved.path, Literal) else "one path"
            yield Finding(
                at=again,
                message=f"every save goes to {path}, over the one before: a crash in the middle leaves a "
                "mixture of two steps and nothing else; put the step into the path",
                because=(
                    (saved, "a save to this path"),
                    (stepped, "a step after which it comes again"),
                ),
                fix=_numbered(trace, again),
            )
            break


def _stable(path: Value | None) -> bool:
    """Whether a path surely is the same whenever it is asked for."""
    if isinstance(path, Either):
        return all(_stable(one) for _, one in path.options)
    if isinstance(path, Part):
        operands = path.operands
        if any(isinstance(o, Value) and not _stable(o) for o in operands):
            return False
        if isinstance(path.owner, Instance) and not operands:
            return _holds_settings(path.owner)
        if isinstance(path.owner, Container) and not operands:
            return path.owner.kind == "dict"
        return _stable(path.owner) and not (isinstance(path.owner, Unknown) and not operands)
    if isinstance(path, External):
        return path.name.startswith(_STABLE)
    return isinstance(path, Literal | Unknown)


def _holds_settings(owner: Instance) -> bool:
    """Whether an object is one of a class of the project, or a bare record: its attributes change where they are set."""
    if isinstance(owner, Module):
        return False
    return isinstance(owner.cls, Class) or class_name(owner) in _RECORDS


_RECORDS = ("argparse.Namespace", "types.SimpleNamespace")


def _step_between(trace: Trace, saved: Saved, again: Saved) -> Stepped | None:
    for stepped in trace.after(saved, Stepped):
        if stepped.order < again.order and together(stepped.guards, again.guards):
            return stepped
    return None


def _numbered(trace: Trace, saved: Saved) -> Fix | None:
    """The number of the round in the path."""
    call, source = call_of(saved.at), saved.at.source
    given = (
        [a.value for a in call.args if a.keyword and a.keyword.value == "checkpoint_id"]
        if call
        else []
    )
    names = _rounds(saved.at)
    if not given or not names or any(loaded.path is saved.path for loaded in trace.of(Loaded)):
        return None
    path = given[0]
    if not isinstance(path, cst.SimpleString) or path.prefix or "{" in path.raw_value:
        return None
    numbers = "_".join(f"{name}_{{{name}}}" for name in names)
    text = f"f{path.quote}{path.raw_value}/{numbers}{path.quote}"
    return Fix(
        "put the number of the round into the path",
        (Replace(source, path, text),),
        "unsafe",
        "who reads the checkpoint has to look for the last one",
    )


def _rounds(site: Site) -> Sequence[str]:
    """The names that count the rounds of the loops around a call, outermost first; none if one does not count."""
    found: list[str] = []
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            break
        if isinstance(around, cst.While):
            return ()
        if isinstance(around, cst.For):
            name = _counter(around)
            if not name:
                return ()
            found.insert(0, name)
    return found


def _counter(loop: cst.For) -> str:
    """The name that is bound to the number of the round."""
    walked = loop.iter
    if not isinstance(walked, cst.Call) or not isinstance(walked.func, cst.Name):
        return ""
    target: cst.BaseExpression = loop.target
    if walked.func.value == "enumerate" and isinstance(target, cst.Tuple) and target.elements:
        target = target.elements[0].value
    elif walked.func.value != "range":
        return ""
    return target.value if isinstance(target, cst.Name) else ""
