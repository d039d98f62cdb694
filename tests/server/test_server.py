"""The language server, spoken to by a real client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from lsprotocol import types

from fsdp2lint.server.app import _path
from fsdp2lint.server.app.desk import Desk
from tests.cli.test_git import HELPER, TRAIN
from tests.config.test_config import LATE
from tests.support.editor import edited, editing, live
from tests.support.notebooks import LATE as CELLS
from tests.support.running import CLEAN, ROOT, invoke

GOOD = LATE.replace("    optimizer = torch.optim.AdamW(model.parameters())\n", "").replace(
    "    model(torch", "    optimizer = torch.optim.AdamW(model.parameters())\n    model(torch"
)
UNUSED = LATE.replace("import torch\n", "import torch  # fsdp2lint: ignore[FSDP203]\n", 1)
EVERYWHERE = types.Range(types.Position(0, 0), types.Position(99, 0))


def codes(found: list[types.Diagnostic]) -> list[object]:
    return [one.code for one in found]


# -- diagnostics ---------------------------------------------------------------------------------


def test_findings_as_the_text_is_typed(tmp_path: Path) -> None:
    """Of a buffer that no file holds."""

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", LATE)
            (found,) = await editor.hears("late.py")
            assert (found.code, found.source) == ("FSDP201", "fsdp2lint")
            assert found.severity == types.DiagnosticSeverity.Error
            assert found.range == types.Range(types.Position(7, 16), types.Position(7, 53))
            assert found.related_information is not None
            (related,) = found.related_information
            assert related.location.uri == editor.uri("late.py")
            assert related.location.range.start == types.Position(10, 4)
            assert related.message == "`model` is sharded here, later"
            editor.alters("late.py", GOOD, 2)
            assert await editor.hears("late.py", 2) == []
            editor.alters("late.py", LATE + "(", 3)
            assert codes(await editor.hears("late.py", 3)) == ["FSDP900"]

    live(story())


def test_what_an_open_module_holds_counts(tmp_path: Path) -> None:
    """The finding goes when the imported module changes in its buffer, and comes back when that is closed."""
    (tmp_path / "helper.py").write_text(HELPER)

    async def story() -> None:
        async with editing(tmp_path) as editor:
            train = TRAIN.format(module="helper")
            editor.opens("train.py", train)
            assert codes(await editor.hears("train.py")) == ["FSDP201"]
            editor.told.clear()
            editor.opens("helper.py", "def shard(model):\n    return model\n")
            assert await editor.hears("train.py") == []
            editor.told.clear()
            closing = types.TextDocumentIdentifier(editor.uri("helper.py"))
            editor.text_document_did_close(types.DidCloseTextDocumentParams(closing))
            assert codes(await editor.hears("train.py")) == ["FSDP201"]
            assert editor.told[editor.uri("helper.py")].diagnostics == ()

    live(story())


@pytest.mark.parametrize(
    ("encoding", "width"), [(None, 2), ("utf-16", 2), ("utf-8", 4), ("utf-32", 1)]
)
def test_columns_are_counted_as_agreed(tmp_path: Path, encoding: str | None, width: int) -> None:
    agreed = [types.PositionEncodingKind(encoding)] if encoding else None
    general = types.GeneralClientCapabilities(position_encodings=agreed)

    async def story() -> None:
        async with editing(tmp_path, types.ClientCapabilities(general=general)) as editor:
            assert editor.server is not None
            assert editor.server.capabilities.position_encoding == (encoding or "utf-16")
            editor.opens("late.py", LATE.replace("    optimizer =", "    '𝒙'; optimizer ="))
            (found,) = await editor.hears("late.py")
            assert found.range.start == types.Position(7, len("    ''; optimizer = ") + width)
            assert found.range.end.character - found.range.start.character == 37
            assert found.related_information is None, "the client did not say that it shows them"

    live(story())


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    """Python's ``splitlines`` thinks so; the protocol and Python's grammar do not."""
    text = LATE.replace("def main", "# a page\x0c break\u2028\ndef main")

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", text)
            (found,) = await editor.hears("late.py")
            assert found.range.start.line == 8
            (fix, _) = await editor.offered("late.py", found.range)
            assert fix.edit is not None
            editor.alters("late.py", text.replace("main", "𝒎ain"), 2)
            (found,) = await editor.hears("late.py", 2)
            assert found.range.start.line == 8

    live(story())


# -- actions -------------------------------------------------------------------------------------


def test_a_fix_is_offered_and_does_what_the_command_line_does(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    invoke("check", "--fix", "--unsafe-fixes", "late.py", cwd=tmp_path)
    wanted = (tmp_path / "late.py").read_text()

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", LATE, 7)
            (found,) = await editor.hears("late.py", 7)
            fix, ignore = await editor.offered("late.py", found.range)
            assert fix.title.startswith(
                "build the optimizer below the last `fully_shard` (unsafe: "
            )
            assert (fix.kind, fix.is_preferred) == (types.CodeActionKind.QuickFix, None)
            assert fix.diagnostics == (found,)
            assert fix.edit is not None
            assert fix.edit.document_changes is not None
            (change,) = fix.edit.document_changes
            assert isinstance(change, types.TextDocumentEdit)
            assert change.text_document.version == 7
            assert edited(LATE, fix.edit, editor.uri("late.py")) == wanted
            assert ignore.title == "Ignore FSDP201 here"
            silent = edited(LATE, ignore.edit, editor.uri("late.py"))
            assert "parameters())  # fsdp2lint: ignore[FSDP201]\n" in silent
            editor.alters("late.py", silent, 8)
            assert await editor.hears("late.py", 8) == []
            elsewhere = types.Range(types.Position(0, 0), types.Position(0, 1))
            assert await editor.offered("late.py", elsewhere, [types.CodeActionKind.QuickFix]) == []

    live(story())


def test_all_safe_fixes_at_once(tmp_path: Path) -> None:
    """The unsafe one stays unless the configuration says otherwise."""

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", UNUSED)
            assert codes(await editor.hears("late.py")) == ["FSDP901", "FSDP201"]
            (every,) = await editor.offered("late.py", EVERYWHERE, ["source.fixAll"])
            assert every.kind == "source.fixAll.fsdp2lint"
            assert every.edit is None, "it is worked out only when it is taken"
            every = await editor.code_action_resolve_async(every)
            assert edited(UNUSED, every.edit, editor.uri("late.py")) == LATE
            quick = await editor.offered("late.py", EVERYWHERE, ["quickfix"])
            assert {one.kind for one in quick} == {types.CodeActionKind.QuickFix}
            preferred = [one for one in quick if one.is_preferred]
            assert [one.title for one in preferred] == ["remove it"]
            (tmp_path / "fsdp2lint.toml").write_text("unsafe-fixes = true\n")
            every = await editor.code_action_resolve_async(every)
            fixed = edited(UNUSED, every.edit, editor.uri("late.py"))
            assert fixed.index("fully_shard(model)") < fixed.index("AdamW")

    live(story())


def test_edits_without_versions_for_clients_that_do_not_know_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with editing(tmp_path, types.ClientCapabilities()) as editor:
            editor.opens("late.py", LATE)
            (found,) = await editor.hears("late.py")
            fix, _ = await editor.offered("late.py", found.range)
            assert fix.edit is not None
            assert list(fix.edit.changes or {}) == [editor.uri("late.py")]

    live(story())


# -- hover ---------------------------------------------------------------------------------------


def test_hover_shows_the_page_of_the_rule(tmp_path: Path) -> None:
    text = LATE + "x = 1  # fsdp2lint: ignore[FSDP401]\n"

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", text)
            await editor.hears("late.py")
            page = await editor.explained("late.py", 7, 20)
            assert page.startswith("# FSDP201 optimizer-before-shard\n\nAn optimizer is built")
            assert "## Why is this bad" in page
            assert await editor.explained("late.py", 0, 2) == ""
            last = text.count("\n") - 1
            column = text.splitlines()[-1].index("FSDP401") + 3
            assert (await editor.explained("late.py", last, column)).startswith("# FSDP")

    live(story())


# -- settings ------------------------------------------------------------------------------------


def test_settings_of_the_project_and_of_the_editor(tmp_path: Path) -> None:
    async def story() -> None:
        async with editing(tmp_path, options={"settings": {"ignore": ["FSDP201"]}}) as editor:
            editor.opens("late.py", UNUSED)
            assert codes(await editor.hears("late.py")) == ["FSDP901"]
            (tmp_path / "fsdp2lint.toml").write_text("extend-ignore = ['FSDP901']\n")
            said = types.DidChangeConfigurationParams({"fsdp2lint": {}})
            editor.told.clear()
            editor.workspace_did_change_configuration(said)
            assert codes(await editor.hears("late.py")) == ["FSDP201"]

    live(story())


def test_a_wrong_setting_is_said_once_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "fsdp2lint.toml").write_text("selekt = ['FSDP2']\n")

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", LATE)
            assert codes(await editor.hears("late.py")) == ["FSDP201"]
            editor.alters("late.py", GOOD, 2)
            await editor.hears("late.py", 2)
            said = "fsdp2lint: fsdp2lint.toml:1: unknown key `selekt`, did you mean `select`?"
            assert editor.messages == [said]
            (tmp_path / "fsdp2lint.toml").write_text("")
            editor.alters("late.py", LATE, 3)
            assert codes(await editor.hears("late.py", 3)) == ["FSDP201"]

    live(story())


def test_an_analysis_that_fails_is_said(tmp_path: Path) -> None:
    """Here because the folder of the server is gone; what is open is reported as clean meanwhile."""
    folder = tmp_path / "project"
    folder.mkdir()

    async def story() -> None:
        async with editing(folder) as editor:
            editor.opens("late.py", LATE)
            assert codes(await editor.hears("late.py")) == ["FSDP201"]
            folder.rmdir()
            editor.alters("late.py", LATE + "\n", 2)
            assert await editor.hears("late.py", 2) == []
            (said,) = editor.messages
            assert said.startswith("fsdp2lint: the analysis failed: FileNotFoundError")

    live(story())


def test_excluded_files_and_other_languages_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fsdp2lint.toml").write_text("extend-exclude = ['vendored']\n")

    async def story() -> None:
        async with editing(tmp_path) as editor:
            item = types.TextDocumentItem(editor.uri("x.md"), "markdown", 1, LATE)
            editor.text_document_did_open(types.DidOpenTextDocumentParams(item))
            editor.opens("vendored/late.py", LATE)
            assert await editor.hears("vendored/late.py") == []
            assert editor.uri("x.md") not in editor.told

    live(story())


# -- notebooks -----------------------------------------------------------------------------------


def test_cells_of_an_open_notebook(tmp_path: Path) -> None:
    kinds = {"code": types.NotebookCellKind.Code, "markdown": types.NotebookCellKind.Markup}
    notebook = (tmp_path / "late.ipynb").as_uri()
    uris = [f"vscode-notebook-cell:{notebook[7:]}#c{n}" for n in range(len(CELLS))]
    cells = [
        types.NotebookCell(kinds[kind], uri) for (kind, _), uri in zip(CELLS, uris, strict=True)
    ]
    items = [
        types.TextDocumentItem(uri, "python" if kind == "code" else kind, 1, text)
        for (kind, text), uri in zip(CELLS, uris, strict=True)
    ]

    async def story() -> None:
        async with editing(tmp_path) as editor:
            book = types.NotebookDocument(notebook, "jupyter-notebook", 1, cells)
            editor.notebook_document_did_open(types.DidOpenNotebookDocumentParams(book, items))
            await editor.until(lambda: uris[2] in editor.told)
            (found,) = editor.told[uris[2]].diagnostics
            assert (found.code, found.range.start) == ("FSDP201", types.Position(2, 12))
            assert found.related_information is not None
            (related,) = found.related_information
            assert (related.location.uri, related.location.range.start.line) == (uris[4], 1)
            context = types.CodeActionContext(diagnostics=[])
            params = types.CodeActionParams(
                types.TextDocumentIdentifier(uris[2]), found.range, context
            )
            fix = (await editor.text_document_code_action_async(params) or [])[0]
            assert isinstance(fix, types.CodeAction)
            line = "optimizer = torch.optim.AdamW(model.parameters())  # naïve\n"
            assert edited(CELLS[2][1], fix.edit, uris[2]) == CELLS[2][1].replace(line, "")
            after = f"fully_shard(model)\n{line}"
            wanted = CELLS[4][1].replace("fully_shard(model)\n", after)
            assert edited(CELLS[4][1], fix.edit, uris[4]) == wanted

    live(story())


# -- living and dying ----------------------------------------------------------------------------


def test_only_the_last_of_many_texts_is_reported(tmp_path: Path) -> None:
    """Each keystroke in a large file stops the analysis of what was there before."""
    body = "".join(
        f"def part_{n}(model):\n    fully_shard(model)\n    return model({n})\n" for n in range(300)
    )
    text = LATE.replace("def main", f"{body}\n\ndef main")

    async def story() -> None:
        async with editing(tmp_path) as editor:
            editor.opens("late.py", text)
            for version in range(2, 12):
                editor.alters("late.py", text + "#" * version, version)
            found = await editor.hears("late.py", 11)
            assert "FSDP201" in codes(found)
            assert len(editor.told) == 1
            assert editor.told[editor.uri("late.py")].version == 11

    live(story())


@pytest.mark.skipif(sys.platform == "win32", reason="asks the process table")
@pytest.mark.parametrize("way", ["closed", "killed"])
def test_no_process_is_left(tmp_path: Path, way: str) -> None:
    """Also when the editor dies without a word, in the middle of an analysis."""
    server = subprocess.Popen(
        [sys.executable, "-m", "fsdp2lint", "server", "--stdio"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None
    if way == "closed":
        server.stdin.close()
    else:
        time.sleep(1)
        server.send_signal(signal.SIGTERM)
    server.wait(timeout=600)


def test_without_pygls_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pygls.py").write_text("raise ImportError('no pygls here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "server"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "Error: the server needs pygls 2: pip install 'fsdp2lint[lsp]'\n"


def test_check_does_not_import_the_server(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    script = "import sys; sys.argv[1:] = ['check', 'x.py']; from fsdp2lint.cli import main\n"
    script += "try: main()\nfinally: print(sorted(m for m in sys.modules if m.startswith(('pygls', 'lsprotocol'))))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "uri", ["file:///a%00b.py", "file://[x/a.py", "file:", "", "untitled:", "x\0.py"]
)
def test_an_address_of_no_file_spoils_no_other(tmp_path: Path, uri: str) -> None:
    """The analysis is of all open documents: one that cannot be anywhere must not end it."""
    path = _path(uri)
    os.path.exists(path)
    buffers = {path: LATE.encode(), str(tmp_path / "late.py"): LATE.encode()}
    found = Desk().check(buffers, threading.Event())
    assert str(tmp_path / "late.py") in {os.path.abspath(one.place.source.path) for one in found}
