"""Say to the language server what no editor would: each wrong message is answered, and the server goes on.

``python -m tests.faults.messages`` sends 5,000 messages to servers, 250 to each; ``--messages N``, ``--seed N``.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tests.faults.inputs import MODERN, ODD, PIECES
from tests.support.running import ROOT

WAIT = 600.0
TO_EACH = 250
"""Messages that one server gets."""


class Message(NamedTuple):
    """Bytes on the wire, and the number of the answer that must come: None where no number could be read."""

    raw: bytes
    answer: str | int | None = None
    answered: bool = True


class Client:
    """A server, and what it answers."""

    def __init__(self, folder: Path, *, installed: bool = False) -> None:
        begin = (
            f"import sys; sys.path[0] = {str(ROOT)!r}; from fsdp2lint.__main__ import main; main()"
        )
        self._server = subprocess.Popen(
            [sys.executable, *(("-c", begin) if installed else ("-m", "fsdp2lint")), "server"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._input, self._answers = self._server.stdin, queue.Queue[dict[str, Any]]()
        threading.Thread(target=self._hear, args=(self._server.stdout,), daemon=True).start()

    def begin(self, root: Path | None = None) -> None:
        """The first words of an editor."""
        uri = None if root is None else root.as_uri()
        asked: dict[str, Any] = {"processId": None, "rootUri": uri, "capabilities": {}}
        assert "result" in self.asks("initialize", asked)
        self.says(framed({"jsonrpc": "2.0", "method": "initialized", "params": {}}))

    def says(self, raw: bytes) -> None:
        """Bytes, as they are."""
        self._input.write(raw)
        self._input.flush()

    def hears(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            queue.Empty: none comes.
        """
        return self._answers.get(timeout=WAIT)

    def asks(self, method: str, params: object, number: str = "asked") -> dict[str, Any]:
        """A request that is as it should be, and its answer."""
        self.says(framed({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        while (answer := self.hears())["id"] != number:
            pass
        return answer

    def end(self) -> int:
        """As the protocol asks; the exit code."""
        self.asks("shutdown", None, "shutdown")
        self.says(framed({"jsonrpc": "2.0", "method": "exit"}))
        return self._server.wait(WAIT)

    def kill(self) -> None:
        """However it is."""
        self._server.kill()
        self._server.wait()

    def _hear(self, output: BinaryIO) -> None:
        while True:
            size = 0
            while line := output.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            if not size:
                return
            message = json.loads(output.read(size))
            if "method" not in message:
                self._answers.put(message)


def framed(message: object) -> bytes:
    """A message with its header."""
    raw = message if isinstance(message, bytes) else json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(raw), raw)


# -- wrong messages ---------------------------------------------------------------------------------------------------

_METHODS = (
    "initialize", "initialized", "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose", "textDocument/didSave",
    "textDocument/codeAction", "codeAction/resolve", "textDocument/hover", "workspace/didChangeConfiguration",
    "workspace/didChangeWatchedFiles", "notebookDocument/didOpen", "notebookDocument/didChange", "notebookDocument/didClose",
    "workspace/executeCommand", "workspace/didChangeWorkspaceFolders", "$/cancelRequest", "$/setTrace", "no/such", "", "é\n",
)  # fmt: skip
_URIS = (
    "file:///x/train.py",
    "untitled:a",
    "",
    "file://[",
    "http://x/y?z",
    "file:///%00.py",
    "é",
    "file:///x.ipynb",
    3,
    None,
)
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, "", "x", "\ud800", [], {}, [[[[]]]], {"uri": 3}, {"jsonrpc": "2.0", "id": 3, "method": "shutdown"},
    {"jsonrpc": "2.0"}, *PIECES[:5], *ODD[:6],
)  # fmt: skip
_WHOLE: tuple[Any, ...] = (
    [], {}, 3, "x", None, True, [{"jsonrpc": "2.0", "id": 1, "method": "no/such"}], {"id": 7}, {"jsonrpc": "1.0", "id": 8, "method": "x"},
    {"jsonrpc": "2.0", "id": 9}, {"jsonrpc": "2.0", "id": 10, "method": 3}, {"jsonrpc": "2.0", "id": 11, "method": "x", "params": 5},
    {"jsonrpc": "2.0", "id": None, "method": "textDocument/hover"}, {"jsonrpc": "2.0", "id": 1.5, "method": "x"},
    {"jsonrpc": "2.0", "id": [], "method": "x"}, {"method": "textDocument/hover", "id": 12, "params": {}},
)  # fmt: skip
_RAW = (
    b"", b"{", b"\xff\xfe", b"nonsense", b'{"jsonrpc": "2.0", "id": 1', b"[" * 100_000, b'{"id":' + b"9" * 5_000 + b"}", b"\x00" * 9,
)  # fmt: skip
_FRAMES = (
    b"Content-Length: x\r\n\r\n", b"Content-Length: -5\r\n\r\n", b"Content-Length: 0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"Content-Length: 999999999999\r\n\r\n", b"nonsense\r\n\r\n", b"\r\n\r\n: \r\n\r\n",
)  # fmt: skip


def wrong(random_: random.Random, number: int) -> Message:
    """A message that is wrong somewhere, or only strange."""
    kind = random_.randrange(10)
    if kind == 0:
        return Message(framed(random_.choice(_RAW)))
    if kind == 1:
        return Message(random_.choice(_FRAMES))
    if kind == 2:
        whole = random_.choice(_WHOLE)
        known = whole.get("id") if isinstance(whole, dict) else None
        return Message(framed(whole), known if isinstance(known, int) else None)
    message = {"jsonrpc": "2.0", "method": random_.choice(_METHODS), "params": _params(random_)}
    if random_.random() < 0.6:
        message["id"] = number
    if random_.random() < 0.1:
        del message["params"]
    return Message(framed(message), number, "id" in message)


def _params(random_: random.Random) -> Any:
    if random_.random() < 0.2:
        return random_.choice(_VALUES)
    uri = random_.choice(_URIS)
    text = random_.choice(MODERN) + random_.choice(ODD[:-8])
    params: dict[str, Any] = {
        "textDocument": {"uri": uri, "languageId": "python", "version": random_.choice([1, -3, None]), "text": text},
        "notebookDocument": {"uri": uri, "notebookType": "jupyter-notebook", "version": 1, "cells": [{"kind": 2, "document": uri}]},
        "cellTextDocuments": [{"uri": uri, "languageId": "python", "version": 1, "text": text}],
        "position": {"line": random_.choice([0, 99, -1, 2**31, 2**70]), "character": random_.choice([0, 10**9, -1])},
        "range": {"start": {"line": 0, "character": 0}, "end": {"line": 10**9, "character": 0}},
        "context": {"diagnostics": [], "only": random_.choice([None, [], ["source.fixAll"], [3]])},
        "contentChanges": [{"text": text}],
        "settings": random_.choice([*_VALUES, {"fsdp2lint": {"select": [3]}}, {"select": ["ALL"], "target-torch": "x"}]),
        "changes": [{"uri": uri, "type": 1}],
        "event": {"added": [], "removed": []},
        "title": "x",
        "data": {"uri": uri},
        "id": random_.choice([1, "x", None]),
        "value": "off",
        "capabilities": {},
        "command": "x",
    }  # fmt: skip
    for key in random_.sample(sorted(params), random_.randrange(3)):
        params[key] = random_.choice(_VALUES)
    for key in random_.sample(sorted(params), random_.randrange(2)):
        del params[key]
    return params


def talk(seed: int, count: int, folder: Path) -> list[str]:
    """Say so many messages to one server; what was wrong with its answers."""
    random_ = random.Random(seed)
    client = Client(folder)
    try:
        client.begin()
        said = [wrong(random_, 1000 + n) for n in range(count)]
        for message in said:
            client.says(message.raw)
        waited = [one.answer for one in said if one.answered]
        try:
            while waited:
                answer = client.hears()
                if answer["id"] not in waited:
                    return [f"seed {seed}: an answer to nothing: {answer}"]
                waited.remove(answer["id"])
                if "error" in answer and not (
                    answer["error"]["message"] and answer["error"]["code"]
                ):
                    return [f"seed {seed}: an error without words: {answer}"]
        except queue.Empty:
            raws = [m.raw[:300] for m in said if m.answered and m.answer in waited]
            return [
                f"seed {seed}: {len(waited)} of {count} are not answered: {waited[:9]} {raws[:3]}"
            ]
        end = client.end()
        return [] if end == 0 else [f"seed {seed}: exit code {end}"]
    finally:
        client.kill()


def main() -> int:
    """Talk to servers and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad: list[str] = []
    started = time.monotonic()
    for n in range(-(-given.messages // TO_EACH)):
        with tempfile.TemporaryDirectory(prefix="fsdp2lint-messages-") as folder:
            bad += talk(given.seed + n, min(TO_EACH, given.messages), Path(folder))
    for line in bad:
        print(line)
    print(
        f"{given.messages} messages, {len(bad)} servers that failed, {time.monotonic() - started:.0f} s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
