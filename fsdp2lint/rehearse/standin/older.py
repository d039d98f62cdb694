"""What FSDP2 of PyTorch 2.6 lacks on a CPU, where it does not train by itself, and replicas of 2.7."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.torch_version import TorchVersion

from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap_everywhere


def install(counted: Counted) -> None:
    """Give CPU streams the events that FSDP2 asks for, and let a second gather change no version of a parameter."""
    stream: Any = torch.cpu.Stream
    has_events = hasattr(stream, "record_event")
    if not has_events or TorchVersion(torch.__version__) < "2.8":
        stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    if not has_events:
        stream.wait_event = lambda self, event: None
        stream.synchronize = lambda self: None
        wrap_everywhere(_fsdp_collectives, "foreach_all_gather_copy_out", _same_versions)


def _same_versions(copy: Function) -> Function:
    """Autograd refuses parameters whose memory was written since forward; the kernel for a GPU counts no write."""

    def copied(result: Any, parameters: Any, group: Any) -> None:
        autograd: Any = torch.autograd
        with contextlib.ExitStack() as kept:
            for parameter in parameters:
                for one in parameter.all_gather_outputs:
                    if not one.is_inference():
                        kept.enter_context(autograd._unsafe_preserve_version_counter(one))
            copy(result, parameters, group)

    return copied
