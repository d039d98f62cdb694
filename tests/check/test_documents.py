"""Blocks of Python in Markdown: found, checked, fixed where they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp2lint.source.documents.markdown import blocks, markdown
from tests.support.running import invoke

WITH = ("--extension", "md:markdown")

IMPORTS = """\
# Sharding é

```python
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
```

"""
LATE = """\
model = nn.Linear(4, 4)

optimizer = torch.optim.AdamW(model.parameters())
fully_shard(model)
optimizer.step()
"""
"""Without imports: those stand in a block above."""


def fenced(code: str, prefix: str = "", info: str = "python", fence: str = "```") -> str:
    lines = [f"{fence}{info}", *code.splitlines(), fence]
    return "".join(f"{prefix}{line}".rstrip() + "\n" for line in lines)


def codes(folder: Path, *args: str) -> list[tuple[str, int, int]]:
    shown = invoke("check", "-f", "json", *args, cwd=folder)
    assert shown.returncode in (0, 1), shown.stderr
    found = json.loads(shown.stdout)
    return [(d["code"], d["location"]["row"], d["location"]["column"]) for d in found]


@pytest.mark.parametrize("prefix", ["", "    ", "> ", "  > "])
@pytest.mark.parametrize(
    ("info", "fence"),
    [
        ("python", "```"),
        ("py", "~~~~"),
        ('python title="x.py"', "````"),
        ("{.python .annotate}", "```"),
        ("{code-cell} ipython3", "```"),
        ("{code-block} python", "```"),
    ],
)
def test_blocks_are_checked_and_fixed_where_they_stand(
    tmp_path: Path, prefix: str, info: str, fence: str
) -> None:
    text = IMPORTS + fenced(LATE, prefix, info, fence) + "\nThe end: `fully_shard`\n"
    (tmp_path / "doc.md").write_text(text, encoding="utf-8")
    assert codes(tmp_path, *WITH) == [("FSDP201", 12, len(prefix) + 13)]
    invoke("check", *WITH, "--fix", "--unsafe-fixes", cwd=tmp_path)
    line = f"{prefix}optimizer = torch.optim.AdamW(model.parameters())\n"
    after = f"{prefix}fully_shard(model)\n"
    assert (tmp_path / "doc.md").read_text("utf-8") == text.replace(line, "").replace(
        after, after + line
    )


def test_folders_are_searched_for_documents_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "doc.md").write_text(IMPORTS + fenced(LATE), encoding="utf-8")
    assert codes(tmp_path) == []
    assert codes(tmp_path, "doc.md") == [("FSDP201", 12, 13)], "a named one is read as what it is"
    (tmp_path / "fsdp2lint.toml").write_text('extension = { md = "markdown", pyx = "python" }\n')
    (tmp_path / "code.pyx").write_text("import torch\n")
    assert codes(tmp_path) == [("FSDP201", 12, 13)]
    listed = invoke("check", "--show-files", cwd=tmp_path).stdout.split()
    assert listed == ["code.pyx", "doc.md"]
    assert codes(tmp_path, "--exclude", "*.md") == []


def test_each_block_is_a_program_of_its_own(tmp_path: Path) -> None:
    """The wrong way and the right one, side by side."""
    right = LATE.replace("optimizer = torch.optim.AdamW(model.parameters())\n", "").replace(
        "optimizer.step()", "optimizer = torch.optim.AdamW(model.parameters())\noptimizer.step()"
    )
    text = (
        IMPORTS + fenced(LATE) + fenced(right) + fenced("fully_shard(model, mesh)") + fenced(LATE)
    )
    (tmp_path / "doc.md").write_text(text, encoding="utf-8")
    second = text[: text.rindex("optimizer = torch")].count("\n") + 1
    assert codes(tmp_path, *WITH) == [("FSDP201", 12, 13), ("FSDP201", second, 13)]


def test_what_is_no_program_is_left_out(tmp_path: Path) -> None:
    pieces = [
        fenced("def f(...):"),
        fenced(LATE, info="text"),
        fenced(LATE, info=""),
        fenced(LATE, info="pycon"),
        "    " + "\n    ".join(LATE.splitlines()) + "\n",
        "`fully_shard`\n",
        fenced(">>> fully_shard(model)"),
        "  ```python\nx = fully_shard\n  ```\n",
        "```python\nimport torch\nfully_shard(",
    ]
    (tmp_path / "doc.md").write_text("\n".join([IMPORTS, *pieces]), encoding="utf-8")
    shown = invoke("check", *WITH, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout


def test_a_fence_inside_a_longer_fence_is_text() -> None:
    text = "````markdown\n```python\nx = 1\n```\n````\n```python\ny = 2\n```\n"
    assert [(block.first, block.text) for block in blocks(text)] == [(7, "y = 2\n")]


def test_blocks_in_lists_quotations_and_notes_are_read_and_commented_out_ones_are_not() -> None:
    text = (
        "- ```python\n  x = 1\n  ```\n\n> ```py\n> y = 2\n>\n> z = 3\n> ```\n\n"
        "!!! note\n\n    ```python\n    if x:\n\n        y\n    ```\n\n<!--\n```python\nw = 4\n```\n-->\n"
    )
    found = [(block.first, block.prefix, block.text) for block in blocks(text)]
    assert found == [
        (2, "  ", "x = 1\n"),
        (6, "> ", "y = 2\n\nz = 3\n"),
        (14, "    ", "if x:\n\n    y\n"),
    ]


def test_magics_and_comments_work_in_blocks(tmp_path: Path) -> None:
    code = LATE.replace("fully_shard(model)", "!nvidia-smi\nfully_shard(model)")
    quiet = code.replace("parameters())", "parameters())  # fsdp2lint: ignore[FSDP201]")
    (tmp_path / "doc.md").write_text(IMPORTS + fenced(code) + fenced(quiet), encoding="utf-8")
    assert codes(tmp_path, *WITH) == [("FSDP201", 12, 13)]
    assert "2 findings" not in invoke("baseline", "create", *WITH, cwd=tmp_path).stdout
    assert codes(tmp_path, *WITH) == []


def test_windows_newlines_and_other_bytes_stay(tmp_path: Path) -> None:
    head = IMPORTS + "a\u2028b\x0cc\n" + fenced(LATE)
    text = (head + fenced("x = 1\n\n\ny = 2", "\t")).replace("\n", "\r\n").rstrip()
    (tmp_path / "doc.md").write_text(text, encoding="utf-8", newline="")
    assert codes(tmp_path, *WITH) == [("FSDP201", 13, 13)]
    invoke("check", *WITH, "--fix", "--unsafe-fixes", cwd=tmp_path)
    line = "optimizer = torch.optim.AdamW(model.parameters())\r\n"
    wanted = text.replace(line, "").replace(
        "fully_shard(model)\r\n", f"fully_shard(model)\r\n{line}"
    )
    assert (tmp_path / "doc.md").read_bytes().decode() == wanted


def test_standard_input_and_the_diff(tmp_path: Path) -> None:
    text = IMPORTS + fenced(LATE)
    shown = invoke("check", "--diff", "--unsafe-fixes", "-", "--stdin-filename", "x.md", text=text)
    assert shown.stdout.startswith("--- a/x.md\n+++ b/x.md\n@@ -9,7 +9,7 @@")
    fixed = invoke("check", "--fix", "--unsafe-fixes", "-", "--stdin-filename", "x.md", text=text)
    (_, block) = markdown(fixed.stdout, "x.md")
    assert block.block.text.index("fully_shard") < block.block.text.index("AdamW")


def test_an_import_above_is_not_changed_by_a_fix_below(tmp_path: Path) -> None:
    """A fix that would have to is not made, and says why."""
    old = "from torch.distributed._composable.fsdp import fully_shard, MixedPrecisionPolicy\n"
    text = fenced(old) + fenced("fully_shard(model, mp_policy=MixedPrecisionPolicy())")
    (tmp_path / "doc.md").write_text(text, encoding="utf-8")
    found = codes(tmp_path, *WITH)
    assert len(found) == len(set(found)), "what stands in the first block is said once"
    invoke("check", *WITH, "--fix", "--unsafe-fixes", cwd=tmp_path)
    assert (tmp_path / "doc.md").read_text("utf-8").count("import") == 1


def test_comments_are_not_added_to_documents(tmp_path: Path) -> None:
    text = IMPORTS + fenced(LATE)
    (tmp_path / "doc.md").write_text(text, encoding="utf-8")
    shown = invoke("check", *WITH, "--add-ignore", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "Silenced 0 findings in 0 files.\n")
    assert shown.stderr == "doc.md: 1 finding left: comments are not added to documents\n"
    assert (tmp_path / "doc.md").read_text("utf-8") == text


@pytest.mark.parametrize("given", ["md", "md:rust", ":python", "md:ipynb"])
def test_an_unknown_language_is_refused(given: str) -> None:
    shown = invoke("check", "--extension", given)
    assert shown.returncode == 2
    assert shown.stderr == f"Error: --extension {given}: write EXT:python or EXT:markdown\n"


def test_a_document_that_cannot_be_decoded_is_said(tmp_path: Path) -> None:
    (tmp_path / "doc.md").write_bytes(b"fully_shard \xff\n")
    shown = invoke("check", "-f", "concise", "-q", "doc.md", cwd=tmp_path)
    assert shown.stdout.startswith("doc.md:1:1: FSDP900 cannot decode the file")
