"""Rows that were made up, given to TRL: its trainers take data sets of ``datasets`` only, and know which columns they need."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fsdp2lint.rehearse.fakes.data_sets import COLUMNS, Dataset, DatasetDict
from fsdp2lint.rehearse.standin.replace import wrap

_PAIRS = ("prompt", "chosen", "rejected")
NEEDED = {
    "sft": (),
    "dpo": _PAIRS,
    "orpo": _PAIRS,
    "cpo": _PAIRS,
    "reward": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
    "grpo": ("prompt",),
    "rloo": ("prompt",),
}
"""The columns of rows from which the program has made no other, by the trainer."""


def install(after: Callable[[str, Callable[[], None]], None]) -> None:
    """``after`` calls a function when a module is imported."""
    for kind, columns in NEEDED.items():
        name = f"trl.trainer.{kind}_trainer"
        after(name, functools.partial(_take_rows, name, columns))


def _take_rows(name: str, columns: tuple[str, ...]) -> None:
    """Let the trainers of a module take rows that were made up."""
    for cls in list(vars(importlib.import_module(name)).values()):
        if inspect.isclass(cls) and cls.__module__ == name and cls.__name__.endswith("Trainer"):
            if "__init__" in vars(cls):
                wrap(cls, "__init__", functools.partial(_taking, columns))


def _taking(columns: tuple[str, ...], init: Callable[..., None]) -> Callable[..., None]:
    def initialised(self: Any, *args: Any, **how: Any) -> None:
        real = [_real(one, columns) for one in args]
        init(self, *real, **{name: _real(one, columns) for name, one in how.items()})

    return initialised


def _real(given: Any, columns: tuple[str, ...]) -> Any:
    """A data set of the package in the place of ours; anything else as it is."""
    if isinstance(given, DatasetDict) or (type(given) is dict and given):
        return {name: _real(part, columns) for name, part in given.items()}
    if not isinstance(given, Dataset):
        return given
    named = given.column_names
    wanted = columns if columns and tuple(named) == COLUMNS else named
    rows = [{name: row[name] for name in wanted} for row in given]
    package: Any = importlib.import_module("datasets")
    return package.Dataset.from_list(rows)
