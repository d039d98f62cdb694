"""Kernels that a program writes in Triton: its interpreter computes them, which needs no GPU, with the first of their settings."""

from __future__ import annotations

import importlib
import os
from typing import Any

from fsdp2lint.rehearse.standin.afterwards import after
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap


def install(counted: Counted) -> None:
    """Interpret, once the script has imported Triton."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read where a kernel is declared
    after("triton.runtime.autotuner", lambda: _take_first_settings(counted))


def _take_first_settings(counted: Counted) -> None:
    """``@triton.autotune`` measures on the GPU which settings are fastest; none computes anything else."""
    module: Any = importlib.import_module("triton.runtime.autotuner")
    wrap(module.Autotuner, "run", lambda run: _with_first(run, counted))


def _with_first(run: Function, counted: Counted) -> Function:
    def ran(self: Any, *args: Any, **how: Any) -> Any:
        counted.note("triton.autotune")
        self.configs = self.configs[:1]
        return run(self, *args, **how)

    return ran
