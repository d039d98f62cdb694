"""Quantized weights are sharded in a form that `fully_shard` does not carry.

## What it does

Finds models and layers of bitsandbytes that `fully_shard` is given: in 8 bits, in 4 bits that are kept as integers
(the default of `bnb_4bit_quant_storage`) for torch before 2.12, and in 4 bits that are kept in another float dtype
than the `param_dtype` of the policy.

## Why is this bad

The weights of 4 bits are packed into a tensor of some other dtype, by default `uint8`. Up to torch 2.11
`fully_shard` makes a `nn.Parameter` of each shard before it looks whether it is trained: "Only Tensors of floating
point and complex dtype can require gradients". Packed into a float dtype they pass, but a policy with another
`param_dtype` casts the packed bytes as if they were numbers, and the first forward fails ("shape is invalid for
input of size"). The weights of 8 bits carry their scales as attributes of the parameter, which is another one
after sharding: "'Parameter' object has no attribute 'CB'".

Seen with bitsandbytes 0.50 and torch 2.13 on two CPU ranks: 8 bits and float32 storage under a policy of bfloat16
fail as said; storage in bfloat16 under that policy trains, and so does integer storage, which torch 2.12 has
learned to leave alone.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch.distributed.fsdp import fully_shard
 from transformers import AutoModelForCausalLM, BitsAndBytesConfig

 dist.init_process_group()
-four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
+four_bits = BitsAndBytesConfig(
+    load_in_4bit=True,
+    bnb_4bit_compute_dtype=torch.bfloat16,
+    bnb_4bit_quant_storage=torch.bfloat16,
+)
 model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=four_bits)
 for block in model.transformer.h:
     fully_shard(block)
 fully_shard(model)
```

## Forms

- Found: 8 bits that a helper function configures.
- Found: layers of bitsandbytes in a model of the project.
- Not found: a checkpoint whose own settings say that it is quantized.

## Known limits

Only bitsandbytes, and only where the dtype of the storage is written in the project. Where `ignored_params` are given
it is unknown which parameters are sharded, and nothing is reported. When the torch that the code is for is not known,
the oldest one counts.

## References

- https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora (quantized data storage)
- https://github.com/pytorch/pytorch/issues/177844 (integers are refused; mended in 2.12)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`_init_sharded_param` up to 2.11, `init_dtype_attrs`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, External, Finding, Literal, Trace, Value, options, rule

from .._common.policies import dtype_of, policy_of
from .._common.shared import Shard, shards_after, together

_LINEARS = ("Linear4bit", "LinearNF4", "LinearFP4")
_CONFIGS = ("transformers.BitsAndBytesConfig", "diffusers.BitsAndBytesConfig")
_INTEGERS = ("torch.uint8", "torch.int8")
_CARRIED_SINCE = (2, 12)
"""The first torch that shards parameters of integers that are not trained."""


@rule(code="FSDP236", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Packed weights that do not survive."""
    for built, form in _quantized(trace):
        for shard in shards_after(trace, built):
            if not trace.inside(shard.module, built.result) and not trace.inside(
                built.result, shard.module
            ):
                continue
            problem = _problem(trace, shard, form) if together(shard.guards, built.guards) else ""
            if problem:
                yield Finding(
                    at=built,
                    message=problem,
                    because=(shard.reason,),
                )
                break


def _quantized(trace: Trace) -> Iterator[tuple[Called, str]]:
    """What is built quantized, and as what it is kept: ``8bit`` or the dtype of its storage."""
    for called in trace.of(Called):
        if called.name.endswith(".from_pretrained"):
            form = _of_loading(trace, called)
        elif called.name.startswith("bitsandbytes.nn."):
            form = _of_layer(called)
        else:
            continue
        if form:
            yield called, form


def _of_loading(trace: Trace, called: Called) -> str:
    if _is_true(called.keywords.get("load_in_8bit")):
        return "8bit"
    if _is_true(called.keywords.get("load_in_4bit")):
        return "torch.uint8"
    given = called.keywords.get("quantization_config")
    found = {_of_config(trace, one) for one in options(given)} if given is not None else set()
    return found.pop() if len(found) == 1 else ""


def _of_config(trace: Trace, config: Value) -> str:
    made = next((c for c in trace.calls(*_CONFIGS) if c.result is config), None)
    if made is None or made.open:
        return ""
    if _is_true(made.argument(0, "load_in_8bit")):
        return "8bit"
    four = _is_true(made.argument(1, "load_in_4bit"))
    return _storage(made.keywords.get("bnb_4bit_quant_storage")) if four else ""


def _of_layer(called: Called) -> str:
    name = called.name.rpartition(".")[2]
    if called.open:
        return ""
    if name in _LINEARS:
        return _storage(called.keywords.get("quant_storage"))
    given = called.keywords.get("has_fp16_weights")
    eight = name == "Linear8bitLt" and isinstance(given, Literal) and given.value is False
    return "8bit" if eight else ""


def _storage(given: Value | None) -> str:
    """The dtype that packed weights are kept in, or nothing when it is not known."""
    if given is None or (isinstance(given, Literal) and given.value is None):
        return "torch.uint8"
    if isinstance(given, External):
        return given.name
    if isinstance(given, Literal) and isinstance(given.value, str):
        return f"torch.{given.value}"
    return ""


def _is_true(value: Value | None) -> bool:
    return isinstance(value, Literal) and value.value is True


def _problem(trace: Trace, shard: Shard, form: str) -> str:
    """Why the weights are lost on sharding; nothing when they are not."""
    if shard.event.open or "ignored_params" in shard.event.options:
        return ""
    if form == "8bit":
        return (
            "the scales of weights in 8 bits are attributes of their parameters, which `fully_shard` replaces: "
            "the first forward misses them"
        )
    if form in _INTEGERS:
        if trace.target is not None and trace.target >= _CARRIED_SINCE:
            return ""
        return (
            "weights in 4 bits are kept as integers here, which `fully_shard` refuses before torch 2.12: "
            "keep them in a float dtype by `bnb_4bit_quant_storage`"
        )
    wanted = dtype_of(policy_of(shard), "param_dtype")
    if wanted is None or wanted == form:
        return ""
    return (
        f"weights in 4 bits are packed into `{form}` here, and the policy casts what it takes for numbers to "
        f"`{wanted}`: keep them in that dtype by `bnb_4bit_quant_storage`"
    )
