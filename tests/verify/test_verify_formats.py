"""Checkpoints of every format that training scripts write, compared tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fsdp2lint.prove.compare import Options, Trial, Verification
from fsdp2lint.prove.places import find
from fsdp2lint.prove.words import rendered
from fsdp2lint.rehearse.results import Compared

from .scenes import Ranks, forking

pytestmark = pytest.mark.ranks

FILES = ("latest", "model.safetensors")
SCRIPTS = Path(__file__).parent / "scripts"
WEIGHTS = 10
STATES = WEIGHTS * 3  # two moments and a counter
PAIRS = [
    ("local", "folder", "local_0.pt to local_1.pt / latest", WEIGHTS),
    ("sharded", "folder", "sharded_0.pt to sharded_1.pt / latest", WEIGHTS + STATES),
    ("sharded", "pickled", "sharded_0.pt to sharded_1.pt", WEIGHTS + STATES),
    ("tensors", "full", "sharded_0.pt to sharded_1.pt / full.pt", WEIGHTS + STATES),
    ("rows", "full", "rows_0.pt to rows_1.pt / full.pt", STATES),
    ("flat", "full", "flat_0.pt to flat_1.pt / full.pt", WEIGHTS + STATES),
    ("flat", "pickled", "flat_0.pt to flat_1.pt / sharded_0.pt to sharded_1.pt", WEIGHTS + STATES),
    ("full", "pickled", "full.pt / sharded_0.pt to sharded_1.pt", WEIGHTS + STATES),
    ("full", "safetensors", "full.pt / model.safetensors", WEIGHTS),
    ("safetensors", "safetensors", "model.safetensors", WEIGHTS),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script works in links to what is in the current folder."""
    monkeypatch.chdir(tmp_path)


def script(name: str, api: str, form: str, change: float = 0.0, slot: str = "") -> Path:
    path = Path(name).resolve()
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"import saves\nsaves.main({api!r}, {form!r}, {change}, {slot!r})\n"
    )
    return path


def compared(ranks: Ranks, before: Path, *others: Path) -> list[Verification]:
    from fsdp2lint.prove.equality import apart

    # one form holds weights, another optimizer states too
    options = Options(timeout=600.0, accept_missing=("*",))
    with Trial(find(str(before)), options, run=ranks.launch, compare=apart.main) as runs:
        return [runs.against(find(str(other))) for other in others]


def files(found: Verification) -> list[Compared]:
    assert found.fault is None, rendered(found, colour=False)
    return [one for one in found.compared if ".pt" in one.what or one.what in FILES]


@pytest.mark.parametrize(("old", "new", "name", "count"), PAIRS)
def test_they_are_compared_tensor_by_tensor(
    ranks: Ranks, old: str, new: str, name: str, count: int
) -> None:
    if "safetensors" in (old, new):
        pytest.importorskip("safetensors")
    before = script("before.py", "fsdp1", old)
    same = script("after.py", "fsdp2", new)
    other = script("changed.py", "fsdp2", new, 0.125)
    equal, changed = compared(ranks, before, same, other)
    (found,) = files(equal)
    assert (found.what, found.differences, found.unread) == (name, [], 0)
    assert found.identical >= count
    if old != "rows":
        (found,) = files(changed)
        assert found.differences[0].name == "0.up.weight"


@pytest.mark.parametrize("old", ["flat", "rows"])
@pytest.mark.parametrize("slot", ["exp_avg", "exp_avg_sq"])
def test_optimizer_state_in_rows_is_compared_by_parameter(
    ranks: Ranks, old: str, slot: str
) -> None:
    before = script("before.py", "fsdp1", old)
    other = script("changed.py", "fsdp2", "full", 0.125, slot)
    (changed,) = compared(ranks, before, other)
    (found,) = files(changed)
    (difference,) = found.differences
    assert (difference.name, difference.more) == (f"0.up.weight: {slot}", 0)
    assert changed.exit_code == 1


def test_what_cannot_be_read_is_not_equal(ranks: Ranks, tmp_path: Path) -> None:
    before = script("before.py", "fsdp1", "full")
    broken = script("broken.py", "fsdp2", "full")
    broken.write_text(
        broken.read_text()
        + "import os\nif os.environ['RANK'] == '0':\n    os.truncate('full.pt', 100)\n"
    )
    (found,) = compared(ranks, before, broken)
    assert found.exit_code == 1
    assert "the checkpoint of AFTER cannot be read: `full.pt`: " in found.differences[-1].message
    (found,) = compared(ranks, broken, before)
    assert (found.exit_code, found.unread) == (0, 1)
    text = rendered(found, colour=False)
    assert "full.pt      0  not compared" in text
    assert "Equal, but for 1 checkpoint that could not be read: rung 3" in text


def test_other_files_are_told_where_they_differ(ranks: Ranks) -> None:
    def writing(name: str, side: str) -> Path:
        path = script(name, "fsdp2", "full")
        path.write_text(
            path.read_text()
            + "import os\nfrom pathlib import Path\nif os.environ['RANK'] == '0':\n"
            + f"    Path('log.txt').write_text('{side}')\n    Path('same.txt').write_text('x')\n"
            + f"    Path('{side}.npz').write_bytes(b'0')\n"
        )
        return path

    (found,) = compared(ranks, writing("before.py", "old"), writing("after.py", "new"))
    (other,) = (one for one in found.compared if one.what == "other files")
    assert (other.count, other.identical, other.differences) == (2, 1, [])
    assert "accepted by --accept-missing: AFTER does not write the file `old.npz`" in other.notes
    assert "only AFTER writes `new.npz`" in other.notes
    assert found.exit_code == 0
