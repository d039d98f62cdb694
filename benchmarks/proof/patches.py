"""What ``--patch`` puts in place of data whose form only the program knows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset


def pairs_of_pictures() -> None:
    """A missing file that ``torch.load`` reads holds small pictures, each with another of the same size."""
    module: Any = torch
    load = module.load

    def loaded(file: Any, *args: Any, **how: Any) -> Any:
        if isinstance(file, str) and not os.path.exists(file):
            return TensorDataset(torch.rand(64, 3, 32, 32), torch.rand(64, 3, 32, 32))
        return load(file, *args, **how)

    module.load = loaded


def raw_tokens() -> None:
    """The file ``tokens.npy`` holds tokens of 16 bits and no header, as programs write them that map it into memory."""
    passing = Path(f"tokens.{os.getpid()}")
    tokens = torch.randint(0, 256, (1 << 16,), generator=torch.Generator().manual_seed(0))
    passing.write_bytes(tokens.to(torch.int16).numpy().tobytes())
    passing.replace("tokens.npy")
