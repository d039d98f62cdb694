"""Functions are replaced wherever modules hold them, remembered or not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from fsdp2lint.rehearse import holders


def first() -> str:
    return "first"


def other() -> str:
    return "other"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    def make(name: str, **held: object) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(held)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


@pytest.fixture(params=["remembered", "walked", "looked ahead"])
def looked_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(holders, "_first", [])
    if request.param == "looked ahead":
        holders.look_ahead()
    with contextlib.nullcontext() if request.param == "walked" else holders.remembering():
        yield


def ours(title: str) -> bool:
    return title.startswith("held_")


Make = Callable[..., ModuleType]


@pytest.mark.usefixtures("looked_up")
def test_every_name_in_the_modules_that_are_meant(module: Make) -> None:
    one = module("held_one", first=first, alias=first, other=other)
    two = module("elsewhere", first=first)
    holders.replace(first, other, ours)
    assert (one.first, one.alias, one.other, two.first) == (other, other, other, first)


@pytest.mark.usefixtures("looked_up")
def test_a_replacement_is_replaced(module: Make) -> None:
    def second() -> str:
        return "second"

    one, two = module("held_one", first=first), module("held_two", alias=first)
    holders.replace(first, second, ours)
    holders.replace(second, other, ours)
    assert (one.first, two.alias) == (other, other)


@pytest.mark.usefixtures("looked_up")
def test_modules_and_names_that_came_later(module: Make) -> None:
    one = module("held_one", first=first)
    holders.replace(other, other, ours)
    vars(one)["late"] = first
    two = module("held_two", first=first)
    holders.replace(first, other, ours)
    assert (one.first, one.late, two.first) == (other, other, other)


@pytest.mark.usefixtures("looked_up")
def test_what_was_replaced_under_one_name_is_found_there(module: Make) -> None:
    def wrapped() -> str:
        return "wrapped"

    one, two = module("held_one", first=first), module("held_two", first=first)
    holders.replace(other, other, ours)
    vars(one)["first"] = wrapped
    holders.replace(wrapped, other, ours)
    holders.replace(first, wrapped, ours)
    assert (one.first, two.first) == (other, wrapped)


@pytest.mark.usefixtures("looked_up")
def test_what_is_no_plain_function_is_found_too(module: Make) -> None:
    one = module("held_one", length=len)
    holders.replace(len, other, ours)
    assert one.length is other
