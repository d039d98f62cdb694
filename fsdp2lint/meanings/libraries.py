"""What known libraries do to a model or an optimizer that they are given: nearly always nothing.

They read it, run it, or keep it and call it later. None of them shards a model or rebuilds an optimizer behind
the script's back, except by the functions that :class:`Library` names: those have a meaning of their own, or
what they are given escapes. A library that is not listed is code that nobody can follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name
from fsdp2lint.meanings.optim import optimizer_of_another_package
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import choices, fresh, instance
from fsdp2lint.model.values import External, Instance, Optimizer, Value, root


@dataclass(frozen=True, slots=True)
class Library:
    """A package (its dotted name), and what in it changes a model or an optimizer.

    ``changes`` are names below the package: a function, ``Class.method``, or, with a dot at the end, everything
    below it. What is named there shards, wraps or replaces modules or parameters, gives them memory, or makes an
    optimizer anew. ``source`` says where that was read.
    """

    name: str
    changes: tuple[str, ...] = ()
    source: str = ""

    def leaves_alone(self, name: str) -> bool:
        """Whether a call of ``name`` surely shards, replaces and rebuilds nothing of what it is given."""
        return not name[len(self.name) + 1 :].startswith(self.changes)


LIBRARIES = (
    Library(
        "torch",
        (
            "ao.",
            "cuda.make_graphed_callables",
            "distributed._composable.",
            "distributed._symmetric_memory.",
            "distributed._tensor.",
            "distributed.algorithms.",
            "distributed.checkpoint.state_dict._patch_model_state_dict",
            "distributed.checkpoint.state_dict._patch_optimizer_state_dict",
            "distributed.fsdp.",
            "distributed.nn.",
            "distributed.optim.",
            "distributed.pipelining.",
            "distributed.rpc.",
            "distributed.tensor.",
            "func.functional_call",
            "nn.parallel.",
            "nn.utils.fuse_",
            "nn.utils.fusion.",
            "nn.utils.parametrizations.",
            "nn.utils.parametrize.",
            "nn.utils.prune.",
            "nn.utils.remove_spectral_norm",
            "nn.utils.remove_weight_norm",
            "nn.utils.spectral_norm",
            "nn.utils.stateless.",
            "nn.utils.weight_norm",
            "quantization.",
            "utils.bundled_inputs.",
            "utils.mkldnn.",
            "utils.swap_tensors",
        ),
        "the functions of torch 2.13 that take a module or an optimizer",
    ),
    Library(
        "accelerate",
        (
            "Accelerator.clear",
            "Accelerator.free_memory",
            "Accelerator.load_state",
            "Accelerator.maybe_context_parallel",
            "Accelerator.prepare",
            "Accelerator.register_for_checkpointing",
            "big_modeling.",
            "cpu_offload",
            "cpu_offload_with_hook",
            "disk_offload",
            "dispatch_model",
            "hooks.",
            "inference.",
            "load_checkpoint_and_dispatch",
            "load_checkpoint_in_model",
            "local_sgd.",
            "prepare_pippy",
            "utils.ao.",
            "utils.apply_fp8_autowrap",
            "utils.bnb.",
            "utils.convert_model",
            "utils.fsdp2_",
            "utils.fsdp_utils.",
            "utils.load_and_quantize_model",
            "utils.load_checkpoint_in_model",
            "utils.load_fsdp_",
            "utils.megatron_lm.",
            "utils.modeling.",
            "utils.set_module_tensor_to_device",
            "utils.transformer_engine.",
        ),
        "accelerate/__init__.py, accelerate/utils/__init__.py (1.13)",
    ),
    Library(
        "transformers",
        (
            "Seq2SeqTrainer",
            "Trainer",
            "deepspeed.",
            "integrations.",
            "modeling_utils.",
            "quantizers.",
            "trainer.",
            "trainer_seq2seq.",
            "trainer_utils.",
        ),
        "transformers/trainer.py (`_wrap_model`), transformers/integrations, transformers/modeling_utils.py (5.0)",
    ),
    Library(
        "torchao",
        ("quantization.quant_api.swap_conv2d_1x1_to_linear", "prototype.", "sparsity."),
        "torchao/float8/float8_linear_utils.py (`swap_linear_layers`: layers of the same place), "
        "torchao/quantization/quant_api.py (`quantize_`: weights of the same place) (0.14)",
    ),
    Library("xformers", source="xformers/ops, xformers/profiler (0.0.32): kernels and a profiler"),
    Library("flash_attn", source="flash_attn/flash_attn_interface.py: kernels"),
    Library("liger_kernel", source="liger_kernel/transformers/monkey_patch.py: methods of layers"),
    Library("torchmetrics", source="torchmetrics/metric.py: a metric keeps its own states"),
    Library("evaluate", source="evaluate/module.py"),
    Library("torchinfo", source="torchinfo/torchinfo.py: a forward under hooks that it removes"),
    Library("fvcore.nn", source="fvcore/nn/flop_count.py: a trace of one forward"),
    Library("thop", source="thop/profile.py: a forward under hooks that it removes"),
    Library("wandb", source="wandb/integration/torch/wandb_torch.py: `watch` registers hooks"),
    Library("mlflow", source="mlflow/pytorch/__init__.py: it writes the model to a file"),
    Library("neptune"),
    Library("swanlab"),
    Library("comet_ml", source="comet_ml: `watch` registers hooks"),
    Library("clearml"),
    Library("tensorboardX"),
    Library("tqdm"),
    Library("safetensors", source="safetensors/torch.py: `load_model` calls `load_state_dict`"),
)

_BY_NAME = {library.name: library for library in LIBRARIES}


def library_of(name: str) -> Library | None:
    """The library in which a dotted name lives, if it is a known one."""
    head, _, rest = name.partition(".")
    return _BY_NAME.get(head) or _BY_NAME.get(f"{head}.{rest.partition('.')[0]}")


@calls("torchao.float8.convert_to_float8_training")
def convert_to_float8(call: Call) -> Value | None:
    """Swaps the linear layers of a model and returns it."""
    return call.get(0, "module")


@family("")
def library_call(call: Call) -> Value | None:
    """A function or a class of a known library that has no meaning of its own."""
    library = library_of(call.name)
    if library is None:
        return None
    if not library.leaves_alone(call.name):
        return None
    return optimizer_of_another_package(call) or _what_is_left(call)


def library_method(call: Call) -> Value | None:
    """A method without a meaning, of an object that a known library made."""
    home = _home_of(call.receiver)
    library = library_of(home)
    if library is None or not library.leaves_alone(f"{home}{call.name}"):
        return None
    return _what_is_left(call)


def _home_of(value: Value | None) -> str:
    """The dotted name of the class of an object, or of the function of a library that made it."""
    value = None if value is None else root(value)
    if isinstance(value, Instance):
        value = value.cls
    return value.name if isinstance(value, External) else ""


def _what_is_left(call: Call) -> Value:
    """A new object, which may keep the models and optimizers that it was made with."""
    made = instance(call) if is_class_name(call.name) else fresh(call)
    for value in (*call.args, *call.keywords.values()):
        if any(isinstance(one, Optimizer) or call.is_module(one) for one in choices(value)):
            call.machine.memory.hold(made, value)
    return made
