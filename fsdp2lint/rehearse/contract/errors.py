"""Errors of PyTorch that say, in its own words, that the contract was broken."""

from __future__ import annotations

import os
from types import FrameType, TracebackType
from typing import Any

from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import own, raised_at

MIXED = "got mixed torch.Tensor and DTensor"

_SAID = (
    ("fully_shard has already been applied", "FSDP209"),
    ("fully_shard does not support containers", "FSDP208"),
    ("Invariant encountered: value was None", "FSDP207"),
    ("FSDP does not support deepcopy", "FSDP223"),
    ("fully_shard() got an unexpected keyword argument", "FSDP231"),
    ("has no attribute 'no_sync'", "FSDP210"),
    ("has no attribute 'clip_grad_norm_'", "FSDP219"),
    ("A CPU backend must be enabled for async save", "FSDP308"),
)


def explain(error: BaseException) -> Violation | None:
    """The rule that an error breaks, or None when it says nothing about FSDP."""
    frames = raised_at(error.__traceback__)
    at = frames[-1].at if frames else None
    text = str(error)
    for said, code in _SAID:
        if said in text and (code not in ("FSDP210", "FSDP219") or "'FSDP" in text):
            line = next(line for line in text.splitlines() if said in line)
            return Violation(code, _first_line(line), at)
    if MIXED in text:
        return _mixed(error, at)
    return None


def _mixed(error: BaseException, at: Spot | None) -> Violation | None:
    text = _first_line(str(error))
    if "aten.copy_" in str(error) and _passes(error.__traceback__, "load_state_dict"):
        return Violation("FSDP303", f"a plain state dict meets sharded parameters: {text}", at)
    if _passes(error.__traceback__, "clip_grad_norm_"):
        message = f"the clipped parameters are sharded only in part: {text}"
        return Violation("FSDP206", message, at)
    called = _bypassed(error.__traceback__)
    if called is None:
        return None
    module, method, spot = called
    if method == "forward":
        message = (
            f"`{module}.forward` is called directly, so no hook gathers its parameters: {text}"
        )
        return Violation("FSDP203", message, spot)
    message = (
        f"`{module}.{method}` computes with sharded parameters and no hook gathers them; "
        f"`register_fsdp_forward_method` after sharding adds the hooks: {text}"
    )
    return Violation("FSDP204", message, spot)


def _bypassed(traceback: TracebackType | None) -> tuple[str, str, Spot] | None:
    """The sharded module whose method was entered without its hooks: class, method, where from."""
    from torch.distributed.fsdp import FSDPModule

    found: tuple[str, str, Spot] | None = None
    hooked: set[int] = set()
    caller: tuple[FrameType, int] | None = None
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        module: Any = frame.f_locals.get("self")
        if isinstance(module, FSDPModule):
            if frame.f_code.co_name == "_call_impl":
                hooked.add(id(module))
                found = None
            elif own(frame.f_code.co_filename) and id(module) not in hooked and caller is not None:
                if found is None:
                    spot = Spot(os.path.abspath(caller[0].f_code.co_filename), caller[1])
                    name = type(module).__name__.removeprefix("FSDP")
                    found = (name, frame.f_code.co_name, spot)
        if own(frame.f_code.co_filename):
            caller = (frame, line)
        traceback = traceback.tb_next
    return found


def _passes(traceback: TracebackType | None, function: str) -> bool:
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name == function:
            return True
        traceback = traceback.tb_next
    return False


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0]
    return line if len(line) <= 160 else line[:157] + "..."
