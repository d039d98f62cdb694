"""``fsdp2lint server``."""

from __future__ import annotations

import gc
import os
import sys
from typing import BinaryIO, cast

import click


@click.command("server", short_help="Start the language server for editors.")
@click.option(
    "--stdio", is_flag=True, help="Speak on standard input and output; there is no other way."
)
def command(stdio: bool) -> int:
    """Speak the language server protocol on standard input and output, for editors.

    Exit code: 0 after a clean LSP shutdown, 1 if the client disconnected.
    Needs the extra `lsp`: pip install 'fsdp2lint[lsp]'.
    """
    try:
        import pygls.lsp.server  # noqa: F401  the extra, and not a part of ours, is what may be missing
    except ImportError as error:
        said = "the server needs pygls 2: pip install 'fsdp2lint[lsp]'"
        raise click.ClickException(said) from error
    from fsdp2lint.server.app import make
    from fsdp2lint.server.protocol import Frames

    gc.enable()  # it lives longer than one run
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr  # whatever is printed must not get into the protocol
    server = make()
    server.start_io(cast("BinaryIO", Frames(sys.stdin.buffer)), output)
    return 0 if server.dismissed else 1
