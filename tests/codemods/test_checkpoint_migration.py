"""Whole programs before and after: the same losses, saved and resumed in the new form, and from old checkpoints."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.ask.program import Options
from fsdp2lint.catalogue.declare import Codemod, declared_codemods
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source
from tests.evidence.client import run

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

HERE = Path(__file__).parents[2] / "fixtures" / "checkpoints"
STYLES = sorted(p.stem for p in HERE.glob("*.py") if p.stem != "program")
MINE = (
    "checkpoint_functions",
    "optim_state_dicts",
    "raw_optimizer_states",
    "sharded_optim_state_dict_loads",
    "optim_state_dict_loads",
    "state_dicts",
    "state_dict_types",
    "checkpoint_folders",
    "async_saves",
)
CONSTRUCTOR = {"FullyShardedDataParallel", "ModuleWrapPolicy", "auto_wrap_policy", "device_id"}
_WRAPPED = """\
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)
"""


LOST = {"raw_optimizer_state"}
"""Styles that FSDP1 itself cannot resume: the file lacks the shards of all ranks but the first."""

OPTIONS = (Options(), Options(checkpoints="full"), Options(async_save=True))


def codemods() -> list[Codemod]:
    """Those of checkpoints, in order."""
    loaded = [importlib.import_module(f"fsdp2lint.codemods.{name}").__name__ for name in MINE]
    return [declared_codemods[name] for name in loaded]


def program(style: str) -> str:
    """The program with FSDP1 that saves and loads in this style."""
    text = (HERE / "program.py").read_text("utf-8")
    return text.replace("STYLE = None\n", (HERE / f"{style}.py").read_text("utf-8"))


def migrated(text: str, options: Options) -> str:
    """What the codemods make of it; the wrapper is changed here, by hand."""
    made = migrate((Source("train.py", text),), codemods(), (), options, whole=False)
    assert made.failures == []
    left = [e for e in made.ledger.entries if e.fate in ("open", "manual") and e.kind != "import"]
    assert {e.symbol for e in left} <= CONSTRUCTOR
    new = re.sub(r"    return FSDP\(model, .*\n", _WRAPPED, made.after[0].text)
    return new.replace("import FullyShardedDataParallel as FSDP", "import fully_shard")


def losses(folder: Path, text: str, written: Path | None, read: Path | None) -> list[str]:
    """The losses of a run on two ranks, which writes to and reads from these folders."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(text, "utf-8")
    for one in (written, read):
        if one is not None:
            one.mkdir(exist_ok=True)
    given = tuple(str(one) if one is not None else "nothing" for one in (written, read))
    ranks = run(script, folder / "scratch", arguments=given).ranks
    told = "\n".join(rank.stdout + rank.stderr for rank in ranks)
    assert all(rank.outcome == "ended" for rank in ranks), told
    first, second = ([x for x in r.stdout.splitlines() if x.startswith("step")] for r in ranks)
    assert first == second
    return first


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[str]]]:
    """The checkpoint and the losses of the program with FSDP1, run once for each style."""

    @lru_cache
    def original(style: str) -> tuple[Path, list[str]]:
        folder = tmp_path_factory.mktemp(style)
        return folder / "old", losses(folder / "before", program(style), folder / "old", None)

    return original


@pytest.mark.parametrize("options", OPTIONS, ids=("dcp", "full", "async"))
@pytest.mark.parametrize("style", STYLES)
def test_saved_and_resumed(
    style: str,
    options: Options,
    tmp_path: Path,
    originals: Callable[[str], tuple[Path, list[str]]],
) -> None:
    after = migrated(program(style), options)
    if options != OPTIONS[0] and after == migrated(program(style), OPTIONS[0]):
        pytest.skip("it is the same without the option")
    old, wanted = originals(style)
    new = tmp_path / "new"
    assert len(wanted) == 6
    assert losses(tmp_path / "after", after, new, None) == wanted
    assert losses(tmp_path / "again", after, None, new) == wanted[3:]
    if style not in LOST:
        assert losses(tmp_path / "from_old", after, None, old) == wanted[3:]
