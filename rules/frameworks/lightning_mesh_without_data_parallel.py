"""Lightning's `ModelParallelStrategy` without sizes shards over the machines alone.

## What it does

Reports `ModelParallelStrategy()` of Lightning and Fabric that is given neither `data_parallel_size` nor `tensor_parallel_size`, in
programs that use no tensor parallelism, and in files of LightningCLI whose project uses none.

## Why is this bad

By default `data_parallel_size` is the number of machines, and `tensor_parallel_size` the number of GPUs of one. On one machine
`fully_shard` over the mesh dimension `data_parallel` has one rank, so each GPU holds the whole model; and all GPUs of a
machine get the same batches, because the sampler counts only that dimension. The run is as slow as on one GPU for each machine, and
nothing is raised.

## Example

```diff
 import lightning.pytorch as pl
 from lightning.pytorch.strategies import ModelParallelStrategy
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Model(pl.LightningModule):
     def __init__(self):
         super().__init__()
         self.layer = nn.Linear(8, 8)

     def configure_model(self):
         fully_shard(self, mesh=self.device_mesh["data_parallel"])


-trainer = pl.Trainer(strategy=ModelParallelStrategy(), devices=8)
+strategy = ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1)
+trainer = pl.Trainer(strategy=strategy, devices=8)
```

## Forms

- Found: Fabric, under a name that the script gives it.
- Found: sizes that are written as their default.
- Not found: a strategy that Hydra builds.

## Known limits

With one GPU in each machine the default is right: that is why this is a warning. Programs that name `tensor_parallel` or
`parallelize_module` anywhere are left alone.

## References

- https://github.com/Lightning-AI/pytorch-lightning/blob/2.6.6/src/lightning/pytorch/strategies/model_parallel.py (`setup_environment`)
- https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/tp_fsdp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, Finding, Literal, Trace, rule, said_in_project

from ._common.settings import found

_STRATEGIES = tuple(
    f"lightning.{home}.strategies.ModelParallelStrategy" for home in ("pytorch", "fabric")
)
_SIZES = ("data_parallel_size", "tensor_parallel_size")
_TENSOR_PARALLEL = ("tensor_parallel", "parallelize_module")
_IN_THE_PROJECT = r"tensor_parallel(?!_size)|parallelize_module"


@rule(code="FSDP609", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Strategies that leave both sizes to the default."""
    yield from _in_settings(trace)
    if any(_without_sizes(word, s.said) for s in trace.sources for word in _TENSOR_PARALLEL):
        return
    for call in trace.calls(*_STRATEGIES):
        first = 1 if ".fabric." in call.name else 0  # Fabric's first argument is the function
        if call.open or not all(_is_left(call, n, name) for n, name in enumerate(_SIZES, first)):
            continue
        message = f"{_MESSAGE} `data_parallel_size=<GPUs>, tensor_parallel_size=1`"
        yield Finding(at=call, message=message)


_MESSAGE = "`ModelParallelStrategy` shards over machines only by default: give it"


def _in_settings(trace: Trace) -> Iterator[Finding]:
    """A file of LightningCLI with the strategy and without its sizes."""
    asked = trace.settings
    if asked is None or asked.framework != "Lightning" or asked.version != 2:
        return
    if asked.holder is None or any(asked.value(name) not in (None, "auto") for name in _SIZES):
        return
    if not said_in_project(_IN_THE_PROJECT, trace.source.path, trace.files):
        message = f"{_MESSAGE} `data_parallel_size: <GPUs>` and `tensor_parallel_size: 1` in its `init_args`"
        yield found(trace, asked.holder, message)


def _without_sizes(word: str, text: str) -> bool:
    """Whether a word is used for more than the size."""
    return word in text.replace("tensor_parallel_size", "")


def _is_left(call: Called, position: int, name: str) -> bool:
    given = call.argument(position, name)
    return given is None or (isinstance(given, Literal) and given.value == "auto")
