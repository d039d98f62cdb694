"""Options of the command line that take only some values: what they refuse, no run has."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Called
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

SCRIPT = """
import argparse
import json

parser = argparse.ArgumentParser()
{option}
args = parser.parse_args()
{between}

def is_ddp():
    return args.engine == "ddp"

if args.engine != "fsdp" and not is_ddp():
    print("neither")
"""

TWO = 'parser.add_argument("--engine", choices=["ddp", "fsdp"], default="fsdp")'


def reaches(option: str, between: str = "", script: str = SCRIPT) -> bool:
    """Whether some run prints ``neither``."""
    text = script.format(option=dedent(option), between=dedent(between))
    return any(
        event.name == "builtins.print" and event.moment.guards.possible()
        for trace in traces(Project.of([Source("train.py", text)]))
        for event in trace.events
        if isinstance(event, Called)
    )


@pytest.mark.parametrize(
    "option",
    [
        TWO,
        'parser.add_argument("engine", choices=("ddp", "fsdp"))',
        'parser.add_argument("-e", "--engine", choices={"ddp", "fsdp"}, required=True)',
        'parser.add_argument("--dist", dest="engine", choices=["ddp", "fsdp"], default="ddp")',
        'parser.add_argument("--engine", type=str, choices=["fsdp"], default="ddp")',
        'group = parser.add_argument_group("run")\ngroup.add_argument("engine", choices=["ddp", "fsdp"])',
        """
        ENGINES = ["ddp", "fsdp"]

        def add(to):
            to.add_argument("--engine", choices=ENGINES, default=ENGINES[0])

        add(parser)
        """,
    ],
)
def test_what_is_refused_has_no_run(option: str) -> None:
    assert not reaches(option)


@pytest.mark.parametrize(
    "option",
    [
        'parser.add_argument("--engine", default="fsdp")',
        'parser.add_argument("--engine", choices=["ddp", "fsdp", "none"], default="fsdp")',
        'parser.add_argument("--engine", choices=["ddp", "fsdp"])',  # None when it is left out
        'parser.add_argument("--engine", choices=["ddp", "fsdp"], default="none")',
        'parser.add_argument("--engine", type=kind, choices=["ddp", "fsdp"], default="f")',
        'parser.add_argument("--engine", nargs="*", choices=["ddp", "fsdp"], default="ddp")',
        'parser.add_argument("--engine", choices=[*json.load(open("engines")), "ddp"], default="ddp")',
        f'{TWO}\nparser.set_defaults(engine="none")',
        f'{TWO}\nparser.set_defaults(**json.load(open("defaults")))',
        f'{TWO}\nparser.add_subparsers().add_parser("x").add_argument("--engine")',
        f'{TWO}\nparser.add_argument(*json.load(open("option")))',
    ],
)
def test_what_an_option_may_be_has_a_run(option: str) -> None:
    assert reaches(option)


@pytest.mark.parametrize(
    "between",
    [
        'vars(args).update(json.load(open("settings")))',
        'args.__dict__.update(json.load(open("settings")))',
        'for key, value in json.load(open("settings")).items():\n    setattr(args, key, value)',
        'args.engine = json.load(open("settings"))',
    ],
)
def test_what_is_set_later_is_no_option(between: str) -> None:
    assert reaches(TWO, between)


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ('args.engine not in ("ddp", "fsdp")', False),
        ('args.engine not in ("ddp", "deepspeed")', True),
        ("not args.engine", False),
        ("args.engine is None", False),
        ('"ddp" not in args.engine', True),
        ('"d" not in args.engine', False),
        ('args.engine == "deepspeed"', False),
        ('not args.engine.startswith("f")', True),
    ],
)
def test_each_way_to_ask(test: str, reached: bool) -> None:
    asked = SCRIPT.replace('args.engine != "fsdp" and not is_ddp()', test)
    assert reaches(TWO, script=asked) is reached


def test_of_known_options_too() -> None:
    known = SCRIPT.replace("args = parser.parse_args()", "args, rest = parser.parse_known_args()")
    assert not reaches(TWO, script=known)


def test_a_namespace_of_the_script_is_what_it_made_it() -> None:
    own = SCRIPT.replace("parse_args()", "parse_args(namespace=argparse.Namespace(engine=None))")
    assert reaches(TWO, script=own)
