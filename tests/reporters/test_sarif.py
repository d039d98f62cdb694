"""SARIF, for code scanning services."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fsdp2lint.catalogue.toolrules import UNANALYSABLE
from fsdp2lint.check.diagnostics import Diagnostic
from fsdp2lint.reporters import View, render
from fsdp2lint.source.source import Source
from tests.support.saying import SCALER, place, report, said, two_files


def sarif() -> Any:
    silent = said(Source("x.py", "bad\n"), "bad")
    broken = Diagnostic(UNANALYSABLE, "syntax error", place(Source("y.py", "f(\n"), "f("))
    full = report(two_files(), broken)
    full.suppressed = [(silent, "frozen teacher"), (replace(silent, rule=SCALER), "")]
    return json.loads(render("sarif", full, View()))


def test_sarif_is_valid() -> None:
    """Against the parts of SARIF 2.1.0 that we use, with every object closed to other properties."""
    schema = json.loads((Path(__file__).parent / "sarif_subset.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(sarif(), schema)


def test_the_schema_of_oasis_agrees() -> None:
    """The whole schema is 110 kB of OASIS's own: ``SARIF_SCHEMA`` says where a copy is.

    https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json
    """
    file = os.environ.get("SARIF_SCHEMA")
    if not file:
        pytest.skip("SARIF_SCHEMA is not set")
    schema = json.loads(Path(file).read_text("utf-8"))
    jsonschema.Draft4Validator.check_schema(schema)
    jsonschema.Draft4Validator(schema).validate(sarif())


def test_the_validator_of_microsoft_agrees(tmp_path: Path) -> None:
    """Sarif.Multitool holds the OASIS schema and rules beyond it; ``SARIF_MULTITOOL`` says where it is.

    https://github.com/microsoft/sarif-sdk, also npm's ``@microsoft/sarif-multitool``.
    """
    tool = os.environ.get("SARIF_MULTITOOL")
    if not tool:
        pytest.skip("SARIF_MULTITOOL is not set")
    (tmp_path / "x.sarif").write_text(json.dumps(sarif()))
    done = subprocess.run(
        [tool, "validate", "x.sarif", "--output", "out.sarif"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"},
        check=False,
        timeout=600,
    )
    assert "Analysis completed successfully" in done.stdout, done.stdout
    assert "error" not in done.stdout, done.stdout


def test_sarif_tells_the_story() -> None:
    (run,) = sarif()["runs"]
    first, silent, bare = run["results"]
    rule = run["tool"]["driver"]["rules"][first["ruleIndex"]]
    assert (rule["id"], rule["name"]) == ("FSDP201", "optimizer-before-shard")
    assert rule["fullDescription"]["text"] == "It breaks."
    flow = first["codeFlows"][0]["threadFlows"][0]["locations"]
    spots = [step["location"]["physicalLocation"] for step in flow]
    assert [(s["artifactLocation"]["uri"], s["region"]["startLine"]) for s in spots] == [
        ("train.py", 7),
        ("train.py", 8),
        ("parallel.py", 5),
    ]
    assert first["fixes"][0]["artifactChanges"][0]["artifactLocation"]["uri"] == "train.py"
    assert silent["suppressions"] == [
        {"kind": "inSource", "status": "accepted", "justification": "frozen teacher"}
    ]
    assert bare["suppressions"] == [{"kind": "inSource", "status": "accepted"}]
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notice["descriptor"]["id"] == "FSDP900"


def test_sarif_paths(tmp_path: Path) -> None:
    outside = said(Source(str(tmp_path / "a b.py"), "bad\n"), "bad")
    inside = said(Source("./pkg/naïve.py", "bad\n"), "bad")
    log = json.loads(render("sarif", report(outside, inside), View()))
    artifacts = [
        r["locations"][0]["physicalLocation"]["artifactLocation"] for r in log["runs"][0]["results"]
    ]
    assert artifacts[0]["uri"].startswith("file:///")
    assert artifacts[0]["uri"].endswith("/a%20b.py")
    assert artifacts[1] == {"uri": "pkg/na%C3%AFve.py", "uriBaseId": "%SRCROOT%"}
