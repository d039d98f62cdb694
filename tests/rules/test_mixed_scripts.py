"""Scripts that mix PyTorch's own calls with those of a framework: what is wrong is found, and nothing else.

``fixtures/mixed/<framework>/`` holds them; their comments are those of the rules' fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.test_rules import Case, marked, named

ROOT = Path(__file__).parents[2] / "fixtures" / "mixed"


def cases() -> Iterator[Case]:
    """The scripts, and the folders of files that belong together."""
    for one in sorted(ROOT.glob("*/*")):
        files = (one,) if one.suffix == ".py" else tuple(sorted(one.rglob("*.py")))
        if files:
            yield Case(one.relative_to(ROOT).with_suffix("").as_posix(), files)


CASES = tuple(cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_shows_what_it_says(case: Case) -> None:
    sources, said = case.seen()
    assert named(said) == marked(sources, "expect")


@pytest.mark.parametrize("framework", sorted(p.name for p in ROOT.iterdir() if p.is_dir()))
def test_each_framework_has_bad_and_good_scripts(framework: str) -> None:
    own = [case for case in CASES if case.name.startswith(f"{framework}/")]
    bad = [case for case in own if marked(case.seen()[0], "expect")]
    assert bad
    assert len(bad) < len(own)
    assert all("/bad_" in case.name for case in bad)
