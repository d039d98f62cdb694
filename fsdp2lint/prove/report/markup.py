"""HTML that is safe by construction: text is escaped unless it was built here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"meta", "input", "br", "path", "line", "rect", "circle"})
"""Elements without content, of HTML and of SVG; the latter are closed in their own tag."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[Markup]


def tag(element: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element; ``class_`` and ``data_of`` become ``class`` and ``data-of``, None and False go away."""
    given = "".join(_attribute(name, value) for name, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{element}{given}/>")
    return Markup(f"<{element}{given}>{join(*children)}</{element}>")


def join(*children: Child) -> Markup:
    """The children one after the other."""
    return Markup("".join(map(_html, children)))


def prose(text: str) -> Markup:
    """Text in which what is between backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return join(text)
    return join(*(tag("code", part) if n % 2 else part for n, part in enumerate(parts)))


def raw(text: str) -> Markup:
    """Text of our own that is no HTML to escape: a style sheet or a script."""
    return Markup(text)


def _html(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child, quote=False)
    return "".join(map(_html, child))


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f' {name}=""'
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'
