"""A plain ``pytest`` stays quick, and each choice runs what it names."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.running import ROOT

FILES = "tests/rules/test_rules.py tests/rules/test_evidence.py"


def collected(*words: str) -> set[str]:
    """The ids of the tests that ``pytest`` would run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^tests/\S.*$", done.stdout, re.MULTILINE))


def test_a_plain_run_takes_a_sample_of_the_ranks() -> None:
    plain = collected("-o", f"testpaths={FILES}")  # no path was asked for, as in a plain run
    evidence = [one for one in plain if "test_a_fixture_shows_what_it_claims" in one]
    assert 5 < len(evidence) < 100
    assert sum(one.startswith("tests/rules/test_rules.py") for one in plain) > 3000


def test_all_that_belongs_to_a_rule() -> None:
    files = (
        "tests/rules/test_evidence.py",
        "tests/rules/test_rules.py",
        "tests/rules/test_pages.py",
    )
    found = collected("--rule", "FSDP203", *files)
    assert {one.partition("::")[0] for one in found} == set(files)
    pages = {one for one in found if one.startswith(files[2])}
    assert pages == collected("--rule", "direct_forward_call", files[2])
    assert all(re.search("direct.forward.call|FSDP203", one) for one in found)


def test_all_that_belongs_to_a_codemod() -> None:
    found = collected("--codemod", "no-sync", "tests/codemods/test_codemods.py")
    assert found
    assert all(re.search("no.sync", one) for one in found)
