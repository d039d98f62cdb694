"""An editor, as far as the language server can tell: pygls's own client over standard input and output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.support import forks
from tests.support.running import ROOT

WAIT = 600.0

CAPABLE = types.ClientCapabilities(
    text_document=types.TextDocumentClientCapabilities(
        publish_diagnostics=types.PublishDiagnosticsClientCapabilities(related_information=True)
    ),
    workspace=types.WorkspaceClientCapabilities(
        workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True)
    ),
)


class Editor(LanguageClient):
    """Opens, types, asks, and remembers what it was told."""

    def __init__(self, folder: Path) -> None:
        super().__init__("editor", "1")
        self.folder = folder
        self.told: dict[str, types.PublishDiagnosticsParams] = {}
        self.messages: list[str] = []
        self.server: types.InitializeResult | None = None
        self._news = asyncio.Event()
        self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(
            lambda params: self._published(params)
        )
        self.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self._shown(params))

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The server."""
        assert self._server is not None
        return self._server

    def uri(self, name: str) -> str:
        """The address of a file of the folder."""
        return (self.folder / name).as_uri()

    def opens(self, name: str, text: str, version: int = 1) -> None:
        """A buffer, whether the disk has the file or not."""
        item = types.TextDocumentItem(self.uri(name), "python", version, text)
        self.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def alters(self, name: str, text: str, version: int) -> None:
        """The buffer holds another text now."""
        whole = types.TextDocumentContentChangeWholeDocument(text)
        document = types.VersionedTextDocumentIdentifier(version, self.uri(name))
        self.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    async def hears(self, name: str, version: int = 1) -> list[types.Diagnostic]:
        """What the server says of one version of a buffer."""
        await self.until(lambda: self._version(name) >= version)
        return list(self.told[self.uri(name)].diagnostics)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that a message brings."""
        while not happened():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), WAIT)

    async def offered(
        self, name: str, at: types.Range, only: list[str] | None = None
    ) -> list[types.CodeAction]:
        """The actions at a range."""
        context = types.CodeActionContext(diagnostics=[], only=only)
        document = types.TextDocumentIdentifier(self.uri(name))
        params = types.CodeActionParams(document, at, context)
        found = await self.text_document_code_action_async(params)
        return [one for one in found or [] if isinstance(one, types.CodeAction)]

    async def explained(self, name: str, line: int, character: int) -> str:
        """The hover at a place; empty when there is none."""
        document = types.TextDocumentIdentifier(self.uri(name))
        params = types.HoverParams(document, types.Position(line, character))
        found = await self.text_document_hover_async(params)
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    def _published(self, params: types.PublishDiagnosticsParams) -> None:
        self.told[params.uri] = params
        self._news.set()

    def _shown(self, params: types.ShowMessageParams) -> None:
        self.messages.append(params.message)
        self._news.set()

    def _version(self, name: str) -> int:
        told = self.told.get(self.uri(name))
        return -1 if told is None else told.version or 0


@asynccontextmanager
async def editing(
    folder: Path,
    capabilities: types.ClientCapabilities = CAPABLE,
    options: object = None,
) -> AsyncIterator[Editor]:
    """An editor whose server begins and ends as the protocol says, leaving with 0."""
    editor = Editor(folder)
    path = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    await editor.start_io(*forks.command("server"), cwd=folder, env={**os.environ, **path})
    params = types.InitializeParams(
        capabilities, root_uri=folder.as_uri(), initialization_options=options
    )
    editor.server = await asyncio.wait_for(editor.initialize_async(params), WAIT)
    editor.initialized(types.InitializedParams())
    yield editor
    await asyncio.wait_for(editor.shutdown_async(None), WAIT)
    editor.exit(None)
    assert await asyncio.wait_for(editor.process.wait(), WAIT) == 0
    await editor.stop()  # type: ignore[no-untyped-call]


def live(story: Coroutine[Any, Any, None]) -> None:
    """Let a story happen."""
    asyncio.run(story)


def edited(text: str, edit: types.WorkspaceEdit | None, uri: str) -> str:
    """The text with the edits that are for one document, counted in UTF-16 as the protocol does."""
    assert edit is not None
    if edit.document_changes is not None:
        every = [one for one in edit.document_changes if isinstance(one, types.TextDocumentEdit)]
        edits = [e for one in every if one.text_document.uri == uri for e in one.edits]
    else:
        edits = list((edit.changes or {}).get(uri, ()))
    raw = text.encode("utf-16-le")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode("utf-16-le")))

    def offset(at: types.Position) -> int:
        return starts[at.line] + 2 * at.character

    for one in sorted(edits, key=lambda e: offset(e.range.start), reverse=True):
        assert isinstance(one, types.TextEdit)
        new = one.new_text.encode("utf-16-le")
        raw = raw[: offset(one.range.start)] + new + raw[offset(one.range.end) :]
    return raw.decode("utf-16-le")
