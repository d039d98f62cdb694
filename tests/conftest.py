"""``pytest --bless`` rewrites expected outputs, to be read in the diff."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# how fast the machine is says nothing about the program
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# what the tool keeps of its user is that of the tests: no run looks at another's, nor into a home
_HOME = tempfile.TemporaryDirectory(prefix="fsdp2lint-home-")
os.environ["XDG_STATE_HOME"] = _HOME.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite expected outputs")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be rewritten."""
    return bool(request.config.getoption("--bless"))
