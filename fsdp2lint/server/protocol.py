"""The protocol also where a client does not keep to it: each wrong message is answered, and the server goes on.

pygls drops what is no message, what has another version and what comes after ``shutdown``; a header that it does not
know makes it take the messages behind for headers. JSON-RPC asks for an answer with an error to each of them
(https://www.jsonrpc.org/specification#error_object), the language server protocol for two of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInternalError,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import LanguageServerProtocol

MAX_MESSAGE = 256_000_000
"""Bytes of the longest message."""
_LINE = 65_536
_LENGTH = re.compile(rb"content-length\s*:\s*(\d{1,12})\s*$", re.IGNORECASE)


class Protocol(LanguageServerProtocol):
    """pygls's protocol, which answers what is wrong."""

    def structure_message(self, data: Any) -> Any:
        """Leave the objects as they are: this is asked of each within a message, and only the whole is one."""
        return data

    def handle_message(self, message: Any) -> None:
        """Do what a message asks for, or answer why not; a notification is never answered."""
        try:
            self._check(message)
            structured = super().structure_message(message)
        except JsonRpcException as error:
            if not _is_notification(message) and not _is_response(message):
                self.refuse(error, _id_of(message))
            return
        try:
            super().handle_message(structured)
        except Exception as error:
            if not _is_notification(message) and not _is_response(message):
                self.refuse(JsonRpcInternalError(f"the server failed: {error!r}"), _id_of(message))

    def refuse(self, error: JsonRpcException, number: str | int | None) -> None:
        """Answer with an error; the number is null where none could be read."""
        said = {"code": error.code, "message": error.message}
        self._send_data({"jsonrpc": self.VERSION, "id": number, "error": said})

    def _check(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise JsonRpcInvalidRequest("a message is a JSON object")
        if message.get("jsonrpc") != self.VERSION:
            raise JsonRpcInvalidRequest("the version of JSON-RPC is not 2.0")
        if "id" in message and _id_of(message) is None:
            raise JsonRpcInvalidRequest("the id is neither a string nor an integer")
        if _is_response(message):
            return
        method = message.get("method")
        if not isinstance(method, str):
            raise JsonRpcInvalidRequest("there is no method")
        if not isinstance(message.get("params"), (dict, list, type(None))):
            raise JsonRpcInvalidParams("the parameters are neither an object nor an array")
        kind = self.get_message_type(method)
        if "id" in message and kind is not None and not hasattr(kind, "id"):
            raise JsonRpcInvalidRequest(f"`{method}` is a notification: it has no id")
        begun = self._workspace is not None
        if self._shutdown and method != types.EXIT:
            raise JsonRpcInvalidRequest("the server was shut down")
        if not begun and method not in (types.INITIALIZE, types.EXIT):
            raise JsonRpcServerNotInitialized("the first request is `initialize`")
        if begun and method == types.INITIALIZE:
            raise JsonRpcInvalidRequest("the server was initialized before")


class Frames:
    """The messages on standard input with headers that pygls understands.

    What has no header of a length, or that of one that is too long, becomes a message that is no JSON, which is
    answered; a header may begin behind rubbish.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._headers: list[bytes] = []
        self._is_none = False

    def readline(self) -> bytes:
        """The next line of a header; nothing at the end."""
        if not self._headers:
            self._headers = self._next()
        return self._headers.pop(0) if self._headers else b""

    def read(self, count: int) -> bytes:
        """The message."""
        return b"?" if self._is_none else self._stream.read(count)

    def _next(self) -> list[bytes]:
        size, begun = 0, False
        while line := self._stream.readline(_LINE):
            if line.strip():
                begun = True
                found = _LENGTH.search(line)
                size = int(found[1]) if found else size
            elif begun:
                self._is_none = not 0 < size <= MAX_MESSAGE
                length = 1 if self._is_none else size
                return [b"Content-Length: %d\r\n" % length, b"\r\n"]
        return []


def not_json(error: Exception) -> JsonRpcException:
    """What a message is answered with that is no JSON."""
    return JsonRpcParseError(f"the message is no JSON: {error}")


def _id_of(message: Any) -> str | int | None:
    number = message.get("id") if isinstance(message, Mapping) else None
    return number if isinstance(number, (str, int)) and not isinstance(number, bool) else None


def _is_notification(message: Any) -> bool:
    return (
        isinstance(message, dict) and "id" not in message and isinstance(message.get("method"), str)
    )


def _is_response(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and "method" not in message
        and ("result" in message or "error" in message)
    )
