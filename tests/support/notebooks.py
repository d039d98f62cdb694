"""Notebooks to test with, in the JSON that Jupyter writes and in that of other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SETUP = """\
%matplotlib inline
!pip install torch \\
    --upgrade
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard"""

BUILD = """\
%%time
model = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())  # naïve
"""

TRAIN = """\
files = !ls data
fully_shard(model)
for file in files:
    model(torch.ones(4)).sum().backward()
    optimizer.step()
model?"""

LATE = (
    ("markdown", "# `fully_shard` é"),
    ("code", SETUP),
    ("code", BUILD),
    ("code", "%%bash\nls fully_shard"),
    ("code", TRAIN),
)
"""FSDP201 in cell 3, line 3; the sharding is in cell 5, line 2."""


def notebook(
    cells: Sequence[tuple[str, str]],
    *,
    language: str = "python",
    lines: bool = True,
    **style: Any,
) -> str:
    """The JSON; ``lines``: sources are lists of lines; ``style`` goes to ``json.dumps``."""
    made: list[dict[str, Any]] = []
    for kind, text in cells:
        cell: dict[str, Any] = {"cell_type": kind, "id": f"c{len(made)}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell | {"source": text.splitlines(keepends=True) if lines else text})
    kernel = {"display_name": language, "language": language, "name": language}
    metadata = {"kernelspec": kernel}
    data = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, **({"indent": 1, "ensure_ascii": False} | style)) + "\n"


def written(path: Path, cells: Sequence[tuple[str, str]] = LATE, **style: Any) -> Path:
    """The path, at which a notebook stands now."""
    path.write_text(notebook(cells, **style), encoding="utf-8", newline="")
    return path


def sources(path: Path) -> list[str]:
    """The text of each cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells]
