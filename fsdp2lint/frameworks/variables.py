"""Variables of shell scripts and Makefiles, as far as the file itself sets them: commands are often built of them.

``LAUNCHER="accelerate launch --config_file fsdp.yaml"`` and ``srun bash -c "$LAUNCHER $PROGRAM"`` become one line.
"""

from __future__ import annotations

import re

MAX_VALUE = 4_000
"""A command is shorter."""
_MAX_TEXT = 1_000_000
_ROUNDS = 4
"""How deep variables are looked for within the values of others."""

_CONTINUED = re.compile(r"\\\r?\n")
_PIECES = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'()|&;#]+)+"""
_IN_SHELL = re.compile(
    rf"^[ \t]*(?:(?:export|local|readonly|declare|set)[ \t]+(?:-\w+[ \t]+)*)?"
    rf"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>\((?:[^()]|\$\([^()]*\))*\)|{_PIECES}|)",
    re.MULTILINE,
)
_IN_MAKE = re.compile(
    r"^(?P<name>[A-Za-z_][\w-]*)[ \t]*(?:[:?]{0,2}|(?P<more>\+))=[ \t]*(?P<value>[^\n#]*)",
    re.MULTILINE,
)
_PIECE = re.compile(r"""\\(.)|["']""")
_SHELL_USE = re.compile(
    r"""(?<!\\)\$(?:\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))"""
)
_MAKE_USE = re.compile(r"\$[({](?P<name>[\w-]+)[)}]")


def expanded(text: str, path: str) -> str:
    """The text of a file with its own variables filled in; those that it sets differently in two places stay."""
    make = path.endswith((".mk", "Makefile"))
    text = _CONTINUED.sub(" ", text)
    known = _set_in(text, _IN_MAKE if make else _IN_SHELL)
    for _ in range(_ROUNDS if "$" in text else 0):
        new = (_MAKE_USE if make else _SHELL_USE).sub(lambda use: _filled_in(use, known), text)
        if new == text or len(new) > _MAX_TEXT:
            break
        text = new
    return text


def _set_in(text: str, assignment: re.Pattern[str]) -> dict[str, str]:
    """The variables that have one value; what is appended to them comes behind it."""
    values: dict[str, set[str]] = {}
    added: dict[str, list[str]] = {}
    for found in assignment.finditer(text):
        value = _value(found["value"])
        if found["more"]:
            added.setdefault(found["name"], []).append(value)
        else:
            values.setdefault(found["name"], set()).add(value)
    known = {name: of.pop() for name, of in values.items() if len(of) == 1}
    whole = {name: " ".join((value, *added.get(name, ()))) for name, value in known.items()}
    return {name: value for name, value in whole.items() if _is_written_out(value)}


def _is_written_out(value: str) -> bool:
    """Whether no other command makes a value: ``$(…)`` is cut at its parenthesis."""
    return len(value) <= MAX_VALUE and "`" not in value and not value.endswith("$")


def _value(written: str) -> str:
    """What a word or an array means, on one line and without quotes."""
    inner = written[1:-1] if written.startswith("(") else written
    return " ".join(_PIECE.sub(r"\1", inner).split())


def _filled_in(use: re.Match[str], known: dict[str, str]) -> str:
    """The value of a variable where it is used, or the default that stands there."""
    parts = use.groupdict()
    name = parts.get("name") or parts.get("bare") or ""
    if name in known:
        return known[name]
    default = parts.get("default")
    return use[0] if default is None else _value(default)
