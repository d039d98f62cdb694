"""The server: hears what is typed, analyses when typing pauses, answers what the editor asks.

What the server does about each message of the protocol.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.exceptions import FeatureRequestError, JsonRpcException, PyglsError
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from fsdp2lint import __version__
from fsdp2lint.check.diagnostics import Diagnostic
from fsdp2lint.check.fixing import NotWritten
from fsdp2lint.check.in_documents import changes
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.server.app.actions import FIX_ALL, KINDS, Offers, fix_all, wanted
from fsdp2lint.server.app.desk import Desk, Settings, Stopped, saved
from fsdp2lint.server.places import Ruler
from fsdp2lint.server.protocol import Protocol, not_json
from fsdp2lint.server.said import Words, explained
from fsdp2lint.source.source import NOTEBOOK

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source

PAUSE = 0.2
"""Seconds without a keystroke before the text is analysed."""

PATIENCE = 10.0
"""Seconds that a question waits for the analysis of the text that it is about."""

STACK = 256 << 20
"""Bytes of stack for the analysis: scripts may be nested deeply."""


@dataclass(frozen=True)
class Open:
    """The open documents at one moment."""

    buffers: Mapping[str, bytes] = field(default_factory=dict)
    uris: Mapping[tuple[str, int | None], str] = field(default_factory=dict)
    """The address of each file, or of each cell of a notebook."""
    texts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What was found in them, by address."""

    open: Open = field(default_factory=Open)
    found: Mapping[str, list[tuple[Diagnostic, types.Diagnostic]]] = field(default_factory=dict)


class Server(LanguageServer):
    """The language server of fsdp2lint."""

    def __init__(self) -> None:
        cells = types.NotebookDocumentFilterWithNotebook(
            notebook=types.NotebookDocumentFilterNotebookType("jupyter-notebook"),
            cells=[types.NotebookCellLanguage("python")],
        )
        super().__init__(
            "fsdp2lint",
            __version__,
            # incremental changes would count lines as pygls does, which is not as the protocol does
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
            notebook_document_sync=types.NotebookDocumentSyncOptions([cells], save=True),
            protocol_cls=Protocol,
        )
        self.desk = Desk()
        self.outcome = Outcome()
        self.dismissed = False
        """Whether the client has said that it needs the server no longer."""
        self._stop = threading.Event()
        self._pending: asyncio.Task[None] | None = None
        self._complained = ""
        threading.stack_size(STACK)
        self._worker = ThreadPoolExecutor(1, "analysis")

    def shutdown(self) -> None:
        """Stop whatever is going on."""
        self._stop.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        super().shutdown()  # type: ignore[no-untyped-call]

    def report_server_error(
        self, error: Exception, source: type[PyglsError] | type[JsonRpcException]
    ) -> None:
        """Answer a message that is no JSON; say what else went wrong, if no answer says it."""
        if source is JsonRpcException and isinstance(self.protocol, Protocol):
            self.protocol.refuse(not_json(error), None)
        elif source is not FeatureRequestError:
            super().report_server_error(error, source)

    # -- analysing -------------------------------------------------------------------------------

    def look(self, pause: float = 0.0) -> None:
        """Analyse what is open now, unless it changes again during a pause."""
        self._stop.set()
        if self._pending is not None:
            self._pending.cancel()
        self._pending = asyncio.get_running_loop().create_task(self._analyse(pause))

    async def settled(self) -> None:
        """Wait until the text as it is now has been analysed."""
        pending = self._pending
        if pending is not None and not pending.done():
            await asyncio.wait([pending], timeout=PATIENCE)

    async def _analyse(self, pause: float) -> None:
        await asyncio.sleep(pause)
        self._stop = stop = threading.Event()
        now = self.opened()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._worker, self.desk.check, now.buffers, stop)
        except Stopped:
            return
        except Exception as error:  # or nobody would know why nothing is said any more
            found, wrong = [], f"the analysis failed: {type(error).__name__}: {error}"
        else:
            wrong = self.desk.wrong
        if wrong:
            self._complain(wrong)
        else:
            self._complained = ""
        self._publish(now, found)

    def _publish(self, now: Open, found: list[Diagnostic]) -> None:
        words = self.words(now)
        by_uri: dict[str, list[tuple[Diagnostic, types.Diagnostic]]] = {u: [] for u in now.texts}
        for one in found:
            uri = words.uri(one.place.in_document.source)
            if uri in by_uri:
                by_uri[uri].append((one, words.diagnostic(one)))
        self.outcome = Outcome(now, by_uri)
        for uri, pairs in by_uri.items():
            said = [diagnostic for _, diagnostic in pairs]
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri, said, now.versions[uri])
            )

    def _complain(self, what: str) -> None:
        """Say what is wrong with the settings, or with the analysis, once."""
        if what != self._complained:
            self._complained = what
            self.window_show_message(
                types.ShowMessageParams(types.MessageType.Error, f"fsdp2lint: {what}")
            )

    # -- what is open ----------------------------------------------------------------------------

    def opened(self) -> Open:
        """The Python among the open documents."""
        buffers: dict[str, bytes] = {}
        uris: dict[tuple[str, int | None], str] = {}
        cells: set[str] = set()
        for notebook in self.workspace.notebook_documents.values():
            path = _path(notebook.uri)
            made = [self._cell(cell, cells) for cell in notebook.cells]
            data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}
            buffers[path] = json.dumps(data).encode()
            uris |= {(path, n): cell.document for n, cell in enumerate(notebook.cells, 1)}
        for document in self.workspace.text_documents.values():
            if document.uri not in cells and document.language_id in ("python", None):
                path = _path(document.uri)
                if not path.endswith(NOTEBOOK):
                    buffers[path] = saved(document.source)
                    uris[path, None] = document.uri
        documents = self.workspace.text_documents.values()
        known = {d.uri: d for d in documents if d.uri in set(uris.values())}
        return Open(
            buffers,
            uris,
            {uri: d.source for uri, d in known.items()},
            {uri: d.version for uri, d in known.items()},
        )

    def _cell(self, cell: types.NotebookCell, known: set[str]) -> dict[str, object]:
        document = self.workspace.get_text_document(cell.document)
        known.update((cell.document, document.uri))
        is_code = cell.kind == types.NotebookCellKind.Code
        said = {"vscode": {"languageId": document.language_id or "python"}}
        kind = "code" if is_code else "markdown"
        return {"cell_type": kind, "metadata": said, "source": document.source}

    def words(self, now: Open) -> Words:
        """How findings in these documents are sent to this client."""

        def uri(source: Source) -> str:
            path = os.path.abspath(source.path)
            return now.uris.get((path, source.cell)) or from_fs_path(path) or ""

        able = self.client_capabilities
        formats = get_capability(able, "text_document.hover.content_format", None)
        return Words(
            uri,
            self.workspace.position_codec.client_num_units,
            bool(
                get_capability(able, "text_document.publish_diagnostics.related_information", False)
            ),
            formats is None or types.MarkupKind.Markdown in formats,
        )

    def offers(self, now: Open) -> Offers:
        """What can be offered to this client."""
        able = get_capability(
            self.client_capabilities, "workspace.workspace_edit.document_changes", False
        )
        return Offers(self.words(now), dict(now.versions), bool(able))

    def found_in(
        self, uri: str, range_: types.Range
    ) -> Iterator[tuple[Diagnostic, types.Diagnostic]]:
        """The findings that a range touches."""
        for one, said in self.outcome.found.get(uri, ()):
            if _before(said.range.start, range_.end) and _before(range_.start, said.range.end):
                yield one, said

    def ruler(self, uri: str) -> Ruler:
        """The places of a document as it was analysed."""
        text = self.outcome.open.texts.get(uri, "")
        return Ruler(text, self.workspace.position_codec.client_num_units)

    async def fixes_of(self, uri: str) -> types.WorkspaceEdit | None:
        """All fixes of a file together."""
        now = self.opened()
        path = next((path for (path, _), known in now.uris.items() if known == uri), None)
        if path is None:
            return None
        loop = asyncio.get_running_loop()
        stop = threading.Event()
        try:
            changed = await loop.run_in_executor(
                self._worker, self.desk.fixed, now.buffers, path, stop
            )
        except (BadSetting, NotWritten) as error:
            self._complain(str(error))
            return None
        made = [change for old, new in changed for change in changes(old, new)]
        return self.offers(now).edit(made) if made else None


def _path(uri: str) -> str:
    """Where a document is, or would be when it is saved."""
    if uri.startswith("untitled:"):
        name = uri.rpartition(":")[2].replace("/", "-")
        return os.path.abspath(name if name.endswith(".py") else f"{name}.py")
    try:
        path = to_fs_path(uri) or uri
    except ValueError:  # `file://[`: no address at all
        path = uri
    return os.path.abspath(path.replace("\0", "-"))


def _before(one: types.Position, other: types.Position) -> bool:
    return (one.line, one.character) <= (other.line, other.character)


WATCHED = ("**/*.py", "**/*.ipynb", "**/pyproject.toml", "**/fsdp2lint.toml", "**/.fsdp2lint.toml")


def make() -> Server:
    """The server with everything that it can do."""
    server = Server()
    for method, handler in _HANDLERS.items():
        server.feature(method, _OPTIONS.get(method))(handler)
    return server


# pygls knows by the name `ls` that a function wants the server


def _initialize(ls: Server, params: types.InitializeParams) -> None:
    folders = list(ls.workspace.folders.values())
    root = ls.workspace.root_path or (to_fs_path(folders[0].uri) if folders else None)
    if root and os.path.isdir(root):
        os.chdir(root)  # paths are shown from here, and imports begin here
    ls.desk.settings = _settings(params.initialization_options)


async def _initialized(ls: Server, params: types.InitializedParams) -> None:
    able = ls.client_capabilities
    if get_capability(able, "workspace.did_change_watched_files.dynamic_registration", False):
        watchers = [types.FileSystemWatcher(glob) for glob in WATCHED]
        options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
        method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
        await ls.client_register_capability_async(
            types.RegistrationParams([types.Registration("files", method, options)])
        )


def _dismissed(ls: Server, params: None) -> None:
    ls.dismissed = True


def _configured(ls: Server, params: types.DidChangeConfigurationParams) -> None:
    ls.desk.settings = _settings(params.settings)
    ls.look()


def _changed(ls: Server, params: object) -> None:
    ls.look()


def _typed(ls: Server, params: object) -> None:
    ls.look(PAUSE)


def _closed(ls: Server, params: types.DidCloseTextDocumentParams) -> None:
    _forget(ls, [params.text_document.uri])


def _closed_notebook(ls: Server, params: types.DidCloseNotebookDocumentParams) -> None:
    _forget(ls, (cell.uri for cell in params.cell_text_documents))


def _forget(ls: Server, uris: Iterable[str]) -> None:
    """Closed documents have no findings any more; what imports them reads the disk again."""
    for uri in uris:
        ls.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
    ls.look()


async def _actions(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    await ls.settled()
    uri, only = params.text_document.uri, params.context.only
    made: list[types.CodeAction] = []
    if wanted(types.CodeActionKind.QuickFix, only):
        offers = ls.offers(ls.outcome.open)
        for one, said in ls.found_in(uri, params.range):
            made += offers.of(one, said)
    found = ls.outcome.found.get(uri, ())
    if wanted(FIX_ALL, only) and any(one.applicable(ls.desk.unsafe) for one, _ in found):
        made.append(fix_all(uri))
    return made


async def _resolved(ls: Server, action: types.CodeAction) -> types.CodeAction:
    if isinstance(action.data, Mapping) and isinstance(action.data.get("uri"), str):
        action.edit = await ls.fixes_of(action.data["uri"])
    return action


async def _hover(ls: Server, params: types.HoverParams) -> types.Hover | None:
    await ls.settled()
    uri, at = params.text_document.uri, params.position
    ruler = ls.ruler(uri)
    line, column = ruler.place(at)
    here = [one.rule for one, _ in ls.found_in(uri, types.Range(at, at))]
    rules = explained(here, ruler.lines[line - 1], column)
    return types.Hover(ls.words(ls.outcome.open).page(rules)) if rules else None


def _settings(said: object) -> Settings:
    """The settings in what a client sent: they may be below the name of the tool, or below `settings`."""
    for name in ("settings", "fsdp2lint"):
        if isinstance(said, Mapping) and isinstance(said.get(name), Mapping):
            said = said[name]
    return Settings.of(said)


_HANDLERS: dict[str, Callable[..., Any]] = {
    types.INITIALIZE: _initialize,
    types.INITIALIZED: _initialized,
    types.SHUTDOWN: _dismissed,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: _configured,
    types.WORKSPACE_DID_CHANGE_WATCHED_FILES: _changed,
    types.TEXT_DOCUMENT_DID_OPEN: _changed,
    types.TEXT_DOCUMENT_DID_SAVE: _changed,
    types.TEXT_DOCUMENT_DID_CHANGE: _typed,
    types.TEXT_DOCUMENT_DID_CLOSE: _closed,
    types.NOTEBOOK_DOCUMENT_DID_OPEN: _changed,
    types.NOTEBOOK_DOCUMENT_DID_SAVE: _changed,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: _typed,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: _closed_notebook,
    types.TEXT_DOCUMENT_CODE_ACTION: _actions,
    types.CODE_ACTION_RESOLVE: _resolved,
    types.TEXT_DOCUMENT_HOVER: _hover,
}
_OPTIONS = {
    types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions(
        code_action_kinds=list(KINDS), resolve_provider=True
    )
}
