"""Which runs come first, what they may spend, and wrappers that run inside each other."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fsdp2lint.check.coverage import Program
from fsdp2lint.check.runner import Batch, check
from fsdp2lint.interpret import machine
from fsdp2lint.interpret.again import Reached
from fsdp2lint.interpret.entries import traces
from fsdp2lint.interpret.entries.programs import in_order, workers_first
from fsdp2lint.model.events import Sharded
from fsdp2lint.project.project import (
    ALL_PROGRAMS_STEPS,
    INTERESTS,
    PROGRAM_STEPS,
    SHARDING_STEPS,
    Budget,
    Interest,
    Project,
)
from fsdp2lint.source.deferred import defined
from fsdp2lint.source.source import Source
from tests.check.test_budgets import HEAD

TIMED = """\
import functools
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def timed(name):
    def decorate(method):
        @functools.wraps(method)
        def inner(self, *args, **kwargs):
            with self.clock(name):
                return method(self, *args, **kwargs)

        return inner

    return decorate


class Job:
    def __init__(self):
        self.net = nn.Linear(8, 8)
        fully_shard(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    @timed("all")
    def run(self):
        for _ in range(10):
            self.one()

    @timed("one")
    def one(self):
        self.net(torch.ones(2, 8)).sum().backward()
        self.optimizer.step()


if __name__ == "__main__":
    Job().run()
"""


def followed(folder: Path, **files: str) -> dict[str, Program]:
    (folder / "pyproject.toml").write_text("")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    paths = [str(folder / f"{name}.py") for name in files]
    return {Path(one.file).stem: one for one in check(Batch.of_files(paths)).programs}


def test_a_wrapper_inside_of_another_is_no_recursion(tmp_path: Path) -> None:
    """Both methods run in the `inner` of one decorator: it is two functions."""
    (step,) = followed(tmp_path, job=TIMED)["job"].steps
    assert (step.line, step.linked) == (33, True)


def test_a_function_that_calls_itself_is_entered_once(tmp_path: Path) -> None:
    nested = TIMED.replace("self.one()\n", "self.run()\n            self.one()\n")
    (step,) = followed(tmp_path, job=nested)["job"].steps
    assert step.linked


HANDED = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def measured(call):
    return call()


def train():
    net = nn.Linear(8, 8)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters())
    measured(lambda: optimizer.step())


measured(lambda: train())
"""


def test_what_calls_one_function_inside_of_another_is_no_recursion(tmp_path: Path) -> None:
    (step,) = followed(tmp_path, job=HANDED)["job"].steps
    assert (step.line, step.linked) == (14, True)


IDLE = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def retried(function):
    def again(*args):
        return function(*args)

    return again


@retried
def look(name):
    return name.upper()


@retried
def step(optimizer):
    optimizer.step()


net = nn.Linear(8, 8)
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
name = input()
{asked}
step(optimizer)
"""


def test_what_a_wrapper_of_another_function_did_is_not_asked_of_this_one(tmp_path: Path) -> None:
    (step,) = followed(tmp_path, idle=IDLE.format(asked="look(name)\n" * 40))["idle"].steps
    assert step.linked


BUSY = "def busy():\n" + f"    x = {'a.b + ' * 60}a\n" * 30
LATE = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

{busy}

def shard(net):
    fully_shard(net)


def train(net, optimizer):
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()


def main():
    net = nn.Linear(8, 8)
    {first}
    busy()
    {then}
    train(net, torch.optim.AdamW(net.parameters()))


main()
"""


@pytest.mark.parametrize(("first", "then"), [("shard(net)", "pass"), ("pass", "shard(net)")])
def test_a_program_that_has_sharded_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str
) -> None:
    """The steps of one that has not come to it end where they always did."""
    steps = len("a.b + " * 60) * 30 // 5 // PROGRAM_STEPS
    monkeypatch.setattr(machine, "MAX_STEPS", steps)
    text = LATE.format(busy=BUSY, first=first, then=then)
    program = followed(tmp_path, late=text)["late"]
    assert any(one.linked for one in program.steps) is (first == "shard(net)")
    assert bool(program.lost) is (first == "pass")


def test_what_has_sharded_takes_no_more_than_is_left_for_programs() -> None:
    budget = Budget()
    worker = budget.ration(35_000)
    assert budget.for_sharding(worker, 35_000).steps == 35_000 * SHARDING_STEPS
    budget.spend(ALL_PROGRAMS_STEPS)
    assert budget.for_sharding(worker, 35_000).steps == worker.steps
    assert Budget().allows([worker])


@pytest.mark.parametrize("interest", INTERESTS)
def test_what_has_sharded_has_steps_that_others_do_not_take(interest: Interest) -> None:
    """Programs that never shard, however many, leave it to the workers that do."""
    budget = Budget()
    while budget.left[True, interest, False]:
        steps = budget.ration(35_000, program=True, interest=interest).steps
        budget.spend(steps or ALL_PROGRAMS_STEPS)
    worker = budget.ration(35_000, interest=interest)
    given = budget.for_sharding(worker, 35_000).steps
    untouched = Budget()
    alone = untouched.ration(35_000, interest=interest)
    assert given == untouched.for_sharding(alone, 35_000).steps > 35_000
    assert interest == "aside" or given == 35_000 * SHARDING_STEPS


def project(folder: Path, **files: str) -> Project:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Project.of([], [folder])


def names(sources: list[Source]) -> list[str]:
    return [Path(one.path).stem for one in sources]


def test_programs_that_lead_to_more_of_the_training_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of the folder says that it is one of tests
    steps = "def train(optimizer):\n    optimizer.step()\n"
    main = "import {}\noptimizer = None\nif __name__ == '__main__':\n    {}.train()\n"
    files = {"small": steps, "large": "import small\n" + steps, "other": steps}
    programs = {
        **{f"a{n}": main.format("small", "small") for n in range(3)},
        "b": main.format("large", "large"),
        "c": main.format("other", "other"),
    }
    known = project(tmp_path, **files, **programs)
    sources = [Source(f"{name}.py", text) for name, text in programs.items()]
    assert names([*in_order(known, sources)]) == ["b", "c", "a0", "a1", "a2"]
    assert names([*in_order(known, sources[:2])]) == ["a0", "a1"]


def test_what_no_run_has_reached_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base class trains otherwise than the class that overrides it: who runs it is no variant."""
    monkeypatch.chdir(tmp_path)
    step = "def {}(optimizer):\n    optimizer.step()\n"
    files = {
        "base": "".join(map(step.format, ("train", "warm", "cool"))),
        "derived": step.format("train") + step.format("finish"),
    }
    main = "import {}\noptimizer = None\nif __name__ == '__main__':\n    main()\n"
    programs = {
        "a": main.format("base, derived"),
        "b": main.format("derived"),
        "c": main.format("base"),
        "d": "optimizer = None\n",
    }
    known = project(tmp_path, **files, **programs)
    sources = [Source(f"{name}.py", text) for name, text in programs.items()]

    def order(ran: str) -> list[str]:
        reached = Reached()
        following = in_order(known, sources, reached)
        first = next(following)
        read = known.followed(str(tmp_path / f"{ran}.py"))
        assert read is not None
        reached.add([*defined(read.tree)])
        return names([first, *following])

    assert order("derived") == ["a", "c", "b", "d"]
    assert order("base") == ["a", "b", "c", "d"]


def test_files_that_shard_and_train_are_lived_first() -> None:
    texts = {
        "a.py": HEAD,
        "tests/b.py": HEAD + "optimizer = None\n",
        "worker.py": HEAD + dedent("class Worker:\n    optimizer = None\n"),
        "z.py": "optimizer = None\n",
    }
    sources = [Source(path, text) for path, text in texts.items()]
    assert names(sorted(sources, key=workers_first)) == ["worker", "a", "z", "b"]


CHOSEN = """\
import importlib
import sys


def recipe(name):
    for kind in ("zoo.plain", "zoo.trials"):
        try:
            module = importlib.import_module(f"{kind}.{name}.recipe")
            break
        except ImportError:
            continue
    return module


if __name__ == "__main__":
    optimizer = recipe(sys.argv[1]).train()
"""

SPREADS = """\
from torch import nn
from torch.distributed.fsdp import fully_shard


def train():
    model = nn.Linear(8, 8)
    fully_shard(model)
"""


def test_a_program_runs_again_with_other_modules_that_shard_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a registry names is the simplest module, then those that lead to sharding which nothing has reached."""
    files = {
        "train.py": CHOSEN,
        "zoo/plain/small/recipe.py": SPREADS,
        "zoo/plain/same/recipe.py": "from zoo.plain.small.recipe import train\n"
        + 40 * "# as it is\n",
        "zoo/plain/wide/recipe.py": SPREADS + "\n\nprint('wide')\n",
        "zoo/trials/odd/recipe.py": "from zoo.trials.odd.spread import train\n\n" + 40 * "# odd\n",
        "zoo/trials/odd/spread.py": SPREADS,
        "zoo/trials/odd/notes.py": SPREADS.replace("train", "note"),
    }
    monkeypatch.chdir(tmp_path)  # the path of the folder says that it is one of tests
    sources = [Source(name, text) for name, text in files.items()]
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    every = traces(Project.of(sources, [tmp_path]))
    runs = [t for t in every if t.source is sources[0] and t.entry == "__main__"]
    assert [{e.at.source.path for e in t.of(Sharded)} for t in runs] == [
        {"zoo/plain/small/recipe.py"},
        {"zoo/plain/wide/recipe.py"},
        {"zoo/trials/odd/spread.py"},
    ]
