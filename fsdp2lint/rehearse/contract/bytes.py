"""The values of tensors, to be compared across processes."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is distributed."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Any) -> Any:
    """This rank's part of a tensor, outside of autograd."""
    tensor = tensor.detach()
    return tensor.to_local() if is_dtensor(tensor) else tensor


def digest(tensor: Any) -> str:
    """A fingerprint of this rank's part of a tensor; equal exactly when the bytes are."""
    part = local(tensor).cpu().contiguous()
    size = part.numel() * part.element_size()
    raw = ctypes.string_at(part.data_ptr(), size) if size else b""
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:16]
