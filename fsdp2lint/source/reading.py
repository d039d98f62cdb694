"""From the bytes of a file to its source: Python, a notebook, settings or commands."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

from fsdp2lint.source.source import NOTEBOOK, Source, Unreadable
from fsdp2lint.system.files import SETTINGS, TEXTS
from fsdp2lint.system.files import read as read_bytes


def read(path: Path | str, shown: str | None = None) -> Source:
    """Read and decode a file (PEP 263 encodings, byte order mark).

    Raises:
        Unreadable: the file cannot be opened or decoded.
    """
    try:
        raw = read_bytes(str(path))
    except OSError as error:
        raise Unreadable(f"cannot read the file: {error.strerror or error}") from error
    return decode(raw, shown or str(path))


def decode(raw: bytes, shown: str) -> Source:
    """Decode the bytes of a file named ``shown``.

    Raises:
        Unreadable: unknown or broken encoding, a binary file, or a broken notebook.
    """
    if shown.endswith(NOTEBOOK):
        from fsdp2lint.source.documents.notebook import notebook

        return notebook(raw, shown)
    if b"\0" in raw:
        raise Unreadable("not Python source: the file holds NUL bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unreadable(f"cannot decode the file: {error}") from error
    bom = encoding == "utf-8-sig"
    kind: type[Source] = Source
    if shown.endswith(TEXTS):
        from fsdp2lint.frameworks.text import CommandText, SettingsText

        kind = SettingsText if shown.endswith(SETTINGS) else CommandText
    return kind(shown, text, encoding="utf-8" if bom else encoding, bom=bom)
