"""Packed weights of bitsandbytes in models that are sharded: what FSDP2 does with them."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Kept, Program

PACKED = (
    "bitsandbytes.nn.*",
    "transformers.BitsAndBytesConfig",
    "diffusers.BitsAndBytesConfig",
)
WHY = (
    "packed weights: FSDP1 put those of a unit into one flat tensor, `fully_shard` shards each and gathers it as a "
    "plain parameter. Layers of 4 bits find their `quant_state` again at the module, layers of 8 bits lose their "
    "scales (FSDP236); the dtype of the storage must be the `param_dtype` of the policy"
)
"""``init_dtype_attrs`` and ``_init_sharded_param`` in torch/distributed/fsdp/_fully_shard/_fsdp_param.py;
``fix_4bit_weight_quant_state_from_module`` in bitsandbytes/nn/modules.py."""


def quantized(program: Program) -> Iterator[Kept]:
    """The first place of each file that names packed weights."""
    for source in program.sources:
        first = next((one for one in program.references(*PACKED) if one.source is source), None)
        if first is not None:
            yield Kept(source, first.node, WHY)
