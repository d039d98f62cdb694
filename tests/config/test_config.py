"""The configuration file: where it is found, what may stand in it, what it does."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click import Option

from fsdp2lint import __version__
from fsdp2lint.cli.check import command
from fsdp2lint.config import toml
from fsdp2lint.config.files import Configs, load
from fsdp2lint.config.options import described, schema
from fsdp2lint.config.resolve import settings
from tests.support.running import CLEAN, invoke, misconfigured

OLD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(4, 4))
"""

LATE = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(4)).sum().backward()
    optimizer.step()


main()
"""
"""An optimizer that is built before its model is sharded: FSDP201."""


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def found(folder: Path, *args: str, **environment: str) -> list[str]:
    """The codes that ``check`` reports, each with its file."""
    shown = invoke("check", "-f", "json", *args, cwd=folder, **environment)
    assert shown.returncode in (0, 1), shown.stderr
    return [f"{one['filename']}:{one['code']}" for one in json.loads(shown.stdout)]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (".fsdp2lint.toml", ""),
        ("fsdp2lint.toml", ""),
        ("pyproject.toml", "[project]\nname = 'x'\n[tool.fsdp2lint]\n"),
    ],
)
def test_the_three_files(tmp_path: Path, name: str, head: str) -> None:
    (tmp_path / "x.py").write_text(LATE)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "y.py").write_text(LATE)
    assert len(found(tmp_path)) == 2
    (tmp_path / name).write_text(f"{head}ignore = ['FSDP201']\n")
    assert found(tmp_path) == []
    assert len(found(tmp_path, "--isolated")) == 2
    assert found(tmp_path / "pkg", "y.py") == []


def test_the_nearest_file_alone_counts(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "y.py").write_text(LATE)
    write(tmp_path, fsdp2lint__toml="ignore = ['FSDP201']\n")
    write(tmp_path / "sub", fsdp2lint__toml="extend-exclude = ['z.py']\n")
    (tmp_path / "sub" / "z.py").write_text(LATE)
    assert found(tmp_path) == ["sub/y.py:FSDP201"]
    (tmp_path / "sub" / "fsdp2lint.toml").write_text("extend = '../fsdp2lint.toml'\n")
    assert found(tmp_path) == []


def test_inside_one_folder_the_own_file_comes_first(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml="[tool.fsdp2lint]\nselect = ['FSDP3']\n")
    write(tmp_path, fsdp2lint__toml="select = ['FSDP2']\n")
    assert Configs().of(str(tmp_path)).given["select"] == ["FSDP2"]
    (tmp_path / ".fsdp2lint.toml").write_text("select = ['FSDP1']\n")
    assert Configs().of(str(tmp_path)).given["select"] == ["FSDP1"]


def test_a_pyproject_of_something_else_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, fsdp2lint__toml="select = ['FSDP2']\n")
    write(tmp_path / "sub", pyproject__toml="[project]\nname = 'about-fsdp2lint'\n")
    assert Configs().of(str(tmp_path / "sub")).given["select"] == ["FSDP2"]


@pytest.mark.parametrize("text", ["tool = 3\n", "[[tool]]\na = 1\n"])
def test_a_pyproject_without_tools(tmp_path: Path, text: str) -> None:
    write(tmp_path, pyproject__toml=f"# fsdp2lint\n{text}", x__py=LATE)
    assert found(tmp_path) == ["x.py:FSDP201"]


def test_extend(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "lint.toml").write_text(
        "select = ['FSDP2']\nextend-ignore = ['FSDP203']\nextend-exclude = ['gen/*.py', 'out']\n"
        "[per-file-ignores]\n'tests/*' = ['FSDP3']\n"
    )
    write(
        tmp_path,
        fsdp2lint__toml="extend = 'base/lint.toml'\nselect = ['FSDP3']\nextend-ignore = ['FSDP301']\n",
    )
    given = load(str(tmp_path / "fsdp2lint.toml")).given
    assert given["select"] == ["FSDP3"]
    assert given["extend-ignore"] == ["FSDP203", "FSDP301"]
    assert given["extend-exclude"] == [str(tmp_path / "base" / "gen" / "*.py"), "out"]
    assert list(given["per-file-ignores"]) == [str(tmp_path / "base" / "tests" / "*")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selct = ['x']\n", "fsdp2lint.toml:1: unknown key `selct`, did you mean `select`?"),
        ("\ntarget_torch = '2.8'\n", "fsdp2lint.toml:2: unknown key `target_torch`, did you mean"),
        ("[knowledge]\nshard = ['a.b']\n", "fsdp2lint.toml:2: unknown key `knowledge.shard`, did"),
        ("select = 'FSDP2'\n", "fsdp2lint.toml:1: `select`: expected `array"),
        ("fix = 1\n", "fsdp2lint.toml:1: `fix`: expected `bool"),
        ("min-severity = 'bad'\n", "fsdp2lint.toml:1: `min-severity`: invalid enum value 'bad'"),
        ("x = [\n\n1 = 2\n", "fsdp2lint.toml:"),
        (
            "select = [\n  'FSDP2O3',\n]\n",
            "fsdp2lint.toml:1: `select`: unknown rule `FSDP2O3`, did",
        ),
        (
            "[per-file-ignores]\n'a' = ['FSDP777']\n",
            "fsdp2lint.toml:1: `per-file-ignores`: unknown",
        ),
        (
            "target-torch = 'new'\n",
            "fsdp2lint.toml:1: `target-torch`: `new` is not a torch version",
        ),
        (
            "target-torch = '1.13'\n",
            "fsdp2lint.toml:1: `target-torch`: `1.13` is older than 2.6, the first torch with",
        ),
        (
            "[per-file-ignores]\n'a' = ['FSDP2']\n'b*.py' = 'FSDP2'\n",
            'fsdp2lint.toml:3: `per-file-ignores."b*.py"`: expected `array`',
        ),
        (
            "extension = { md = 'markdown', rst = 'text' }\n",
            "fsdp2lint.toml:1: `extension.\"rst\"`: invalid enum value 'text'",
        ),
        ("extend = 'gone.toml'\n", "fsdp2lint.toml:1: `extend`: gone.toml: No such file"),
        ("extend = 'fsdp2lint.toml'\n", "`extend`: leads in a circle"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, fsdp2lint__toml=text, x__py=LATE)
    (line,) = misconfigured(tmp_path)
    assert said in line


def test_one_wrong_entry_costs_no_other(tmp_path: Path) -> None:
    text = """\
selct = []
select = ['FSDP2', 3, 'FSDP2O3', 'FSDP9']
ignore = ['FSDP9O1', 'FSDP203']
fix = 'yes'
target-torch = 'new'
extend-exclude = ['gone', '{}']

[per-file-ignores]
'y.py' = ['FSDP201', 'FSDP777']
'z.py' = 'FSDP201'

[knowledge]
shards = ['a.b', 'a b', 'c.d']
shard = []
""".replace("{}", "{a,b}" * 24)
    (tmp_path / "gone").mkdir()
    write(tmp_path, fsdp2lint__toml=text, x__py=LATE, y__py=LATE, z__py=LATE)
    (tmp_path / "gone" / "a.py").write_text(LATE)
    told = [tuple(line.split(":")[1:3]) for line in misconfigured(tmp_path)]
    assert sorted((int(line), said.strip()) for line, said in told) == [
        (1, "unknown key `selct`, did you mean `select`?"),
        (2, "`select[1]`"),
        (2, "`select`"),
        (3, "`ignore`"),
        (4, "`fix`"),
        (5, "`target-torch`"),
        (6, "`extend-exclude`"),
        (8, "`per-file-ignores`"),
        (10, '`per-file-ignores."z.py"`'),
        (13, "`knowledge.shards[1]`"),
        (14, "unknown key `knowledge.shard`, did you mean `shards`?"),
    ]
    shown = invoke("check", "-f", "json", cwd=tmp_path)
    found = {one["filename"] for one in json.loads(shown.stdout) if one["code"] == "FSDP201"}
    assert found == {"x.py", "z.py"}


def test_nothing_is_written_while_a_setting_is_wrong(tmp_path: Path) -> None:
    none = f"{CLEAN}x = 1  # fsdp2lint: ignore[FSDP203]\n"
    write(tmp_path, fsdp2lint__toml="unfixable = ['FSDP9O1']\n", x__py=none)
    for words in (
        ["check", "--fix"], ["check", "--fix-only"], ["check", "--diff"], ["check", "--add-ignore"],
        ["baseline", "create"], ["migrate", "--write"],
    ):  # fmt: skip
        shown = invoke(*words, cwd=tmp_path)
        wrong = words[0] != "migrate"  # it selects no rules
        assert shown.returncode == 2 * wrong, words
        assert ("unknown rule `FSDP9O1`" in shown.stdout + shown.stderr) == wrong
        assert (tmp_path / "x.py").read_text() == none
    write(tmp_path, fsdp2lint__toml="excludes = ['x.py']\n", x__py=OLD)
    shown = invoke("migrate", "--write", "--allow-no-git", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, (tmp_path / "x.py").read_text()) == (2, "", OLD)
    shown = invoke("migrate", cwd=tmp_path)
    assert (shown.returncode, "+" in shown.stdout) == (2, True)
    assert shown.stderr.startswith("fsdp2lint.toml:1: unknown key `excludes`")
    assert sorted(os.listdir(tmp_path)) == [".fsdp2lint_cache", "fsdp2lint.toml", "x.py"]


def test_fixes_are_made_where_the_settings_are_right(tmp_path: Path) -> None:
    none = f"{CLEAN}x = 1  # fsdp2lint: ignore[FSDP203]\n"
    for name, text in (("wrong", "ignore = ['X']\n"), ("right", "fix = true\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text(none)
        (tmp_path / name / "fsdp2lint.toml").write_text(text)
    shown = invoke("check", "--fix", cwd=tmp_path)
    assert shown.returncode == 2
    assert "nothing is fixed under a configuration with a wrong setting" in shown.stderr
    assert (tmp_path / "wrong" / "x.py").read_text() == none
    assert (tmp_path / "right" / "x.py").read_text() != none


def test_a_wrong_setting_is_in_every_report(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint__toml="selct = []\n", x__py=LATE)
    for format_ in (
        "full",
        "concise",
        "grouped",
        "json",
        "json-lines",
        "sarif",
        "github",
        "gitlab",
        "junit",
    ):
        shown = invoke("check", "-f", format_, cwd=tmp_path)
        assert shown.returncode == 2
        assert "unknown key `selct`" in shown.stdout
        assert "FSDP201" in shown.stdout
    for words in (["--exit-zero"], ["--ignore", "FSDP903"], ["--min-severity", "error"], ["-"]):
        shown = invoke("check", *words, cwd=tmp_path, text=LATE)
        assert (shown.returncode, "FSDP903" in shown.stdout) == (2, True)


def test_a_wrong_baseline_knows_nothing(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint_baseline__json="[", x__py=LATE)
    os.rename(tmp_path / "fsdp2lint_baseline.json", tmp_path / "fsdp2lint-baseline.json")
    (line,) = misconfigured(tmp_path)
    assert line.startswith("fsdp2lint-baseline.json:1: ")
    write(tmp_path, fsdp2lint__toml="baseline = 'gone.json'\n")
    (line,) = misconfigured(tmp_path)
    assert line.startswith("fsdp2lint.toml:1: gone.json")
    assert invoke("check", "--baseline", "gone.json", cwd=tmp_path).stdout == ""


def test_a_format_that_is_none(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint__toml="\noutput-format = 'ful'\n", x__py=LATE)
    shown = invoke("check", cwd=tmp_path)
    assert (shown.returncode, shown.stderr, "FSDP201" in shown.stdout) == (2, "", True)
    assert "`output-format`: unknown output format `ful`, did you mean `full`?" in shown.stdout
    assert "--> fsdp2lint.toml:2:1" in shown.stdout


@pytest.mark.parametrize(
    "text",
    [
        *(f"{key} = 'a\\u0000b'".replace("'", '"') for key in ("extend", "baseline", "cache-dir")),
        'extend-exclude = ["a\\u0000/*"]',
        'output-format = "json=a\\u0000b"',
        '[per-file-ignores]\n"\\u0000" = ["FSDP2"]',
    ],
)
def test_a_name_that_no_file_has(tmp_path: Path, text: str) -> None:
    write(tmp_path, fsdp2lint__toml=text, x__py=LATE)
    (line,) = misconfigured(tmp_path)
    assert "NUL" in line


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
@pytest.mark.parametrize("key", ["extend", "baseline", "output-format"])
@pytest.mark.parametrize("where", ["pipe", "/dev/zero"])
def test_a_file_without_end_is_not_waited_for(tmp_path: Path, key: str, where: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    value = f"json={where}" if key == "output-format" else where
    write(tmp_path, fsdp2lint__toml=f"{key} = '{value}'\n", x__py=LATE)
    shown = invoke("check", "-n", cwd=tmp_path)
    assert shown.returncode == 2
    assert "FSDP903" in shown.stdout
    assert "FSDP201" in shown.stdout


def test_what_a_link_leads_to_is_not_shown(tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    (tmp_path / "secret").write_text("password = hunter2\n")
    (project / "fsdp2lint.toml").symlink_to(tmp_path / "secret")
    (project / "x.py").write_text(LATE)
    for format_ in ("full", "json", "sarif", "junit"):
        shown = invoke("check", "-n", "-f", format_, cwd=project)
        assert (shown.returncode, "FSDP903" in shown.stdout) == (2, True)
        assert "hunter2" not in shown.stdout + shown.stderr


def test_a_configuration_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "fsdp2lint.toml").mkdir()
    (tmp_path / "x.py").write_text(LATE)
    assert misconfigured(tmp_path) == ["fsdp2lint.toml:1: Is a directory"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "fsdp2lint.toml").write_bytes(b"select = ['\xff']\n")
    (tmp_path / "x.py").write_text(LATE)
    (line,) = misconfigured(tmp_path)
    assert "not UTF-8" in line


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint__toml="select = ['FSDP3']\n", x__py=LATE)
    assert found(tmp_path) == []
    assert found(tmp_path, "--select", "FSDP201") == ["x.py:FSDP201"]
    assert found(tmp_path, "--config", "select=['FSDP2']") == ["x.py:FSDP201"]
    assert found(tmp_path, "--config", "select=['FSDP2']", "--ignore", "FSDP201") == []


def test_an_empty_list_is_not_the_default(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint__toml="select = []\n", x__py=LATE)
    assert found(tmp_path) == []
    assert found(tmp_path, "--extend-select", "FSDP201") == ["x.py:FSDP201"]
    none = f"{CLEAN}x = 1  # fsdp2lint: ignore[FSDP203]\n"
    write(tmp_path, fsdp2lint__toml="fixable = []\n", x__py=none)
    assert found(tmp_path, "--fix") == ["x.py:FSDP901"]
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "y.py").write_text(LATE)
    write(tmp_path, fsdp2lint__toml="exclude = []\n")
    assert found(tmp_path) == ["venv/y.py:FSDP201", "x.py:FSDP901"]


def test_a_named_file(tmp_path: Path) -> None:
    write(tmp_path, other__toml="ignore = ['FSDP201']\n", x__py=LATE)
    assert found(tmp_path, "--config", "other.toml") == []
    assert found(tmp_path, FSDP2LINT_CONFIG="other.toml") == []
    assert len(found(tmp_path, "--isolated", FSDP2LINT_CONFIG="other.toml")) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--config", "gone.toml"], "gone.toml: No such file or directory"),
        (
            ["--config", "selct=[]"],
            "--config selct=[]: unknown key `selct`, did you mean `select`?",
        ),
        (["--config", "select=nothing"], "--config select=nothing: neither a file nor TOML"),
        (["--config", "a.toml", "--config", "b.toml"], "names two files"),
        (["--config", "a.toml", "--isolated"], "--isolated and --config cannot be used together"),
        (["--per-file-ignores", "FSDP2"], "write PATTERN:RULE"),
    ],
)
def test_slips_on_the_command_line(tmp_path: Path, args: list[str], said: str) -> None:
    shown = invoke("check", *args, cwd=tmp_path)
    assert shown.returncode == 2
    assert said in shown.stderr


@pytest.mark.parametrize(
    ("pattern", "codes"),
    [
        ("tests/*", 1),
        ("x.py", 1),
        ("*.py", 0),
        ("tests", 1),
        ("!tests/*", 1),
        ("other", 2),
        ("**/deep/*", 1),
        ("**/tests/**/*.py", 1),
        ("**/x.py", 1),
        ("tests/", 1),
    ],
)
def test_per_file_ignores(tmp_path: Path, pattern: str, codes: int) -> None:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "y.py").write_text(LATE)
    write(tmp_path, x__py=LATE, fsdp2lint__toml=f"[per-file-ignores]\n'{pattern}' = ['FSDP201']\n")
    assert len(found(tmp_path)) == codes
    assert len(found(tmp_path, "--isolated", "--per-file-ignores", f"{pattern}:FSDP201")) == codes


def test_a_comment_is_not_unused_where_its_rule_is_ignored(tmp_path: Path) -> None:
    text = CLEAN + "x = 1  # fsdp2lint: ignore[FSDP201]\n"
    write(tmp_path, x__py=text)
    assert found(tmp_path) == ["x.py:FSDP901"]
    write(tmp_path, fsdp2lint__toml="per-file-ignores = { 'x.py' = ['FSDP201'] }\n")
    assert found(tmp_path) == []


def test_unfixable_fixes_are_only_shown(tmp_path: Path) -> None:
    text = CLEAN + "x = 1  # fsdp2lint: ignore[FSDP201]\n"
    write(tmp_path, x__py=text, fsdp2lint__toml="unfixable = ['FSDP201']\n")
    write(tmp_path, late__py=LATE)
    invoke("check", "--fix", "--unsafe-fixes", cwd=tmp_path)
    assert (tmp_path / "late.py").read_text() == LATE
    invoke("check", "--fix", "--unsafe-fixes", "--isolated", cwd=tmp_path)
    assert (tmp_path / "late.py").read_text() != LATE


def test_fix_and_format_can_stand_in_the_file(tmp_path: Path) -> None:
    text = CLEAN + "x = 1  # fsdp2lint: ignore[FSDP203]\n"
    write(tmp_path, x__py=text, fsdp2lint__toml="output-format = 'concise'\nshow-fixes = true\n")
    assert invoke("check", cwd=tmp_path).stdout.startswith("x.py:6:")
    write(tmp_path, fsdp2lint__toml="fix = true\nshow-fixes = true\n")
    assert "x.py:6: FSDP901" in invoke("check", cwd=tmp_path).stdout
    assert (tmp_path / "x.py").read_text() == CLEAN + "x = 1\n"


def test_exclude_in_the_file(tmp_path: Path) -> None:
    for name in ("a.py", "gen/b.py", "sub/c.py", "sub/gen/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LATE)
    write(tmp_path, fsdp2lint__toml="extend-exclude = ['./gen']\n")
    assert found(tmp_path) == ["a.py:FSDP201", "sub/c.py:FSDP201", "sub/gen/d.py:FSDP201"]
    write(tmp_path / "sub", fsdp2lint__toml="exclude = ['c.py']\n")
    assert found(tmp_path) == ["a.py:FSDP201", "sub/gen/d.py:FSDP201"]
    write(tmp_path, fsdp2lint__toml="force-exclude = true\nextend-exclude = ['a.py']\n")
    assert found(tmp_path, "a.py") == []
    assert found(tmp_path, "--no-force-exclude", "a.py") == ["a.py:FSDP201"]


def test_show_settings_and_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, x__py=CLEAN, fsdp2lint__toml="select = ['FSDP201']\n")
    write(tmp_path / "sub", y__py=CLEAN, fsdp2lint__toml="select = ['FSDP203']\n")
    assert invoke("check", "--show-files", cwd=tmp_path).stdout == "sub/y.py\nx.py\n"
    shown = invoke("check", "--show-settings", cwd=tmp_path).stdout
    assert '# fsdp2lint.toml, for 1 file\nselect = ["FSDP201"]\n' in shown
    assert '# sub/fsdp2lint.toml, for 1 file\nselect = ["FSDP203"]\n' in shown


def test_config_describes_every_key() -> None:
    shown = invoke("config").stdout
    for name, kind, about in described():
        assert f"{name}: {kind}\n    {about}\n" in shown
        assert about.endswith((".", "…"))
    assert invoke("config", "target_torch").stdout.startswith("target-torch: string\n")
    wrong = invoke("config", "target-torhc")
    assert (wrong.returncode, "did you mean `target-torch`?" in wrong.stderr) == (2, True)


def test_the_help_says_of_an_option_what_the_configuration_says_of_its_key() -> None:
    said = {key: about for key, _, about in described()}
    options = {name: one for one in command.params for name in one.opts if isinstance(one, Option)}
    both = {key for key in said if f"--{key}" in options} - {"extend-ignore"}  # here for two keys
    assert len(both) > 15
    for key in both:
        assert (options[f"--{key}"].help or "").startswith(said[key]), key


def test_the_schema_accepts_what_the_program_accepts() -> None:
    printed = json.loads(invoke("config", "--schema").stdout)
    assert printed == json.loads(json.dumps(schema()))
    validator = jsonschema.Draft202012Validator(printed)
    validator.check_schema(printed)
    good = {
        "select": ["FSDP2"],
        "per-file-ignores": {"x": ["ALL"]},
        "knowledge": {"shards": ["a.b"]},
    }
    assert validator.is_valid(good)
    wrong: list[dict[str, Any]] = [
        {"selct": []},
        {"fix": 1},
        {"knowledge": {"shard": []}},
        {"min-severity": "x"},
    ]
    for bad in wrong:
        assert not validator.is_valid(bad), bad


def test_lines_of_keys() -> None:
    text = "[a]\nx = 1\n[tool.'f g']\n\ny.z = 2\n'q' = [\n3]\n"
    assert toml.line_of(text, ("a", "x")) == 2
    assert toml.line_of(text, ("tool", "f g", "y", "z")) == 5
    assert toml.line_of(text, ("tool", "f g", "q")) == 6
    assert toml.line_of(text, ("tool", "f g", "gone")) == 3
    assert toml.line_of(text, ("gone",)) == 1


def test_settings_add_up(tmp_path: Path) -> None:
    write(
        tmp_path,
        fsdp2lint__toml="ignore = ['FSDP1']\nextend-ignore = ['FSDP3']\nselect = ['ALL']\n",
    )
    made = settings(load(str(tmp_path / "fsdp2lint.toml")), {"ignore": ("FSDP2",)})
    assert made.ignore == ("FSDP1", "FSDP2", "FSDP3")
    assert made.select == ("ALL",)


class TestInit:
    def test_without_a_project(self, tmp_path: Path) -> None:
        shown = invoke("init", cwd=tmp_path)
        assert shown.returncode == 0
        assert load(str(tmp_path / "fsdp2lint.toml")).given == {}
        assert "fsdp2lint check" in (tmp_path / ".pre-commit-config.yaml").read_text()
        written = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        assert "already exists" in invoke("init", cwd=tmp_path).stdout
        assert written == {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def test_with_a_pyproject(self, tmp_path: Path) -> None:
        before = b"[project]\r\nname = 'x' # kept"
        (tmp_path / "pyproject.toml").write_bytes(before)
        (tmp_path / ".pre-commit-config.yaml").write_text("repos: []\n")
        shown = invoke("init", str(tmp_path))
        after = (tmp_path / "pyproject.toml").read_bytes()
        assert after.startswith(before + b"\r\n\r\n[tool.fsdp2lint]\r\n")
        assert b"\n" not in after.replace(b"\r\n", b"")
        assert (tmp_path / ".pre-commit-config.yaml").read_text() == "repos: []\n"
        assert "under `repos:`" in shown.stdout
        assert Configs().of(str(tmp_path)).file == str(tmp_path / "pyproject.toml")

    @pytest.mark.parametrize("text", ["tool = {}\n", "tool.fsdp2lint.fix = true\n", "[broken\n"])
    def test_a_pyproject_that_cannot_have_a_table(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "pyproject.toml").write_text(text)
        shown = invoke("init", cwd=tmp_path)
        assert (shown.returncode, (tmp_path / "pyproject.toml").read_text()) == (2, text)
        assert "pyproject.toml:" in shown.stderr

    @pytest.mark.parametrize(
        ("origin", "written"),
        [
            (None, f'additional_dependencies: ["fsdp2lint=={__version__}"]'),
            (
                {
                    "url": "https://example.org/x.git",
                    "vcs_info": {"vcs": "git", "commit_id": "0af"},
                },
                'additional_dependencies: ["fsdp2lint @ git+https://example.org/x.git@0af"]',
            ),
            (
                {"url": "https://example.org/fsdp2lint-1.whl", "archive_info": {}},
                'additional_dependencies: ["fsdp2lint @ https://example.org/fsdp2lint-1.whl"]',
            ),
            ({"url": "file:///somewhere", "dir_info": {"editable": True}}, "language: system"),
        ],
    )
    def test_the_hook_installs_what_is_installed(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        origin: dict[str, object] | None,
        written: str,
    ) -> None:
        info = tmp_path / "fsdp2lint-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: fsdp2lint\nVersion: 1\n")
        (info / "RECORD").write_text("fsdp2lint-1.dist-info/METADATA,,\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(tmp_path)
        invoke("init", str(tmp_path))
        text = (tmp_path / ".pre-commit-config.yaml").read_text()
        (hook,) = yaml.safe_load(text)["repos"][0]["hooks"]
        assert written in text
        assert ("additional_dependencies" in hook) == (hook["language"] == "python")

    def test_what_it_writes_becomes_a_configuration(self, tmp_path: Path) -> None:
        invoke("init", cwd=tmp_path)
        text = (tmp_path / "fsdp2lint.toml").read_text()
        (tmp_path / "fsdp2lint.toml").write_text(re.sub("^# ", "", text, flags=re.M))
        made = load(str(tmp_path / "fsdp2lint.toml")).given
        assert made["select"] == ["correctness", "suspicious"]
        assert made["knowledge"] == {"shards": ["mypackage.parallel.apply_fsdp"]}


def test_names_with_a_home(tmp_path: Path) -> None:
    write(tmp_path, fsdp2lint__toml="cache-dir = '~/cache'\nbaseline = 'b.json'\n")
    given = load(str(tmp_path / "fsdp2lint.toml")).given
    assert given["cache-dir"] == os.path.expanduser("~/cache")
    assert given["baseline"] == str(tmp_path / "b.json")


@pytest.mark.parametrize("where", ["../mine.json", "link.json"])
def test_a_configuration_writes_no_report_outside_of_its_project(
    tmp_path: Path, where: str
) -> None:
    (project := tmp_path / "project").mkdir()
    (tmp_path / "mine.json").write_text("mine")
    (project / "link.json").symlink_to(tmp_path / "mine.json")
    (project / "x.py").write_text(LATE)
    (project / "fsdp2lint.toml").write_text(f"output-format = 'json={where}'\n")
    shown = invoke("check", "-n", cwd=project)
    assert (shown.returncode, shown.stderr) == (2, "")
    assert "FSDP201" in shown.stdout
    assert "`output-format`" in shown.stdout
    assert (tmp_path / "mine.json").read_text() == "mine"
    assert invoke("check", "-n", "-f", f"json={where}", cwd=project).returncode == 1


def test_a_configuration_writes_a_report_inside_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    (tmp_path / "fsdp2lint.toml").write_text("output-format = 'json=out/report.json'\n")
    assert invoke("check", "-n", cwd=tmp_path).returncode == 1
    assert "FSDP201" in (tmp_path / "out" / "report.json").read_text()
