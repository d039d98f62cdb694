"""Methods of tensors: what they return is made of their receiver, new at each call.

Source: https://docs.pytorch.org/docs/stable/tensors.html. The chain is kept so that ``p.sum().item()`` still
shows the parameter; calls are not interned, since tensors change in place between two of them. Methods that
change a tensor (their names end with ``_``) use the parameters that they are given.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.optim import note_use
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import choices, each_choice
from fsdp2lint.model.values import (
    Bound,
    Container,
    External,
    Function,
    Instance,
    Literal,
    Not,
    Optimizer,
    Parameters,
    Part,
    StateDict,
    Super,
    Unknown,
    Value,
    Wrapped,
)

_METHODS = (
    "abs absolute add add_ addcdiv_ addcmul_ addmm all allclose amax amin any argmax argmin argsort "
    "as_strided baddbmm bernoulli_ bmm ceil chunk clamp clamp_ clamp_min clip clone contiguous copy_ cos "
    "cross_entropy cumsum data_ptr detach detach_ diag diagonal dim div div_ dot element_size eq erf exp "
    "expand expand_as exponential_ fill_ flatten flip floor fmod gather ge get_device gt index_add_ index_copy_ "
    "index_fill_ index_select int is_contiguous isfinite isinf isnan item le lerp lerp_ log log_softmax "
    "logical_and logical_not logical_or logsumexp long lt masked_fill masked_fill_ masked_select matmul "
    "max mean median min mm mul mul_ multinomial narrow ndimension ne nelement neg neg_ new_empty new_full "
    "new_ones new_tensor new_zeros nonzero norm normal_ numel numpy outer permute pin_memory pow prod "
    "record_stream relu repeat repeat_interleave reshape resize_ roll round rsqrt scatter scatter_ scatter_add_ "
    "select sigmoid sign sin size softmax sort sqrt square squeeze std stride sub sub_ sum svd t take tanh "
    "tensor_split to_dense tolist topk transpose tril triu trunc type_as unbind unflatten unfold uniform_ "
    "unsqueeze unsqueeze_ var view view_as vmap where xlogy zero_"
).split()

_OTHERS = Container | External | Literal | Optimizer | Parameters | StateDict | Super | Wrapped


@method(*_METHODS)
def made(call: Call) -> Value | None:
    """A tensor or a number made of the receiver; its other arguments are not kept."""
    receiver = call.receiver
    if receiver is None or not all(_may_be_tensor(one) for one in choices(receiver)):
        return None
    if any(call.is_module(v) or isinstance(v, Optimizer) for v in call.args):
        return None
    if call.name.endswith("_"):
        note_use(call, call.name[1:], receiver, *call.args)
    return each_choice(receiver, lambda one: Part(one, (f"{call.name}()",)))


def _may_be_tensor(value: Value) -> bool:
    if isinstance(value, _OTHERS) or (isinstance(value, Instance) and not _is_tensor(value)):
        return False
    return isinstance(value, Part | Unknown | Instance | Not)  # `labels != -100` is a `Not`


def _is_tensor(value: Instance) -> bool:
    name = value.cls.name if isinstance(value.cls, External) else ""
    return name.startswith("torch.") and name.endswith(("Tensor", "Parameter", "Buffer"))


@method("requires_grad_", "register_hook", "retain_grad", "register_post_accumulate_grad_hook")
def on_parameter(call: Call) -> Value | None:
    """Switches and hooks of one tensor; ``requires_grad_`` returns it."""
    receiver = call.receiver
    if receiver is None or not all(_may_be_tensor(one) for one in choices(receiver)):
        return None
    if call.name == ".requires_grad_":
        return receiver
    hook = call.get(0)
    if call.name == ".register_post_accumulate_grad_hook" and isinstance(hook, Function | Bound):
        call.machine.hooks.setdefault(hook, (call.machine.here, receiver))
    return Part(receiver, (f"{call.name}()",))
