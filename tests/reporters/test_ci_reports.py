"""What is written for GitLab and Jenkins, against what they say that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jsonschema
import pytest

from tests.config.test_config import LATE
from tests.support import notebooks
from tests.support.running import invoke

PATH = r"^(?!\.?/)(?!.*(^|/)\.\.(/|$))[^\\]+$"
LINE = {"type": "integer", "minimum": 1}
POSITION = {
    "type": "object",
    "required": ["line"],
    "additionalProperties": False,
    "properties": {"line": LINE, "column": LINE},
}
CODE_QUALITY = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "positions"],
                "additionalProperties": False,
                "properties": {
                    "path": {"type": "string", "pattern": PATH},
                    "positions": {
                        "type": "object",
                        "required": ["begin"],
                        "additionalProperties": False,
                        "properties": {"begin": POSITION, "end": POSITION},
                    },
                },
            },
        },
    },
}
"""https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format, in our words."""


class Element(NamedTuple):
    """What the schema of Jenkins' plugin xUnit has for an element: attributes and elements inside."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()


def element(required: str = "", optional: str = "", inside: str = "") -> Element:
    return Element(*(frozenset(words.split()) for words in (required, optional, inside)))


JUNIT = {
    "testsuites": element("", "name time tests failures errors", "testsuite"),
    "testsuite": element(
        "name tests failures errors",
        "group time skipped timestamp hostname id package file log url",
        "testcase properties system-out system-err",
    ),
    "testcase": element("name", "time classname group", "skipped error failure system-out"),
    "failure": element("", "type message"),
    "error": element("", "type message"),
    "system-out": element(),
}
"""The part of https://github.com/jenkinsci/xunit-plugin (``junit-10.xsd``) that a linter needs."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Findings of every kind: in Python, in a notebook, in a document, in what cannot be read."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "late.py").write_text(LATE)
    (tmp_path / "twice.py").write_text(LATE.replace("main():\n", "other():\n") + LATE)
    (tmp_path / "old.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    )
    (tmp_path / "broken.py").write_text("from torch.distributed.fsdp import fully_shard\nf(\n")
    (tmp_path / "unused.py").write_text(
        LATE + 'x = "<&>"  # fsdp2lint: ignore[FSDP203] -- \N{BELL}\n'
    )
    notebooks.written(tmp_path / "n.ipynb")
    (tmp_path / "guide.md").write_text(f"# Guide\n\n```python\n{LATE}```\n")
    return tmp_path


def written(tree: Path, format_: str, *paths: str) -> str:
    args = ("--extension", "md:markdown", "-f", f"{format_}=out", *paths)
    assert invoke("check", *args, cwd=tree).returncode == 1
    return (tree / "out").read_text()


@pytest.mark.parametrize("paths", [(), (".",), ("./pkg", "./twice.py"), ("{tree}",)])
def test_gitlab(tree: Path, monkeypatch: pytest.MonkeyPatch, paths: tuple[str, ...]) -> None:
    monkeypatch.setenv("CI_PROJECT_DIR", str(tree))
    issues = json.loads(written(tree, "gitlab", *(one.format(tree=tree) for one in paths)))
    jsonschema.Draft202012Validator.check_schema(CODE_QUALITY)
    jsonschema.validate(issues, CODE_QUALITY)
    marks = [one["fingerprint"] for one in issues]
    assert len(set(marks)) == len(marks) > 1
    for one in issues:
        text = (tree / one["location"]["path"]).read_text().splitlines()
        begin, end = (one["location"]["positions"][key]["line"] for key in ("begin", "end"))
        assert 1 <= begin <= end <= len(text)


def test_gitlab_of_nothing(tmp_path: Path) -> None:
    assert invoke("check", "-f", "gitlab", cwd=tmp_path).stdout == "[]\n"


def test_a_fingerprint_does_not_depend_on_the_line(tree: Path) -> None:
    before = {one["fingerprint"] for one in json.loads(written(tree, "gitlab", "pkg"))}
    (tree / "pkg" / "late.py").write_text("# more\n\n" + LATE)
    assert {one["fingerprint"] for one in json.loads(written(tree, "gitlab", "pkg"))} == before


def test_junit(tree: Path) -> None:
    suites = ElementTree.fromstring(written(tree, "junit"))
    assert suites.tag == "testsuites"
    complaints = list(refused(suites))
    assert complaints == []
    assert {suite.attrib["name"] for suite in suites} == {
        "broken.py", "guide.md", "n.ipynb", "old.py", "pkg/late.py", "twice.py", "unused.py"
    }  # fmt: skip
    for one in (suites, *suites):
        assert int(one.attrib["tests"]) == len(list(one.iter("testcase")))
        assert int(one.attrib["failures"]) == len(list(one.iter("failure")))
        assert int(one.attrib["errors"]) == len(list(one.iter("error")))
    for suite in suites:
        names = [case.attrib["name"] for case in suite]
        assert len(set(names)) == len(names)


def test_junit_of_nothing(tmp_path: Path) -> None:
    suites = ElementTree.fromstring(invoke("check", "-f", "junit", cwd=tmp_path).stdout)
    assert list(refused(suites)) == []
    assert len(list(suites.iter("testcase"))) == 1


def refused(node: ElementTree.Element) -> Any:
    """What the schema does not allow, here and below."""
    known = JUNIT[node.tag]
    attributes = frozenset(node.attrib)
    yield from (f"{node.tag} without {name}" for name in known.required - attributes)
    yield from (f"{node.tag} with {n}" for n in attributes - known.required - known.optional)
    for child in node:
        if child.tag in known.inside:
            yield from refused(child)
        else:
            yield f"{child.tag} in {node.tag}"


def test_two_findings_of_a_line_are_two_cases(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as F\na, b = F(c), F(d)\n"
    )
    shown = invoke("check", "-f", "junit", cwd=tmp_path).stdout
    names = [case.attrib["name"] for case in ElementTree.fromstring(shown).iter("testcase")]
    assert names == [
        "FSDP101 fsdp1-wrapper (line 2, column 8)",
        "FSDP101 fsdp1-wrapper (line 2, column 14)",
    ]


def test_github_finds_the_files_from_the_top(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the step runs in a folder of the repository; elsewhere paths are those of the run."""
    for top, path in ((tree, "pkg/late.py"), (tree / "other", "late.py")):
        monkeypatch.setenv("GITHUB_WORKSPACE", str(top))
        shown = invoke("check", "-f", "github", "-f", "sarif=out", cwd=tree / "pkg").stdout
        assert f",file={path},line=" in shown
        (run,) = json.loads((tree / "pkg" / "out").read_text())["runs"]
        place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place == {"uri": path, "uriBaseId": "%SRCROOT%"}
