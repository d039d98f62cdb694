"""What has run often and did nothing is not run again: what it would have called is left out, what it gives is not."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.interpret.instances import MADE_BEFORE, MADE_OFTEN
from fsdp2lint.interpret.machine import IDLE_RUNS
from fsdp2lint.interpret.machine.calls import FORWARD_RUNS
from fsdp2lint.model.events import Called, Collective, Sharded, Stepped
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import Optimizer, rank_dependent
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


LONG = (
    """
def render(messages):
    torch.manual_seed(0)
    text = ""
    for message in messages:
"""
    + "        text += f\"{message['role']} {message['text']}\"\n" * 40
    + """
    return text

rows = input()
"""
)


def test_a_long_function_that_does_nothing_is_run_less_often() -> None:
    """A run of many expressions counts as several."""
    trace = traced(LONG + "render(rows.pop())\n" * OFTEN)
    assert 0 < times(trace, "manual_seed") < IDLE_RUNS / 4


def test_one_of_several_constants_may_be_in_what_it_is_given() -> None:
    text = """
    def render(messages):
        torch.manual_seed(0)
        return messages[0]["role"] + messages[0]["text"]

    rows = input()
    role = "user" if rows else "system"
    """
    call = "render([{'role': role, 'text': rows.pop()}])\n"
    assert times(traced(dedent(text) + call * OFTEN), "manual_seed") == IDLE_RUNS


def test_what_is_of_an_object_of_a_library_is_no_deed_where_that_is_none() -> None:
    text = """
    import argparse

    def cut(row):
        torch.manual_seed(0)
        return tokenizer(row, settings.max_length)

    settings = argparse.Namespace(**input())
    tokenizer = input()
    """
    trace = traced(dedent(text) + "cut(input())\n" * OFTEN)
    assert times(trace, "manual_seed") == IDLE_RUNS


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


STATE = """
import os
import torch.distributed as dist

class State:
    def __init__(self, kind="fsdp"):
        torch.manual_seed(0)
        self.kind = kind
        self.models = []
        if os.environ.get("FAST"):
            self.fast = True
        dist.barrier()

"""
MADE = 2 * MADE_OFTEN


def test_an_object_of_data_is_made_a_few_times() -> None:
    last = "if State().kind == 'fsdp':\n    fully_shard(nn.Linear(8, 8))\n"
    trace = traced(dedent(STATE) + "State()\n" * MADE + last)
    assert times(trace, "manual_seed") == MADE_BEFORE
    (sharded,) = trace.of(Sharded)
    assert not sharded.moment.guards.clauses
    other = "if State('ddp').kind == 'fsdp':\n    fully_shard(nn.Linear(8, 8))\n"
    assert not traced(dedent(STATE) + "State()\n" * MADE + other).of(Sharded)


def test_under_other_conditions_nothing_is_certain_of_it() -> None:
    """What one was that was made where a setting was on says nothing of one that is made where it was off."""
    many = "".join(f"if input() == '{n}':\n    State()\n" for n in range(MADE))
    last = (
        "if os.environ.get('FAST'):\n    pass\n"
        "elif State().kind == 'fsdp':\n    fully_shard(nn.Linear(8, 8))\n"
    )
    trace = traced(dedent(STATE) + many + last)
    assert times(trace, "manual_seed") == MADE_OFTEN
    (sharded,) = trace.of(Sharded)
    assert len(sharded.moment.guards.clauses) == 2


def test_what_is_set_on_one_later_is_not_there_on_another() -> None:
    text = "first = State()\nfirst.kind = 'ddp'\n" + "State()\n" * MADE + "first.kind = 'ddp'\n"
    last = "if State().kind == 'ddp':\n    fully_shard(nn.Linear(8, 8))\n"
    assert not traced(dedent(STATE) + text + last).of(Sharded)


def test_each_object_has_lists_of_its_own() -> None:
    ends = "one, other = State(), State()\none.models.append(nn.Linear(8, 8))\n"
    last = "for model in other.models:\n    fully_shard(model)\n"
    assert not traced(dedent(STATE) + "State()\n" * MADE + ends + last).of(Sharded)


def test_who_waits_for_others_under_a_test_of_the_rank_is_seen() -> None:
    trace = traced(dedent(STATE) + "State()\n" * MADE + "if dist.get_rank() == 0:\n    State()\n")
    *_, last = trace.of(Collective)
    assert any(rank_dependent(guard.test) for guard in last.guards)


@pytest.mark.parametrize(
    "holds",
    [
        "nn.Linear(8, 8)",
        "Other()",
        "torch.optim.AdamW(model.parameters())",
        "fully_shard(model)",
    ],
)
def test_what_holds_more_than_data_is_made_each_time(holds: str) -> None:
    text = f"""
    class Other: ...

    class Holder:
        def __init__(self):
            torch.manual_seed(0)
            self.held = {holds}

    model = nn.Linear(8, 8)
    """
    assert times(traced(dedent(text) + "Holder()\n" * MADE), "manual_seed") == MADE
