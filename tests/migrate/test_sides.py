"""``--side-by-side``: either side of what is written is one of the two programs, and each reads what the other saved."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp2lint.migrate.sides import is_side_by_side, one_side, side_by_side
from fsdp2lint.source.source import Source
from tests.support.running import ROOT, program

CODEMODS = ROOT / "fixtures" / "codemods"
FILES = [
    path
    for path in sorted(CODEMODS.glob("*/*/before.py")) + sorted(CODEMODS.glob("*/*/before/**/*.py"))
    if Path(str(path).replace("/before", "/after")).exists()
]

TRAIN = '''\
"""A model, its training and its file."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    # each layer by itself
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    return FSDP(net, auto_wrap_policy=policy, device_id=torch.cuda.current_device())


def train(model, optimizer, first, last):
    losses = []
    for step in range(first, last):
        batch = torch.full((2, 8), 1.0 + step + dist.get_rank(), device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss.item(), float(norm)))
    assert isinstance(model, FSDP)
    return losses


def save(model, optimizer, file):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
    if dist.get_rank() == 0:
        torch.save(state, file)
    dist.barrier()


def load(model, optimizer, file):
    state = torch.load(file, map_location="cpu")
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state["model"])
        held = FSDP.optim_state_dict_to_load(model, optimizer, state["optim"])
    optimizer.load_state_dict(held)


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    load(model, optimizer, "last.pt")
    train(model, optimizer, 0, 4)
    save(model, optimizer, "last.pt")
    dist.destroy_process_group()
'''
SWITCH = """\
import importlib
import os

import torch
import torch.distributed as dist

import pieces


def begin(version):
    os.environ["FSDP_VERSION"] = version
    importlib.reload(pieces)
    model = pieces.build()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
first, then = [], []
for version in "12":
    model, optimizer = begin(version)
    kinds = {type(one).__name__ for one in model.modules()}
    assert ("FullyShardedDataParallel" in kinds) is (version == "1"), kinds
    first.append(pieces.train(model, optimizer, 0, 2))
    pieces.save(model, optimizer, f"{version}.pt")
    then.append(pieces.train(model, optimizer, 2, 4))
for version, other in ("11", "12", "21", "22"):
    model, optimizer = begin(other)
    pieces.load(model, optimizer, f"{version}.pt")
    then.append(pieces.train(model, optimizer, 2, 4))
torch.testing.assert_close(first, [first[0]] * 2, rtol=1e-5, atol=0)
torch.testing.assert_close(then, [then[0]] * 6, rtol=1e-5, atol=0)
print("all agree")
dist.destroy_process_group()
"""


def source(text: str) -> Source:
    return Source("train.py", text)


def _after(path: Path) -> Path:
    return Path(str(path).replace("/before", "/after"))


class _Bare(ast.NodeTransformer):
    """A program without its imports, annotations and the texts that describe it."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
            first = kept[0].value if kept and isinstance(kept[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                del kept[0]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        for part in ("annotation", "returns"):
            if hasattr(node, part) and not isinstance(node, ast.AnnAssign):
                setattr(node, part, None)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _bare(text: str, only: str = "") -> str:
    """What a text does; with ``only``, without the functions that this other text does not define."""
    tree = _Bare().visit(ast.parse(text))
    if only:
        known = {getattr(one, "name", "") for one in ast.parse(only).body}
        tree.body = [one for one in tree.body if getattr(one, "name", "") in (*known, "")]
    return ast.unparse(tree)


@pytest.mark.parametrize("path", FILES[::3], ids=lambda p: str(p.relative_to(CODEMODS).parent))
def test_each_side_is_one_of_the_programs(path: Path) -> None:
    old, new = source(path.read_text()), source(_after(path).read_text())
    both = source(side_by_side(old, new))
    compile(both.text, str(path), "exec", dont_inherit=True)
    assert _bare(one_side(both, fsdp2=True)) == _bare(new.text)
    assert _bare(one_side(both, fsdp2=False), only=old.text) == _bare(old.text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pieces.py").write_text(TRAIN)
    return tmp_path


def test_what_differs_is_written_in_both_forms_and_the_rest_once(folder: Path) -> None:
    shown = program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    assert shown.returncode == 0
    assert "FSDP1 is beside FSDP2 in 1 file: `FSDP_VERSION=1` in the environment" in shown.stdout
    text = (folder / "pieces.py").read_text()
    assert 'FSDP2 = os.environ.get("FSDP_VERSION") != "1"\n' in text
    assert text.count("optimizer.zero_grad()") == 1
    assert (
        """\
        if FSDP2:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        else:
            norm = model.clip_grad_norm_(1.0)
        optimizer.step()
"""
        in text
    )
    quiet = program("check", ".", "--ignore", "FSDP1,FSDP314", cwd=folder)
    assert quiet.returncode == 0, quiet.stdout


def test_again_nothing_changes_and_without_the_option_fsdp1_goes(folder: Path) -> None:
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    both = (folder / "pieces.py").read_text()
    again = program("migrate", ".", "--side-by-side", "--check", "-q", cwd=folder)
    assert again.returncode == 0, again.stdout
    dry = program("migrate", ".", "-q", cwd=folder)
    assert "FSDP1 would go from the 1 file that held it beside FSDP2." in dry.stdout
    assert "1 file would change; nothing was written." in dry.stdout
    assert (folder / "pieces.py").read_text() == both
    program("migrate", ".", "--write", "-q", cwd=folder)
    alone = (folder / "pieces.py").read_text()
    (folder / "pieces.py").write_text(TRAIN)
    program("migrate", ".", "--checkpoints", "full", "--write", "-q", cwd=folder)
    assert alone == (folder / "pieces.py").read_text()


def test_new_code_of_fsdp1_joins_the_two_sides(folder: Path) -> None:
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    file = folder / "pieces.py"
    more = "\n    other = FSDP(nn.Linear(4, 4))\n    other.clip_grad_norm_(0.5)\n"
    file.write_text(file.read_text() + more)
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    both = Source("pieces.py", file.read_text())
    assert is_side_by_side(both)
    assert "other.clip_grad_norm_(0.5)" in one_side(both, fsdp2=False)
    assert "other.clip_grad_norm_(0.5)" not in one_side(both, fsdp2=True)


@pytest.mark.parametrize("words", ["--checkpoints dcp", "--launch torchrun"])
def test_what_only_fsdp2_could_do_is_refused(folder: Path, words: str) -> None:
    shown = program("migrate", ".", "--side-by-side", *words.split(), cwd=folder)
    assert shown.returncode == 2
    assert f"leave out `{words}`" in shown.stderr


OLD = """\
import one
from far import thing


def same():
    return thing


if test(one):
    a()
while old(1):
    b()
class A:
    def f(self, x: one.T):
        "Old words."
        return x
"""
NEW = """\
import two
from near import thing


def same():
    return thing


if test(two):
    a()
while new(1):
    b()
class A:
    def f(self, x: two.T):
        "New words."
        y = two.g(x)
        return y
"""


def test_names_imported_from_two_places_and_tests_alone() -> None:
    text = side_by_side(source(OLD), source(NEW))
    assert (
        text
        == """\
import os

import two
import one

# FSDP_VERSION=1 trains with FSDP1
FSDP2 = os.environ.get("FSDP_VERSION") != "1"

if FSDP2:
    from near import thing
else:
    from far import thing


def same():
    return thing


if test(two) if FSDP2 else test(one):
    a()
while new(1) if FSDP2 else old(1):
    b()
class A:
    def f(self, x: two.T):
        "New words."
        if FSDP2:
            y = two.g(x)
            return y
        else:
            return x
"""
    )


def test_a_name_that_is_taken_and_a_text_without_two_sides() -> None:
    text = side_by_side(source("FSDP2 = 1\nold()\n"), source("FSDP2 = 1\nnew()\n"))
    assert "if USE_FSDP2:\n    new()\nelse:\n    old()\n" in text
    assert side_by_side(source("import a\nf()\n"), source("import b\nf()\n")) == (
        "import b\nimport a\nf()\n"
    )
    assert one_side(source("if FSDP2:\n    a()\n"), fsdp2=False) == "if FSDP2:\n    a()\n"


GLOBAL = "import m\n\nif use(m):\n    x = {0}\n\n\ndef build():\n    global x; x = {0}\n"
INSIDE = "def load(f):\n    from {0} import Reader\n    return Reader(f)\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GLOBAL, "if FSDP2:\n    def build():\n        global x; x = new\nelse:"),
        (
            INSIDE,
            "    if FSDP2:\n        from new import Reader\n    else:\n        from old import",
        ),
        ("from {0} import a\na()\n", "import os\n\n# FSDP_VERSION=1 trains with FSDP1\n"),
        ("from common import *\n\n{0}()\n", "if FSDP2:\n    new()\nelse:\n    old()\n"),
    ],
)
def test_what_cannot_be_taken_apart_is_written_whole(text: str, said: str) -> None:
    old, new = source(text.format("old")), source(text.format("new"))
    both = source(side_by_side(old, new))
    assert said in both.text
    compile(both.text, "train.py", "exec", dont_inherit=True)
    sides = [source(one_side(both, fsdp2=fsdp2)) for fsdp2 in (False, True)]
    assert [ast.dump(ast.parse(one.text)) for one in sides] == [
        ast.dump(ast.parse(one.text)) for one in (old, new)
    ]
    assert side_by_side(*sides) == both.text


OWN = [
    "print(FSDP2)\n",
    "if FSDP2 and a:\n    b()\n",
    "lr = 1e-3 if FSDP2 else 1e-4\n",
    "if a:\n    b()\nelif FSDP2:\n    c()\nelse:\n    d()\n",
    "if FSDP2: a()\nelse: b()\n",
    "if not FSDP2:\n    a()\nelif b:\n    c()\nelse:\n    d()\n",
]


@pytest.mark.parametrize("own", OWN)
def test_what_a_person_wrote_with_the_setting_stays(own: str) -> None:
    both = side_by_side(source("f()\nold()\n"), source("f()\nnew()\n"))
    left = one_side(source(both + own), fsdp2=True)
    assert left.endswith(own)
    assert 'FSDP2 = os.environ.get("FSDP_VERSION") != "1"\n' in left
    sides = [source(one_side(source(both + own), fsdp2=fsdp2)) for fsdp2 in (False, True)]
    assert side_by_side(*sides) == both + own


def test_the_setting_of_another_file_stays(tmp_path: Path, folder: Path) -> None:
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    (folder / "other.py").write_text("import torch\nfrom pieces import FSDP2\n\nprint(FSDP2)\n")
    program("migrate", ".", "--write", "-q", cwd=folder)
    left = (folder / "pieces.py").read_text()
    assert 'FSDP2 = os.environ.get("FSDP_VERSION") != "1"\n' in left
    assert "if FSDP2" not in left
    again = program("migrate", ".", "-q", cwd=folder)
    assert "beside FSDP2" not in again.stdout


@pytest.mark.parametrize("words", [("--only", "no-sync"), ("--interactive",)])
def test_what_is_asked_in_parts_takes_nothing_out(folder: Path, words: tuple[str, ...]) -> None:
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    both = (folder / "pieces.py").read_text()
    shown = program("migrate", *words, "--write", ".", cwd=folder, text="n\n" * 9)
    assert shown.returncode == 2
    assert "pieces.py holds FSDP1 beside FSDP2" in shown.stderr
    assert (folder / "pieces.py").read_text() == both


@pytest.mark.ranks
def test_each_way_trains_alike_and_reads_what_the_other_wrote(folder: Path) -> None:
    program("migrate", ".", "--side-by-side", "--write", "-q", cwd=folder)
    (folder / "switch.py").write_text(SWITCH)
    shown = program("rehearse", "switch.py", cwd=folder)
    assert "all agree" in shown.stdout + shown.stderr, shown.stdout + shown.stderr
