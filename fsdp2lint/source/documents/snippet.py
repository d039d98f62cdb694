"""A program that is part of a document, as the bytes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.source.reading import decode

if TYPE_CHECKING:
    from fsdp2lint.source.documents.markdown import Markdown
    from fsdp2lint.source.source import Source


class Snippet(bytes):
    """The bytes, which know where they come from."""

    document: Markdown

    @property
    def line(self) -> int:
        """The line of the document on which it begins: messages name lines."""
        return self.document.block.first

    @property
    def source(self) -> Source:
        """The program, which knows it too."""
        made = decode(self, self.document.whole.path)
        made.document = self.document
        return made
