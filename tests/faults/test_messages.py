"""Wrong messages to the language server; many more of them are one command in :mod:`tests.faults.messages`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.messages import Client, framed, talk


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("editor"))
    assert code(client, framed(request(1, "textDocument/hover", {}))) == (1, -32002)
    client.begin()
    yield client
    assert client.end() == 0
    client.kill()


def request(number: object, method: object, params: object, version: str = "2.0") -> dict[str, Any]:
    return {"jsonrpc": version, "id": number, "method": method, "params": params}


def code(client: Client, raw: bytes) -> tuple[object, int]:
    client.says(raw)
    answer = client.hears()
    assert answer["error"]["message"]
    return answer["id"], answer["error"]["code"]


WRONG = {
    "no JSON": (framed(b"{"), (None, -32700)),
    "no text": (framed(b"\xff"), (None, -32700)),
    "nested without end": (framed(b"[" * 100_000), (None, -32700)),
    "no object": (framed([request(1, "shutdown", None)]), (None, -32600)),
    "no message": (framed({}), (None, -32600)),
    "another version": (framed(request(2, "shutdown", None, "1.0")), (2, -32600)),
    "no method": (framed(request(3, 4, None)), (3, -32600)),
    "a number that is none": (framed(request([], "shutdown", None)), (None, -32600)),
    "a method that is none": (framed(request(5, "no/such", {})), (5, -32601)),
    "parameters that are none": (framed(request("a", "textDocument/hover", 3)), ("a", -32602)),
    "parameters of another kind": (framed(request(6, "textDocument/hover", {"x": 1})), (6, -32602)),
    "a notification with a number": (framed(request(7, "initialized", {})), (7, -32600)),
    "a second beginning": (framed(request(8, "initialize", {"capabilities": {}})), (8, -32600)),
    "no length": (b"Content-Length: many\r\n\r\n", (None, -32700)),
    "a length beyond all": (b"Content-Length: 999999999999\r\n\r\n", (None, -32700)),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", (None, -32700)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_is_answered(client: Client, name: str) -> None:
    raw, wanted = WRONG[name]
    assert code(client, raw) == wanted
    at = {"textDocument": {"uri": "file:///x.py"}, "position": {"line": 0, "character": 0}}
    assert "result" in client.asks("textDocument/hover", at)


def test_a_header_behind_rubbish(client: Client) -> None:
    client.says(b'Content-Length: x\r\n\r\n{"jsonrpc": "2.0"}' + framed(request(9, "no/such", {})))
    assert [client.hears()["id"], client.hears()["id"]] == [None, 9]


def test_after_the_end_a_request_is_refused(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.begin()
    client.asks("shutdown", None)
    assert code(client, framed(request(1, "textDocument/hover", {}))) == (1, -32600)
    assert client.end() == 0
    client.kill()


def test_what_no_editor_would_say(tmp_path: Path) -> None:
    assert talk(7, 80, tmp_path) == []
