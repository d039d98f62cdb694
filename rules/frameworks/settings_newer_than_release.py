"""The settings need a newer release of the framework than the project's dependencies allow.

## What it does

Reads the dependencies of the project (`pyproject.toml`, `setup.cfg`, `setup.py`, `requirements*.txt`; without them commands like
`pip install accelerate==1.5.2` in `*.sh`, a Dockerfile, a workflow or a README, and conda's `environment.yml`) and reports settings that no
release they allow can read: `fsdp_version: 2` of accelerate before 1.6 and of the Trainer before transformers 5.0, the
`parallelism_config` of accelerate before 1.10, `FullyShardedDataParallelPlugin(fsdp_version=…)` before accelerate 1.6, and Lightning's
`ModelParallelStrategy` before Lightning 2.3.

## Why is this bad

An older accelerate or transformers ignores `fsdp_version` without a word, and shards by FSDP1 with its default strategy: the
script runs, and not as its settings say. An older accelerate refuses a file with `parallelism_config`, and a plugin with
`fsdp_version`, at the start. An older Lightning has no such strategy: the import raises.

## Example

```diff
-# limits: accelerate==1.5.2
+# limits: accelerate==1.6.0
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
   fsdp_reshard_after_forward: false
```

The first line is the project's dependency: raise it.

## Forms

- Found: a `parallelism_config` before accelerate 1.10.
- Found: a dictionary of the Trainer before transformers 5.0.
- Not found: a version that the script sets in the environment.

## Known limits

Only an upper limit counts: `accelerate==1.5.2`, `accelerate<1.6`, `transformers~=4.57`. A requirement without one allows the
newest release. What is installed beside the requirements is not seen, nor is what a lock file says: that is why this is a warning.

## References

- https://github.com/huggingface/accelerate/releases/tag/v1.6.0
- https://github.com/huggingface/accelerate/blob/v1.5.2/src/accelerate/utils/launch.py (`prepare_multi_gpu_env`)
- https://github.com/huggingface/accelerate/blob/v1.9.0/src/accelerate/commands/config/config_args.py (`from_yaml_file`)
- https://github.com/huggingface/transformers/blob/v4.57.1/src/transformers/training_args.py (`__post_init__`)
- https://github.com/Lightning-AI/pytorch-lightning/releases/tag/2.3.0
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    PACKAGES,
    Asked,
    Called,
    Container,
    Entry,
    Finding,
    Layout,
    Limits,
    Literal,
    Trace,
    rule,
    too_old,
)

from ._common.settings import found, said

_PLUGINS = tuple(f"accelerate.{home}FullyShardedDataParallelPlugin" for home in ("", "utils."))
_ARGUMENTS = re.compile(r"(transformers|trl)\.(\w+\.)*\w+(Arguments|Config)")
_STRATEGY = re.compile(r"lightning\.(pytorch|fabric)\.strategies\.ModelParallelStrategy")
_MESH = (1, 10, 0)


@rule(code="FSDP610", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Settings and plugins that no allowed release knows."""
    limits = trace.limits
    if trace.settings is not None:
        for entry, message in _unknown(trace, trace.settings, limits):
            yield found(trace, entry, message)
    for call in trace.of(Called):
        if call.name in _PLUGINS and "fsdp_version" in call.keywords:
            message = _too_old("`fsdp_version`", "accelerate", limits)
            if message and not _asks_for_release(call):
                yield Finding(at=call, message=f"{message}, which raises a TypeError here")
        elif _ARGUMENTS.fullmatch(call.name) and (key := _version(trace, call)):
            message = _too_old(f"`{key}` of the `fsdp_config`", "transformers", limits)
            if message and not _asks_for_release(call):
                yield Finding(at=call, message=f"{message}, which ignores it")
        elif _STRATEGY.fullmatch(call.name):
            message = _without_strategy(limits)
            if message and not _asks_for_release(call):
                yield Finding(at=call, message=f"{message}: the import raises")


def _without_strategy(limits: Limits) -> str:
    """That the project allows no release of Lightning with the strategy, whose package has two names."""
    named = [name for name in ("lightning", "pytorch-lightning") if name in dict(limits)]
    messages = [_too_old("`ModelParallelStrategy`", name, limits) for name in named]
    return messages[0] if messages and all(messages) else ""


def _asks_for_release(call: Called) -> bool:
    """Whether a condition about a version chooses the call, or a handler catches what it raises."""
    return any(
        (isinstance(one, cst.If) and "version" in site.source.code(one.test))
        or (isinstance(one, cst.Try) and one.handlers)
        for site in (call.at, *call.calls)
        for one in Layout.of(site.source).ancestors(site.node)
    )


def _version(trace: Trace, call: Called) -> str:
    """The key by which the arguments of a Trainer ask for version 2."""
    config = call.keywords.get("fsdp_config")
    if not isinstance(config, Container) or config.open:
        return ""
    entries = dict(trace.memory.entries(config, call.guards))
    keys = (key for key in ("fsdp_version", "version") if f"['{key}']" in entries)
    key = next(keys, "")
    value = entries.get(f"['{key}']")
    return key if isinstance(value, Literal) and value.value == 2 else ""


def _unknown(trace: Trace, asked: Asked, limits: Limits) -> Iterator[tuple[Entry, str]]:
    package = PACKAGES.get(asked.framework, "")
    if package and asked.version == 2 and asked.said is not None:
        message = _too_old(said(trace, asked.said), package, limits)
        if message:
            ends = " and uses FSDP1" if package == "accelerate" else ""
            yield asked.said, f"{message}, which ignores it{ends}"
    if asked.framework == "Lightning" and asked.version == 2 and asked.holder is not None:
        if message := _without_strategy(limits):
            yield asked.holder, f"{message}: there is no such class"
    mesh = asked.top.get("parallelism_config") if package == "accelerate" else None
    if mesh is not None and (message := _too_old(f"`{mesh.name}`", package, limits, _MESH)):
        yield mesh, f"{message}, which refuses the file"


def _too_old(
    what: str, package: str, limits: Limits, since: tuple[int, int, int] | None = None
) -> str:
    """That the project allows no release of a package that knows something; empty when it does."""
    found = too_old(package, limits, since)
    return (
        "" if found is None else f"{what} needs {found[0]}, but the project asks for `{found[1]}`"
    )
