"""Tests under mocks are no runs: what they reach is not reported."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

LIBRARY = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(model, policy: MixedPrecisionPolicy | None = None):
    return fully_shard(model, mp_policy=policy)
"""
TEST = """
import {imported}
import pytest
from library import shard
from torch import nn

"""

MOCKED = {
    "a parameter": (
        "library",
        """
        def test_shard(monkeypatch):
            monkeypatch.setattr("library.fully_shard", lambda model, **options: model)
            shard(nn.Linear(8, 8))
        """,
    ),
    "a decorator": (
        "unittest.mock as mock",
        """
        @mock.patch("library.fully_shard")
        def test_shard(fully_shard):
            shard(nn.Linear(8, 8))
        """,
    ),
    "a context": (
        "unittest.mock",
        """
        def test_shard():
            with unittest.mock.patch.object(library, "fully_shard"):
                shard(nn.Linear(8, 8))
        """,
    ),
    "a decorator of the class": (
        "unittest.mock as mock",
        """
        @mock.patch("library.fully_shard")
        class TestShard:
            def test_shard(self, fully_shard):
                shard(nn.Linear(8, 8))
        """,
    ),
    "before each test": (
        "unittest.mock as mock",
        """
        class TestShard:
            def setUp(self):
                mock.patch("library.fully_shard").start()

            def test_shard(self):
                shard(nn.Linear(8, 8))
        """,
    ),
    "a fixture": (
        "library",
        """
        @pytest.fixture
        def recorded(monkeypatch):
            monkeypatch.setattr(library, "fully_shard", print)

        def test_shard(recorded):
            shard(nn.Linear(8, 8))
        """,
    ),
    "a fixture of all tests": (
        "library",
        """
        @pytest.fixture(autouse=True)
        def recorded(monkeypatch):
            monkeypatch.setattr(library, "fully_shard", print)

        def test_shard():
            shard(nn.Linear(8, 8))
        """,
    ),
}


@pytest.mark.parametrize("how", MOCKED)
def test_nothing_is_reported_of_what_a_mock_may_replace(how: str) -> None:
    imported, text = MOCKED[how]
    assert reported(TEST.format(imported=imported) + dedent(text)) == set()


RUNS = {
    "a test beside one with mocks": MOCKED["a parameter"][1]
    + """
        def test_real():
            shard(nn.Linear(8, 8))
        """,
    "another constant": """
        @unittest.mock.patch("library.device", "cpu")
        def test_shard():
            shard(nn.Linear(8, 8))
        """,
    "another environment": """
        def test_shard(monkeypatch):
            monkeypatch.setenv("WORLD_SIZE", "2")
            with unittest.mock.patch.dict(os.environ, RANK="0"):
                shard(nn.Linear(8, 8))
        """,
}


@pytest.mark.parametrize("how", RUNS)
def test_what_a_test_really_calls_is_reported(how: str) -> None:
    assert reported(TEST.format(imported="unittest.mock, os") + dedent(RUNS[how])) == {"FSDP241"}


def reported(test: str) -> set[str]:
    sources = [Source("library.py", LIBRARY), Source("test_library.py", test)]
    return {rule.code for rule, _ in findings(sources) if rule.group == "correctness"}
