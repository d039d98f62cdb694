"""Runs that are kept from one version of a program to the next: never another outcome, and no more work than needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.ask.program import PATIENCE, Program
from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import EVERY_OTHER
from fsdp2lint.interpret.entries import traces
from fsdp2lint.migrate.engine import migrate, waves
from fsdp2lint.migrate.files import choose
from fsdp2lint.model.trace import Trace
from fsdp2lint.project.project import (
    ALL_PROGRAMS_STEPS,
    LEAST_STEPS,
    PROGRAM_STEPS,
    Budget,
    Project,
)
from fsdp2lint.source.source import Source
from fsdp2lint.system.discover import Exclusion, discover

PROJECTS = Path(__file__).parents[2] / "fixtures" / "projects"

FILES = {
    "lib/__init__.py": "",
    "lib/blocks.py": "import torch\ndef build():\n    return torch.nn.Linear(4, 4)\n",
    "lib/saving.py": "import torch\ndef save(model):\n    torch.save(model.state_dict(), 'm')\n",
    "train.py": "from lib.blocks import build\nif __name__ == '__main__':\n    build().train()\n",
    "export.py": (
        "from lib import blocks, saving\nif __name__ == '__main__':\n    saving.save(blocks.build())\n"
    ),
}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Two programs that share one module."""
    sources = []
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        sources.append(Source(str(path), text))
    return Program(tuple(sources), (tmp_path,))


def changed(program: Program, name: str, old: str, new: str) -> Program:
    """The program with another text of one file."""
    sources = [
        s.with_text(s.text.replace(old, new)) if s.path.endswith(name) else s
        for s in program.sources
    ]
    assert sources != list(program.sources)
    return program.with_sources(sources)


def told(found: tuple[Trace, ...]) -> list[list[str]]:
    """What traces say, without the objects of their run."""
    return [
        [one.entry, one.source.path, str(one.truncated)]
        + [f"{type(e).__name__} {e.order} {e.at.line} {e.words()} {e.guards.words()}" for e in one]
        for one in found
    ]


def fresh(program: Program) -> tuple[Trace, ...]:
    """All runs, made anew."""
    project = Project.of(program.sources, program.roots)
    project.budget = Budget(patience=PATIENCE)
    return tuple(traces(project))


def test_only_runs_that_load_a_changed_file_are_made_again(program: Program) -> None:
    before = program.traces
    after = changed(program, "saving.py", "'m'", "'n'")
    made = [t for t in after.traces if t not in before]
    assert {Path(t.source.path).name for t in made} == {"export.py", "saving.py"}
    assert told(after.traces) == told(fresh(after)) != told(before)


def test_a_changed_program_is_made_again_alone(program: Program) -> None:
    before = program.traces
    after = changed(program, "train.py", ".train()", ".eval()")
    made = [t for t in after.traces if t not in before]
    assert {Path(t.source.path).name for t in made} == {"train.py"}
    assert told(after.traces) == told(fresh(after))


SAVING = """import torch
import pickle
from os import path, sep
LIMIT = 3
class Base:
    def __init__(self, kind: int):
        self.kind = kind
    def name(self):
        return "m"
    def unused(self):
        return 1
class Saver(Base):
    def __init__(self, way: Base):
        self.way = way
    def save(self, model):
        torch.save(model.state_dict(), self.name() + self.way.kind)
    def other(self):
        return 3
def save(model, limit=LIMIT):
    Saver(input()).save(model)
def restore(model):
    return torch.load("m")
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('torch.load("m")', 'torch.load("n")\n'),
        ('torch.load("m")', "_read()\ndef _read(name='m'):\n    return torch.load(name)"),
        ("import torch\n", "import os\nimport torch\nfrom torch.distributed import checkpoint\n"),
        (
            "class Base:",
            'from queue import Queue\nclass Files(Queue):\n    """Of a run."""\n'
            "    def take(self):\n        return torch.load(self.get())\nclass Base:",
        ),
        ("return 1", "return [2]"),
        ("return 3", "return [4]"),
        ("import pickle\n", ""),
        ("from os import path, sep\n", "from os import path\n"),
    ],
)
def test_a_run_stays_where_only_functions_changed_that_it_never_entered(
    program: Program, old: str, new: str
) -> None:
    program = changed(program, "saving.py", FILES["lib/saving.py"], SAVING)
    before = program.traces
    after = changed(program, "saving.py", old, new)
    made = [t for t in after.traces if t not in before]
    assert {Path(t.source.path).name for t in made} == {"saving.py"}
    assert told(after.traces) == told(fresh(after))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('return "m"', 'return "n"'),
        (".save(model)", ".save(model.eval())"),
        ("return 3", "return fully_shard(self)"),  # what it is given may matter
        ("self.kind = kind", "self.kind = 4"),
        ("LIMIT = 3", "LIMIT = torch.zeros(3)"),
        ("limit=LIMIT", "limit=torch.zeros(3)"),
        ("class Saver(Base):", "class Saver(Base):\n    size = torch.zeros(1)"),
        ("def name(self):", "@torch.no_grad()\n    def name(self):"),
        ("    def save(self", '    def name(self):\n        return "o"\n    def save(self'),
        ("def save(model, limit", "def print(*args):\n    torch.zeros(1)\ndef save(model, limit"),
        ("import torch\n", "import torch\nfrom lib.blocks import build as Saved\n"),
        ("def restore(model):\n    return torch.load", "torch.load"),
        ("def restore", "class Other(Saver):\n    def other(self):\n        return 4\ndef restore"),
        ("def restore", "class Other:\n    saved = torch.load('n')\ndef restore"),
        (".save(model)", ".save(model)\nsave = torch.save"),
        ("import torch\n", "import torch as t\n"),
    ],
)
def test_a_run_is_made_again_where_it_may_notice_the_change(
    program: Program, old: str, new: str
) -> None:
    program = changed(program, "saving.py", FILES["lib/saving.py"], SAVING)
    before = program.traces
    after = changed(program, "saving.py", old, new)
    made = [t for t in after.traces if t not in before]
    assert "export.py" in {Path(t.source.path).name for t in made}
    assert told(after.traces) == told(fresh(after))


def test_a_file_keeps_the_nodes_of_what_stays() -> None:
    source = Source("saving.py", SAVING)
    old = list(source.tree.body)
    change = source.become(source.with_text(SAVING.replace('"m")', '"n")  # n')))
    assert change is not None
    assert change.bodies == {old[-1]}
    assert list(source.tree.body) == old
    assert source.tree.code == source.text
    assert source.become(source.with_text(SAVING.replace("LIMIT = 3", "LIMIT = 4"))) is None
    assert source.tree.code == source.text
    assert source.tree.body[1] is not old[1]


def test_a_comment_above_a_statement_is_a_part_of_it() -> None:
    source = Source("saving.py", SAVING)
    text = SAVING.replace("def restore", "# reads it\ndef restore").replace(
        "class Base", "\nclass Base"
    )
    source.become(source.with_text(text))
    assert source.tree.code == text


def test_what_nobody_reaches_any_more_is_an_entry_of_its_own(program: Program) -> None:
    """A file that did not change has more to run when a program no longer calls its function."""
    assert not any(t.entry == "save" for t in program.traces)
    after = changed(program, "export.py", "saving.save(blocks.build())", "blocks.build()")
    assert any(t.entry == "save" for t in after.traces)
    assert told(after.traces) == told(fresh(after))
    back = changed(after, "export.py", "blocks.build()", "saving.save(blocks.build())")
    assert not any(t.entry == "save" for t in back.traces)
    assert told(back.traces) == told(program.traces)


def test_files_around_the_program_stay_the_same_objects(program: Program, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("args = {}\n")
    one = changed(program, "train.py", "from lib", "from config import args\nprint(args)\nfrom lib")
    other = changed(one, "saving.py", "'m'", "'n'")
    path = str(tmp_path / "config.py")
    assert one.project.source(path) is other.project.source(path) is not None


def test_the_old_traces_are_let_go(program: Program) -> None:
    assert sum(len(t.events) for t in program.traces)
    assert not program.runs.dropped
    changed(program, "blocks.py", "4, 4", "8, 8")
    gone = [t for t in program.traces if any(s.path.endswith("blocks.py") for s in t.sources)]
    assert program.runs.dropped >= sum(len(t.events) for t in gone) > 0


def test_a_ration_is_as_good_as_one_that_nothing_refused() -> None:
    budget = Budget(80_000)
    ration = budget.ration(20_000)
    assert ration.steps == 10_000
    assert ration.covers(9_000)
    assert ration.half_of(4_000) == 4_000
    assert ration.needed == 9_000
    budget.spend(9_000)
    assert Budget(75_000).allows([ration])
    assert not Budget(60_000).allows([ration])
    assert not ration.covers(10_001)
    assert Budget(80_000).allows([ration])
    assert not Budget(81_000).allows([ration])


def test_half_of_a_ration() -> None:
    ration = Budget(0).ration(20_000)
    assert ration.steps == LEAST_STEPS
    assert ration.half_of(LEAST_STEPS) == LEAST_STEPS // 2
    assert ration.refused


def test_what_is_repeated_is_spent() -> None:
    one, other = Budget(100_000), Budget(100_000)
    for steps in (20_000, 30_000):
        one.ration(35_000)
        one.spend(steps)
    other.repeat(one.rations)
    assert other.left[False, "about", False] == one.left[False, "about", False] == 50_000


def test_a_program_has_its_usual_steps_whatever_others_took() -> None:
    budget = Budget(0)
    first = budget.ration(20_000, program=True)
    assert first.steps == 20_000 * PROGRAM_STEPS
    budget.spend(ALL_PROGRAMS_STEPS)
    assert budget.ration(20_000, program=True).steps == 20_000
    assert budget.ration(20_000).steps == LEAST_STEPS


def test_a_run_that_had_too_little_is_made_again_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long function in front uses the budget up; when it is gone, the calls behind it are entered."""
    monkeypatch.setattr(Budget.__init__, "__defaults__", (40_000 // PATIENCE, 1))
    long = "def long():\n" + f"    x = {'a.b + ' * 60}a\n" * 350
    late = "def f(x):\n" + "    a.b; a.b\n" * 1000 + "    g(x)\ndef g(x):\n    h(x)\n"
    sources = (Source(str(tmp_path / "a.py"), long), Source(str(tmp_path / "b.py"), late))
    program = Program(sources)

    def truncated(one: Program) -> bool:
        return any(t.truncated for t in one.traces if t.source.path.endswith("b.py"))

    assert truncated(program)
    after = program.with_sources([sources[0].with_text("x = 1\n"), sources[1]])
    assert not truncated(after)
    assert told(after.traces) == told(fresh(after))


@pytest.mark.parametrize("project", ["captioner", "diffusion_ema", "strategy_switch"])
def test_every_stage_of_a_migration_sees_what_a_fresh_look_would(project: str) -> None:
    chosen = choose(discover([str(PROJECTS / project)], Exclusion(gitignore=False)))
    stages = migrate(chosen.sources, knowledge.codemods(), chosen.roots).stages
    program = Program(chosen.sources, chosen.roots)
    for stage in [None, *stages]:
        if stage is not None:
            new = {old.path: after for old, after in stage.changed}
            program = program.with_sources([new.get(s.path, s) for s in program.sources])
        assert told(program.traces) == told(fresh(program))


def test_codemods_run_together_where_none_has_to_see_what_another_wrote() -> None:
    known = knowledge.codemods()
    together = waves(known)
    assert [one for wave in together for one in wave] == list(known)
    for wave in together:
        names = {one.name for one in wave}
        assert not any(names & set(one.after) for one in wave)
        assert len(wave) == 1 or not any(EVERY_OTHER in one.after for one in wave)


@pytest.mark.parametrize("project", ["fp16_scaled", "strategy_switch"])
def test_codemods_write_the_same_together_and_one_by_one(project: str) -> None:
    chosen = choose(discover([str(PROJECTS / project)], Exclusion(gitignore=False)))
    one, other = (
        migrate(chosen.sources, knowledge.codemods(), chosen.roots, apart=apart)
        for apart in (False, True)
    )
    assert [s.text for s in one.after] == [s.text for s in other.after]
    assert one.ledger.entries == other.ledger.entries
    assert len(one.stages) < len(other.stages)
