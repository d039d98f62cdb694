"""What a script downloads by itself: where there is no network, a text or an archive of our own in its place, and
random weights.

Only names that end as plain text or as an archive are answered: what else a script downloads has a form that it knows
and we do not. An archive is empty; the files that the script then looks for are made up when it reads them.
"""

from __future__ import annotations

import functools
import http.client
import importlib
import io
import os
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from fsdp2lint.rehearse.fakes.imports import asked_by_the_program
from fsdp2lint.rehearse.fakes.texts import sentence
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

LINES = 4_000
ENDS = (".txt", ".text", ".md")
_ARCHIVES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}
_PASSING = ("urllib.request", "requests", "requests.api", "wget", "contextlib", "functools")


def install(counted: Counted) -> None:
    """Replace what Python has for downloads."""
    wrap(urllib.request, "urlopen", lambda read: _answering(read, counted, Opened))
    wrap(urllib.request, "urlretrieve", lambda read: _retrieving(read, counted))
    wrap(torch.hub, "load_state_dict_from_url", lambda load: _weights(load, counted))
    wrap(nn.Module, "load_state_dict", _loading)


def install_requests(counted: Counted) -> None:
    """The same of ``requests``."""
    package: Any = importlib.import_module("requests")
    wrap(package, "get", lambda read: _answering(read, counted, Answer))


class Weights(dict[str, Any]):
    """Weights that could not be had: a model that loads them keeps its own random ones."""

    def __missing__(self, key: str) -> Weights:
        return Weights()


def _weights(load: Function, counted: Counted) -> Function:
    def loaded(url: str, *args: Any, **how: Any) -> Any:
        try:
            return load(url, *args, **how)
        except OSError:
            counted.note(f"made up: {url}")
            return Weights()

    return loaded


def _loading(load: Function) -> Function:
    def loaded(self: nn.Module, state_dict: Any, *args: Any, **how: Any) -> Any:
        if isinstance(state_dict, Weights):
            return _IncompatibleKeys([], [])
        return load(self, state_dict, *args, **how)

    return loaded


@functools.cache
def text() -> bytes:
    """Some thousand lines."""
    return "".join(f"{sentence(number)}\n" for number in range(LINES)).encode()


def _content(counted: Counted, address: Any) -> bytes | None:
    """What an address gives, where its name says that."""
    said = getattr(address, "full_url", address)
    name = urlsplit(said).path.lower() if isinstance(said, str) else ""
    how = next((how for ending, how in _ARCHIVES.items() if name.endswith(ending)), None)
    archive = name.endswith(".zip") or how is not None
    if not name.endswith(ENDS) and not (archive and asked_by_the_program(_PASSING, depth=2)):
        return None
    counted.note(f"made up: {said}")
    if name.endswith(ENDS):
        return text()
    made = io.BytesIO()
    if how is None:
        zipfile.ZipFile(made, "w").close()
    else:
        with tarfile.open(fileobj=made, mode=how):  # type: ignore[call-overload]
            pass
    return made.getvalue()


def _answering(read: Function, counted: Counted, answer: Callable[[bytes], Any]) -> Function:
    def answered(url: Any, *args: Any, **how: Any) -> Any:
        try:
            return read(url, *args, **how)
        except OSError:  # a `requests.ConnectionError` is one
            content = _content(counted, url)
            if content is None:
                raise
            return answer(content)

    return answered


def _retrieving(read: Function, counted: Counted) -> Function:
    def retrieved(url: Any, filename: Any = None, *args: Any, **how: Any) -> Any:
        try:
            return read(url, filename, *args, **how)
        except OSError:
            content = None if filename is None else _content(counted, url)
            if content is None:
                raise
            with open(filename, "wb") as file:
                file.write(content)
            return os.fspath(filename), http.client.HTTPMessage()

    return retrieved


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
        self.text = content.decode("utf-8", "replace")
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
