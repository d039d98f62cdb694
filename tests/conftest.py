"""What ``pytest`` runs: everything quick and a sample of what starts ranks, or what one asks for.

- ``pytest`` runs the tests that start no ranks, and a few that do.
- ``pytest -m ranks`` runs all that start ranks, ``pytest -m "ranks or not ranks"`` everything.
- ``pytest --rule direct-forward-call`` and ``--codemod no-sync`` run all that belongs to one of them.
- ``pytest --bless`` rewrites expected outputs, to be read in the diff.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib

import pytest
from hypothesis import HealthCheck, settings

from fsdp2lint.catalogue import knowledge

# how fast the machine is says nothing about the program
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# what the tool keeps of its user is that of the tests: no run looks at another's, nor into a home
_HOME = tempfile.TemporaryDirectory(prefix="fsdp2lint-home-")
os.environ["XDG_STATE_HOME"] = _HOME.name

SHORT = ("tests/rules/", "tests/verify/test_contract.py")
"""Where a test that starts ranks takes a second or two; whole projects and trials take up to minutes."""
ONE_OF = 40
"""Of so many short tests that start ranks, a plain ``pytest`` runs one."""

SUBJECT = re.compile(r"\[(?:rules/)?([a-z0-9_-]+)[]/]")
"""A folder of fixtures, or the name of a rule or codemod, at the head of the parameters of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite expected outputs")
    parser.addoption("--rule", help="run all tests of one rule, by its name or code")
    parser.addoption("--codemod", help="run all tests of one codemod")
    parser.addoption("--sample-ranks", action="store_true", help="run few tests that start ranks")


def pytest_configure(config: pytest.Config) -> None:
    """A plain ``pytest``, without a path or a choice, runs a sample of the tests that start ranks."""
    chosen = config.option.markexpr or config.option.keyword
    if config.args_source is not pytest.Config.ArgsSource.ARGS and not chosen and not _name(config):
        config.option.sample_ranks = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the options leave out."""
    words = _name(config)
    if words:
        _keep(config, items, [i for i in items if _mentions(i.nodeid, words)])
    if config.option.sample_ranks:
        _keep(config, items, [i for i in items if not i.get_closest_marker("ranks") or _lot(i)])
    known = {rule.name for rule in knowledge.rules()} | {one.name for one in knowledge.codemods()}
    items.sort(key=lambda item: _subject(item, known))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def _subject(item: pytest.Item, known: set[str]) -> str:
    """The rule or codemod that a test is of: what one of its tests made is there for the next, in one worker."""
    found = SUBJECT.search(item.nodeid)
    name = found[1].replace("_", "-") if found else ""
    is_apart = item.get_closest_marker("ranks")  # what starts ranks is set up once for a module
    return name if name in known and not is_apart else ""


def _lot(item: pytest.Item) -> bool:
    """The same tests on each machine and in each process."""
    return item.nodeid.startswith(SHORT) and zlib.crc32(item.nodeid.encode()) % ONE_OF == 0


def _name(config: pytest.Config) -> tuple[str, ...]:
    """How the ids of tests spell the rule or codemod that was asked for."""
    if config.option.rule:
        asked = config.option.rule.lower().replace("_", "-")
        for rule in knowledge.rules():
            if asked in (rule.name, rule.code.lower()):
                return rule.name, rule.code
        raise pytest.UsageError(f"no rule {config.option.rule!r}")
    if config.option.codemod:
        asked = config.option.codemod.lower().replace("_", "-")
        for codemod in knowledge.codemods():
            if asked == codemod.name:
                return (codemod.name,)
        raise pytest.UsageError(f"no codemod {config.option.codemod!r}")
    return ()


def _mentions(nodeid: str, words: tuple[str, ...]) -> bool:
    spelt = nodeid.replace("_", "-")
    return any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", spelt) for word in words)


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be rewritten."""
    return bool(request.config.getoption("--bless"))
