"""What has run often and did nothing is not run again: what it would have called is left out, what it gives is not."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.interpret.machine import IDLE_RUNS
from fsdp2lint.interpret.machine.calls import FORWARD_RUNS
from fsdp2lint.model.events import Called, Sharded, Stepped
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import Optimizer
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
"""
OFTEN = 2 * IDLE_RUNS


def traced(text: str) -> Trace:
    first, *_ = traces(Project.of([Source("train.py", HEAD + dedent(text))]))
    return first


def times(trace: Trace, name: str) -> int:
    return sum(called.name.endswith(name) for called in trace.of(Called))


FILLING = """
def fill(row):
    made = {"ids": torch.tensor(row["ids"])}
    if len(made["ids"]) < 8:
        made["ids"] = nn.functional.pad(made["ids"], (0, 8))
    words = 0
    for word in row["words"]:
        words += 1
    return made

def keep(row):
    kept["last"] = torch.tensor(row["ids"])
    return {"ids": row}

kept = {}
rows = input()
"""


def test_a_function_that_fills_its_own_dictionary_does_nothing() -> None:
    trace = traced(FILLING + "fill(rows.pop())\n" * OFTEN)
    assert times(trace, "pad") == IDLE_RUNS


def test_what_it_gives_has_the_same_keys() -> None:
    last = "if 'ids' in fill(rows.pop()):\n    fully_shard(nn.Linear(8, 8))\n"
    trace = traced(FILLING + "fill(rows.pop())\n" * OFTEN + last)
    (sharded,) = trace.of(Sharded)
    assert not sharded.moment.guards.clauses


def test_one_that_stores_in_what_was_there_runs_each_time() -> None:
    assert times(traced(FILLING + "keep(rows.pop())\n" * OFTEN), ".tensor") == OFTEN


MADE_OF_A_MODEL = """
def grouped(model, rate):
    return [{"params": model.parameters(), "lr": rate}]

model = nn.Linear(8, 8)
fully_shard(model)
"""


def test_groups_of_parameters_are_no_data() -> None:
    step = "torch.optim.SGD(grouped(model, 1)).step()\n"
    trace = traced(MADE_OF_A_MODEL + step * OFTEN)
    optimizers = [stepped.optimizer for stepped in trace.of(Stepped)]
    assert all(isinstance(one, Optimizer) and one.over for one in optimizers)


@pytest.mark.parametrize(("calls", "runs"), [(FORWARD_RUNS - 1, 5), (OFTEN, FORWARD_RUNS)])
def test_a_model_computes_the_same_wherever_it_is_called_from(calls: int, runs: int) -> None:
    model = """
    class Net(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    net = Net()

    def logits(x):
        return net(x)

    """
    trace = traced(dedent(model) + "logits(torch.ones(2))\n" * calls)
    assert times(trace, "tanh") == runs


def test_a_function_that_computes_with_the_number_of_ranks_does_nothing() -> None:
    """Operators, tensors changed in place and entries of them stand at their places: they were seen there."""
    text = """
    import torch.distributed as dist

    def padded(row):
        row += dist.get_world_size() - len(row) % dist.get_world_size()
        row[0] = torch.tanh(row)
        return row

    rows = input()
    """
    assert times(traced(dedent(text) + "padded(rows.pop())\n" * OFTEN), "tanh") == IDLE_RUNS


CHOOSING = """
def device(kind):
    torch.manual_seed(0)
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"

def library(kind):
    torch.manual_seed(0)
    return torch.cuda if kind == "gpu" else torch.cpu
"""


@pytest.mark.parametrize("call", ["device('gpu')", "library('gpu')"])
def test_what_gives_constants_for_constants_gives_them_again(call: str) -> None:
    text = dedent(CHOOSING) + f"print({call})\n" * OFTEN
    trace = traced(text + "fully_shard(nn.Linear(8, 8).to(library('other')))\n")
    assert times(trace, "manual_seed") in (IDLE_RUNS, IDLE_RUNS + 1)
    given = [called.arguments[0] for called in trace.of(Called) if called.name == "builtins.print"]
    assert len({tuple(one.words() for one in options(value)) for value in given}) == 1


def test_a_flag_is_asked_each_time() -> None:
    text = """
    ready = False

    def is_ready():
        torch.manual_seed(0)
        return ready

    """
    calls = "print(is_ready())\n" * OFTEN
    last = "ready = True\nif is_ready():\n    fully_shard(nn.Linear(8, 8))\n"
    assert traced(dedent(text) + calls + last).of(Sharded)


NO_MODEL = """
def report(row):
    print(torch.tensor(row["ids"]))

def sizes(model):
    return [one.numel() for one in model.parameters()]

teacher = None
if input():
    {used}
"""


@pytest.mark.parametrize("used", ["sizes(teacher)", "teacher.eval()", "teacher.state_dict()"])
def test_none_is_no_model_where_one_may_stand(used: str) -> None:
    """What gives nothing gives no model then."""
    trace = traced(NO_MODEL.format(used=used) + "report(input())\n" * OFTEN)
    assert times(trace, ".tensor") == IDLE_RUNS


STORED = """
import requests

def size_of(address):
    torch.manual_seed(0)
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=50))
    return session.head(address).headers["Content-Length"]

"""


def test_what_is_handed_to_a_library_is_no_deed_where_it_is_of_a_library() -> None:
    trace = traced(dedent(STORED) + "size_of(input())\n" * OFTEN)
    assert times(trace, "manual_seed") == IDLE_RUNS
