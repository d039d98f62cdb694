"""What the server does about each message of the protocol."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.uris import to_fs_path

from fsdp2lint.server.actions import FIX_ALL, KINDS, fix_all, wanted
from fsdp2lint.server.app import PAUSE, Server
from fsdp2lint.server.desk import Settings
from fsdp2lint.server.said import explained

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
    """The settings in what a client sent: they may stand below the name of the tool, or below `settings`."""
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
