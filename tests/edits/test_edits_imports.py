"""Imports: which name to use, where a new import goes, which one can go."""

from __future__ import annotations

import subprocess
import sys

import libcst as cst
import pytest

from fsdp2lint.edits.apply import combine, resolve
from fsdp2lint.edits.imports import WITH_TORCH, Unimport, name_for
from fsdp2lint.edits.text import Replace
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk
from tests.support.editing import edited

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
SHARD_HOME = "torch.distributed.fsdp"
SHARD = "torch.distributed.fsdp.fully_shard"
POLICY = "torch.distributed.fsdp.MixedPrecisionPolicy"


def here(source: Source) -> cst.CSTNode:
    """The name ``HERE``."""
    return next(n for n in walk(source.tree) if isinstance(n, cst.Name) and n.value == "HERE")


KNOWN = [
    ("from torch.distributed.fsdp import fully_shard\nHERE\n", "fully_shard"),
    ("from torch.distributed.fsdp import fully_shard as fs\nHERE\n", "fs"),
    ("import torch.distributed.fsdp\nHERE\n", SHARD),
    ("import torch\nimport torch.distributed.fsdp\ndef f(): HERE\n", SHARD),
    ("import torch.distributed.fsdp as tdf\nHERE\n", "tdf.fully_shard"),
    ("from torch.distributed import fsdp\nHERE\n", "fsdp.fully_shard"),
    (
        "try:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    fully_shard = None\nHERE\n",
        "fully_shard",
    ),
    ("def f():\n    HERE\nfrom torch.distributed.fsdp import fully_shard\n", "fully_shard"),
    (
        "def f():\n    from torch.distributed.fsdp import fully_shard\n    if x:\n        HERE\n",
        "fully_shard",
    ),
]


@pytest.mark.parametrize(("text", "name"), KNOWN)
def test_an_import_that_is_there_is_used(text: str, name: str) -> None:
    source = Source("a.py", text)
    assert name_for(source, here(source), SHARD).text == name
    assert not name_for(source, here(source), SHARD).edits


ADDED = [
    ("HERE\n", "fully_shard", "from torch.distributed.fsdp import fully_shard\n\nHERE\n"),
    (
        '"""doc"""\nHERE\n',
        "fully_shard",
        '"""doc"""\n\nfrom torch.distributed.fsdp import fully_shard\nHERE\n',
    ),
    (
        "# head\n'doc'\nfrom __future__ import annotations\n\nHERE\n",
        "fully_shard",
        "# head\n'doc'\nfrom __future__ import annotations\n\nfrom torch.distributed.fsdp import fully_shard\n\nHERE\n",
    ),
    (
        "import os\nimport torch\nfrom torch import nn\nfrom torch.utils.data import X\n\nHERE\n",
        "fully_shard",
        "import os\nimport torch\nfrom torch import nn\nfrom torch.distributed.fsdp import fully_shard\nfrom torch.utils.data import X\n\nHERE\n",
    ),
    (
        "import os\nos.environ['A'] = '1'\nimport torch\nHERE\n",
        "fully_shard",
        "import os\nos.environ['A'] = '1'\nimport torch\nfrom torch.distributed.fsdp import fully_shard\nHERE\n",
    ),
    (
        "from torch.distributed.fsdp import (\n    CPUOffload,  # c\n    StateDictType,\n)\nHERE\n",
        "fully_shard",
        "from torch.distributed.fsdp import (\n    CPUOffload,  # c\n    StateDictType,\n    fully_shard,\n)\nHERE\n",
    ),
    (
        "from torch.distributed.fsdp import A, z  # noqa: F401\nHERE\n",
        "fully_shard",
        "from torch.distributed.fsdp import A, fully_shard, z  # noqa: F401\nHERE\n",
    ),
    (
        "def f():\n    import torch\n    HERE\n",
        "fully_shard",
        "def f():\n    import torch\n    from torch.distributed.fsdp import fully_shard\n    HERE\n",
    ),
    (
        "import torch\n\ndef fully_shard(m): ...\n\nHERE\n",
        "torch_fully_shard",
        "import torch\nfrom torch.distributed.fsdp import fully_shard as torch_fully_shard\n\ndef fully_shard(m): ...\n\nHERE\n",
    ),
    (
        "import torch\n\ndef f(fully_shard):\n    HERE\n",
        "torch_fully_shard",
        "import torch\nfrom torch.distributed.fsdp import fully_shard as torch_fully_shard\n\ndef f(fully_shard):\n    HERE\n",
    ),
    (
        "if x:\n    from torch.distributed.fsdp import fully_shard\nimport torch\nHERE\n",
        "fully_shard",
        "if x:\n    from torch.distributed.fsdp import fully_shard\nimport torch\nfrom torch.distributed.fsdp import fully_shard\nHERE\n",
    ),
    (
        "import torch; x = 1\r\nHERE\r\n",
        "fully_shard",
        "import torch\r\nfrom torch.distributed.fsdp import fully_shard\r\nx = 1\r\nHERE\r\n",
    ),
]


@pytest.mark.parametrize(("text", "name", "after"), ADDED)
def test_a_new_import(text: str, name: str, after: str) -> None:
    source = Source("a.py", text)
    found = name_for(source, here(source), SHARD)
    assert found.text == name
    assert edited(source, *found.edits) == after
    again = Source("a.py", after)
    assert name_for(again, here(again), SHARD).text == name
    assert not name_for(again, here(again), SHARD).edits


def test_several_names_of_several_fixes_share_one_import() -> None:
    source = Source("a.py", "import torch\nHERE\n")
    fixes = [name_for(source, here(source), name).edits for name in (SHARD, POLICY, SHARD)]
    line = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
    assert combine(fixes).texts == {source: f"import torch\n{line}HERE\n"}


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("import numpy\nHERE\n", f"{{}}\n\nimport numpy\nfrom {SHARD_HOME} import fully_shard\n"),
        ('"""Says."""\nHERE\n', f'"""Says."""\n\n{{}}\n\nfrom {SHARD_HOME} import fully_shard\n'),
    ],
)
def test_new_imports_of_a_kind_make_one_paragraph(text: str, head: str) -> None:
    source = Source("a.py", text)
    wanted = (SHARD, "functools.partial", "contextlib.contextmanager")
    fixes = [name_for(source, here(source), name).edits for name in wanted]
    standard = "from contextlib import contextmanager\nfrom functools import partial"
    assert combine(fixes).texts == {source: f"{head.format(standard)}HERE\n"}


def test_modules() -> None:
    source = Source("a.py", "import torch\nHERE\n")
    dcp = name_for(source, here(source), "torch.distributed.checkpoint", alias="dcp", module=True)
    assert dcp.text == "dcp"
    after = edited(source, *dcp.edits)
    assert after == "import torch\nimport torch.distributed.checkpoint as dcp\nHERE\n"
    again = Source("a.py", after)
    assert name_for(again, here(again), "torch.distributed.checkpoint.save").text == "dcp.save"
    nn = name_for(source, here(source), "torch.nn.utils.clip_grad_norm_")
    assert (nn.text, nn.edits) == ("torch.nn.utils.clip_grad_norm_", ())


def test_what_import_torch_loads() -> None:
    code = "import sys, torch; print(*(m for m in sys.modules if m.startswith('torch')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert loaded >= WITH_TORCH
    assert not loaded & {"torch.distributed.fsdp", "torch.distributed.checkpoint"}


REMOVED = [
    ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nx\n", "x\n"),
    (
        "import os\nfrom torch.distributed.fsdp import A, FullyShardedDataParallel as FSDP, B  # c\n",
        "import os\nfrom torch.distributed.fsdp import A, B  # c\n",
    ),
    (
        "from torch.distributed.fsdp import (\n    A,\n    FullyShardedDataParallel,  # c\n)\n",
        "from torch.distributed.fsdp import (\n    A,\n)\n",
    ),
    (
        "from torch.distributed.fsdp import (A,\n    FullyShardedDataParallel)\n",
        "from torch.distributed.fsdp import A\n",
    ),
    (
        "from torch.distributed.fsdp import(\n    A as B,  \n    FullyShardedDataParallel,\n)  # d\n",
        "from torch.distributed.fsdp import A as B  # d\n",
    ),
    (
        "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel\nexcept ImportError: x\n",
        "try:\n    pass\nexcept ImportError: x\n",
    ),
    (
        "if TYPE_CHECKING: from torch.distributed.fsdp import FullyShardedDataParallel\n",
        "if TYPE_CHECKING: pass\n",
    ),
    (
        "import os; from torch.distributed.fsdp import FullyShardedDataParallel; x\n",
        "import os; x\n",
    ),
]


@pytest.mark.parametrize(("text", "after"), REMOVED)
def test_an_unused_import_goes(text: str, after: str) -> None:
    source = Source("a.py", text)
    assert edited(source, Unimport(source, FSDP1)) == after


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nisinstance(m, FSDP)\n",
        ),
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\ndef f(x: 'F | None'): ...\n",
        ),
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\n__all__ = ['F']\n",
        ),
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F  # noqa: F401\n",
        ),
        ("a.py", f"from torch.distributed.fsdp import {FSDP1[23:]} as {FSDP1[23:]}\n"),
        ("p/__init__.py", "from torch.distributed.fsdp import FullyShardedDataParallel\n"),
        (
            "a.py",
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\nclass A:\n    F = 1\n    def f(s): return F\n",
        ),
    ],
)
def test_a_used_import_stays(path: str, text: str) -> None:
    source = Source(path, text)
    assert resolve((Unimport(source, FSDP1),)) == {}


@pytest.mark.parametrize("codes", ["E402", "E402, F811", "N817"])
def test_a_mark_for_other_rules_keeps_no_import(codes: str) -> None:
    source = Source("a.py", f"from torch.distributed.fsdp import {FSDP1[23:]}  # noqa: {codes}\n")
    assert edited(source, Unimport(source, FSDP1)) == ""


@pytest.mark.parametrize("mark", ["# noqa", "# NOQA: E402,F401", "# noqa: F", "# why  # noqa: F4"])
def test_a_mark_for_unused_imports_keeps_one(mark: str) -> None:
    source = Source("a.py", f"from torch.distributed.fsdp import {FSDP1[23:]}  {mark}\n")
    assert resolve((Unimport(source, FSDP1),)) == {}


def test_an_import_goes_only_with_its_last_use() -> None:
    text = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\na = FSDP(x)\nb = FSDP(y)\n"
    source = Source("a.py", text)
    uses = [n for n in walk(source.tree) if isinstance(n, cst.Call)]
    fixes = []
    for use in uses:
        name = name_for(source, use, SHARD)
        fixes.append((Replace(source, use.func, name.text), *name.edits, Unimport(source, FSDP1)))
    one = combine(fixes[:1]).texts[source]
    assert one.startswith(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n"
    )
    both = combine(fixes).texts[source]
    assert (
        both
        == "from torch.distributed.fsdp import fully_shard\na = fully_shard(x)\nb = fully_shard(y)\n"
    )


def test_an_import_that_grows_too_long_gets_lines() -> None:
    names = "get_model_state_dict, get_optimizer_state_dict"
    text = f"def f():\n    from torch.distributed.checkpoint.state_dict import {names}  # both\n    HERE\n"
    source = Source("a.py", text)
    name = name_for(
        source, here(source), "torch.distributed.checkpoint.state_dict.StateDictOptions"
    )
    assert combine([name.edits]).texts[source] == (
        "def f():\n"
        "    from torch.distributed.checkpoint.state_dict import (\n"
        "        StateDictOptions,\n"
        "        get_model_state_dict,\n"
        "        get_optimizer_state_dict,\n"
        "    )  # both\n"
        "    HERE\n"
    )
