"""A settings file as text: its mappings, lists and scalars, each with the span that it takes.

YAML is read by the parser that the frameworks use themselves (PyYAML), JSON too: nearly all of it is YAML.
Nothing is written by a serializer: what changes is a span of the text, so that comments, order, quotes and
anchors stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp2lint.system.files import COMMANDS

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source

MAX_CHARACTERS = 1_000_000
MAX_NODES = 50_000
"""A settings file is smaller; the parser takes seconds for more."""

ASKING = (
    b"fsdp_config",
    b"fsdp:",
    b'"fsdp"',
    b"'fsdp'",
    b"FSDP",
    b"fsdp_version",
    b"strategy: fsdp",
    b"fsdp2",
    b"ModelParallelStrategy",
)
"""Settings that ask for FSDP hold one of these, or they hold :data:`ALONE`."""

ALONE = (
    b"layer_cls_to_wrap",
    b"cpu_ram_efficient_loading",
    b"use_orig_params",
    b"backward_prefetch",
)
"""What a file of nothing but FSDP's settings holds."""

_KEY = re.compile(
    r"""(?:^|[{,])\s*["']?(?:fsdp(?:_config|_version)?["']?\s*:|distributed_type["']?\s*:\s*["']?FSDP\b)""",
    re.MULTILINE,
)


def may_ask(raw: bytes, path: str) -> bool:
    """Whether the bytes of a file may be settings or commands that ask for FSDP."""
    if len(raw) > MAX_CHARACTERS:
        return False
    if path.endswith(COMMANDS):
        return b"--" in raw and b"fsdp" in raw.lower()
    return any(word in raw for word in (*ASKING, *ALONE))


def seems_to_ask(text: str) -> bool:
    """Whether a file that cannot be read has a line that asks for FSDP."""
    return _KEY.search(text) is not None


_TEMPLATE = re.compile(r"\{\{|\{%")


class NotSettings(Exception):
    """A file cannot be read as settings: why, and on which line."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Something in the text between two offsets."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Scalar(Node):
    """A word, with the value that the frameworks read."""

    value: Any
    quoted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Listing(Node):
    """A list; ``flow`` when it is in brackets."""

    items: tuple[Node, ...]
    flow: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A key with what it is set to."""

    key: Scalar
    value: Node

    @property
    def name(self) -> str:
        """The key as text."""
        return str(self.key.value)


@dataclass(frozen=True, slots=True, eq=False)
class Mapping(Node):
    """Keys and values, in their order; ``flow`` when they are in braces.

    ``merged`` when some come from elsewhere (``<<: *other``), ``shared`` when other places refer to it.
    """

    entries: tuple[Entry, ...]
    flow: bool
    merged: bool = False
    shared: bool = False

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def get(self, name: str) -> Entry | None:
        """The entry of a key: the last one, which is the one that counts."""
        return next((e for e in reversed(self.entries) if e.name == name), None)

    def value(self, name: str) -> Any:
        """What a key is set to: a scalar's value, a list of them, a mapping; None when there is no such key."""
        entry = self.get(name)
        return None if entry is None else plain(entry.value)


def plain(node: Node) -> Any:
    """The value of a scalar, the values of a list; a mapping stays one."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return node


def end_of(node: Node) -> int:
    """Where the last word of a node ends: a block of YAML takes the blank lines and comments behind it too."""
    if isinstance(node, Listing) and node.items:
        return node.end if node.flow else end_of(node.items[-1])
    if isinstance(node, Mapping) and node.entries and not node.flow:
        return end_of(node.entries[-1].value)
    return node.end


def read(source: Source) -> Mapping:
    """The mapping that a settings file is.

    Raises:
        NotSettings: it is none, or cannot be read.
    """
    text = source.text
    if len(text) > MAX_CHARACTERS:
        raise NotSettings(
            f"too large for a settings file: {len(text) / 1e6:.1f} million characters"
        )
    if source.path.endswith(".json"):
        _strictly(text)
        text = text.replace("\t", " ")  # no indentation for YAML; offsets stay
    found = _Reader(text).document()
    if not isinstance(found, Mapping):
        raise NotSettings("the file is no mapping of keys to values")
    return found


def _strictly(text: str) -> None:
    """Refuse what the json module refuses."""
    try:
        json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise NotSettings(f"no valid JSON: {getattr(error, 'msg', error)}", line) from error
    except RecursionError as error:
        raise NotSettings("nested too deeply") from error


class _Reader:
    """Makes nodes of PyYAML's; what an alias refers to is made once."""

    def __init__(self, text: str) -> None:
        import yaml

        self._yaml = yaml
        self.text = text
        self._values = yaml.constructor.SafeConstructor()
        self._made: dict[int, Node] = {}
        self._met: dict[int, int] = {}

    def document(self) -> Node:
        yaml = self._yaml
        try:
            loader = yaml.SafeLoader(self.text)
        except yaml.reader.ReaderError as error:  # a control character
            line = self.text.count("\n", 0, error.position) + 1
            raise NotSettings(f"no valid YAML: {error.reason}", line) from error
        try:
            root = loader.get_single_node()
        except yaml.YAMLError as error:
            raise self._refused(error) from error
        except RecursionError as error:
            raise NotSettings("nested too deeply") from error
        finally:
            loader.dispose()
        if root is None:
            raise NotSettings("the file is empty")
        self._count(root)
        return self._node(root)

    def _refused(self, error: Any) -> NotSettings:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = 1 if mark is None else mark.line + 1
        if _TEMPLATE.search(self.text):
            return NotSettings("a template (`{{ … }}`): render it first", line)
        if "single document" in str(getattr(error, "context", "")):
            return NotSettings(
                "more than one YAML document: accelerate and the others read only one", line
            )
        why = str(getattr(error, "problem", None) or error).splitlines()[0]
        return NotSettings(f"no valid YAML: {why}", line)

    def _count(self, root: Any) -> None:
        """How often each node is referred to; iterative, as aliases can lead in a circle."""
        pending = [root]
        while pending:
            node = pending.pop()
            self._met[id(node)] = self._met.get(id(node), 0) + 1
            if self._met[id(node)] > 1 or isinstance(node.value, str):
                continue
            if len(self._met) > MAX_NODES:
                raise NotSettings("too many entries for a settings file")
            for one in node.value:
                pending += one if isinstance(one, tuple) else [one]

    def _node(self, node: Any) -> Node:
        known = self._made.get(id(node))
        if known is None:
            start, end = node.start_mark.index, node.end_mark.index
            self._made[id(node)] = Scalar(
                start, end, None
            )  # for an alias inside of what it refers to
            known = self._made[id(node)] = self._fresh(node, start, end)
        return known

    def _fresh(self, node: Any, start: int, end: int) -> Node:
        yaml = self._yaml
        if isinstance(node, yaml.SequenceNode):
            items = tuple(self._node(one) for one in node.value)
            return Listing(start, end, items, bool(node.flow_style))
        if not isinstance(node, yaml.MappingNode):
            return Scalar(start, end, self._value(node), node.style in ("'", '"'))
        entries = []
        merged = False
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            merged = merged or key.tag.endswith(":merge")
            name = self._node(key)
            assert isinstance(name, Scalar)
            entries.append(Entry(name, self._node(value)))
        shared = self._met.get(id(node), 0) > 1
        return Mapping(start, end, tuple(entries), bool(node.flow_style), merged, shared)

    def _value(self, node: Any) -> Any:
        if node.tag.endswith((":bool", ":int", ":float", ":null")):
            try:
                return self._values.construct_object(node)
            except (self._yaml.YAMLError, ValueError):
                pass
        return node.value
