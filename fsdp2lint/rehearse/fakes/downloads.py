"""Texts that a script downloads by itself: where there is no network, a text of our own in their place.

Only names that end as plain text are answered: what else a script downloads has a form that it knows and we do not.
"""

from __future__ import annotations

import http.client
import importlib
import io
import os
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from fsdp2lint.rehearse.fakes.texts import sentence
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

LINES = 4_000
_ENDS = (".txt", ".text", ".md")


def install(counted: Counted) -> None:
    """Replace what Python has for downloads."""
    wrap(urllib.request, "urlopen", lambda read: _opening(read, counted))
    wrap(urllib.request, "urlretrieve", lambda read: _retrieving(read, counted))


def install_requests(counted: Counted) -> None:
    """The same of ``requests``."""
    package: Any = importlib.import_module("requests")
    wrap(package, "get", lambda read: _getting(read, counted))


def _text() -> str:
    return "".join(f"{sentence(number)}\n" for number in range(LINES))


def _is_text(address: Any) -> bool:
    said = getattr(address, "full_url", address)
    return isinstance(said, str) and urlsplit(said).path.lower().endswith(_ENDS)


def _noted(counted: Counted, address: Any) -> bytes:
    counted.note(f"made up: {getattr(address, 'full_url', address)}")
    return _text().encode()


def _opening(read: Function, counted: Counted) -> Function:
    def opened(url: Any, *args: Any, **how: Any) -> Any:
        try:
            return read(url, *args, **how)
        except OSError:
            if not _is_text(url):
                raise
            return Opened(_noted(counted, url))

    return opened


def _retrieving(read: Function, counted: Counted) -> Function:
    def retrieved(url: Any, filename: Any = None, *args: Any, **how: Any) -> Any:
        try:
            return read(url, filename, *args, **how)
        except OSError:
            if not _is_text(url) or filename is None:
                raise
            with open(filename, "wb") as file:
                file.write(_noted(counted, url))
            return os.fspath(filename), http.client.HTTPMessage()

    return retrieved


def _getting(read: Function, counted: Counted) -> Function:
    def got(url: Any, *args: Any, **how: Any) -> Any:
        try:
            return read(url, *args, **how)
        except OSError:  # a `requests.ConnectionError` is one
            if not _is_text(url):
                raise
            return Answer(_noted(counted, url))

    return got


class Opened(io.BytesIO):
    """What ``urlopen`` gives."""

    status = code = 200

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.headers = http.client.HTTPMessage()
        self.headers["Content-Length"] = str(len(content))

    def info(self) -> http.client.HTTPMessage:
        """The headers."""
        return self.headers


class Answer:
    """What ``requests.get`` gives."""

    status_code, ok, encoding = 200, True, "utf-8"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.text = content.decode()
        self.headers = {"content-length": str(len(content))}
        self.raw = io.BytesIO(content)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def raise_for_status(self) -> None:
        """Nothing went wrong."""

    def iter_content(self, chunk_size: int | None = None, **_: object) -> Iterator[bytes]:
        """The content, cut as ``requests`` cuts it."""
        size = chunk_size or len(self.content)
        yield from (self.content[at : at + size] for at in range(0, len(self.content), size))

    def iter_lines(self, **_: object) -> Iterator[bytes]:
        """The lines, without their ends."""
        yield from self.content.splitlines()
