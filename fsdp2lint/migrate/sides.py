"""FSDP1 and FSDP2 side by side: one text that trains either way, and each way alone again.

A statement that the migration left as it was is there once; the others are written in both forms, behind one setting:

    FSDP2 = os.environ.get("FSDP_VERSION") != "1"

Nothing but the setting decides, so that ``FSDP_VERSION=1`` runs the statements that ran before the migration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypeVar

import libcst as cst

from fsdp2lint.edits.apply import combine
from fsdp2lint.edits.import_lines import on_one_line
from fsdp2lint.edits.imports import AddImport, Unimport, name_for
from fsdp2lint.edits.imports.where import is_docstring, is_import
from fsdp2lint.edits.long_lines import broken_lines
from fsdp2lint.edits.names import Names, dotted, imported_module
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.migrate.engine import Migration

VARIABLE = "FSDP_VERSION"
"""The variable of the environment that chooses; Accelerate calls it so, too."""
_NAMES = ("FSDP2", "USE_FSDP2", "WITH_FSDP2", "_FSDP2", "_FSDP2_NOT_1")
_ASKS = f'environ.get("{VARIABLE}") != "1"'
_SAID = f"# {VARIABLE}=1 trains with FSDP1"

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Node = TypeVar("Node", bound=cst.CSTNode)
Import = tuple[str, str, str]
"""``from module import name as alias``; without a module ``import name as alias``."""


def side_by_side(old: Source, new: Source) -> str:
    """The text that does what ``new`` does, and what ``old`` does where the environment asks for FSDP1."""
    there = _setting_of(new)
    setting = there or _free_name(old, new)
    body = _Merging(old, new, setting).body()
    at = _place(body, setting)
    asked = any(_asks_for(line, setting) for line in body)  # else both can have all that there is
    if asked and not there:
        if at == 0:  # above a comment, which would be the file's own
            body.insert(0, cst.parse_statement("import os\n"))
            at = 1
        body.insert(at, _setting(setting))
        if at + 1 < len(body) and not body[at + 1].leading_lines:
            body[at + 1] = body[at + 1].with_changes(leading_lines=(cst.EmptyLine(indent=False),))
    merged = new.with_text(new.tree.with_changes(body=body).code)
    if not asked or there:
        return _edited(merged, [*_more_imports(old, merged)])
    environment = name_for(merged, merged.tree.body[at], "os", module=True)
    text = _edited(merged, [*environment.edits, *_more_imports(old, merged)])
    text = text.replace(f"{setting} = os.{_ASKS}", f"{setting} = {environment.text}.{_ASKS}")
    merged = new.with_text(text)
    return _edited(merged, list(broken_lines(new, merged)))


def fsdp2_sides(sources: Sequence[Source]) -> list[Source]:
    """The texts of a project without FSDP1 beside FSDP2."""
    return [
        one.with_text(one_side(one, fsdp2=True, shared=_is_shared(one, sources))) for one in sources
    ]


def both_ways(made: Migration, before: Sequence[Source], *, keep: bool) -> Migration:
    """A migration of the FSDP2 sides of files, as one of the files ``before``: with both sides if FSDP1 is to be kept.

    Notebooks and what is no Python have no sides.
    """
    after: list[Source] = []
    by_path = {one.path: one for one in before}
    for side, new in zip(made.before, made.after, strict=True):
        old = by_path.get(new.path)
        if keep and old is not None and side.text == new.text:
            new = old
        elif keep and old is not None and old.document is None:
            shared = _is_shared(old, before)
            was = old.with_text(one_side(old, fsdp2=False, shared=shared))
            new = old.with_text(side_by_side(was, new))
        after.append(new)
    whole = tuple(by_path.get(one.path, one).bare() for one in made.before)
    return replace(made, before=whole, after=tuple(after))


def one_side(source: Source, *, fsdp2: bool, shared: bool = False) -> str:
    """One way of a text that holds both; any other text as it is.

    What else asks for the setting stays, and the setting with it, as it does where others have the name (``shared``).
    """
    setting = _setting_of(source)
    if not setting:
        return source.text
    lines = [*_Choosing(setting, fsdp2).lines(source.tree)]
    if not shared and not any(
        _asks_for(line, setting) for line in lines if not _set_by(source.tree, line)
    ):
        lines = [line for line in lines if not _set_by(source.tree, line)]
    text = source.tree.with_changes(body=lines).code
    if not any(_set_by(source.tree, line) for line in lines):
        text = text.replace(f"{_SAID}\n", "")  # at the head of a file it is above all lines
    chosen = source.with_text(text)
    names, left = Names.of(source), Names.of(chosen)
    used = {one.loads for one in names.imports if names.used(one.name, one.scope)}
    idle = {one for one in left.imports if one.loads in used and not left.used(one.name, one.scope)}
    text = _edited(chosen, [Unimport(chosen, one.loads) for one in idle])
    shorter = {
        imported_module(one.statement) for one in idle if isinstance(one.statement, cst.ImportFrom)
    }
    chosen = chosen.with_text(text)
    layout = on_one_line(Source(source.path, ""), chosen)
    return _edited(chosen, [one for one in layout if imported_module(one.statement) in shorter])


def _is_shared(source: Source, sources: Sequence[Source]) -> bool:
    """Whether another file of a project has the setting of this one."""
    setting = _setting_of(source)
    uses = re.compile(rf"(\bimport\b[^\n]*\b|\.){setting}\b")
    return bool(setting) and any(
        uses.search(one.text) for one in sources if one.path != source.path
    )


def is_side_by_side(source: Source) -> bool:
    """Whether a text holds both ways."""
    setting = _setting_of(source)
    if not setting:
        return False
    lines = [*_Choosing(setting, True).lines(source.tree)]
    return source.tree.with_changes(body=lines).code != source.text


def _edited(source: Source, edits: Sequence[Edit]) -> str:
    return combine([[one] for one in edits]).texts.get(source, source.text)


def _free_name(*sources: Source) -> str:
    """A name for the setting that nothing in the texts binds or uses."""
    taken = {n.value for one in sources for n in walk(one.tree) if isinstance(n, cst.Name)}
    return next((name for name in _NAMES if name not in taken), _NAMES[-1])


def _setting_of(source: Source) -> str:
    """The name of the setting that a text decides by, empty where there is none."""
    if _ASKS not in source.text:
        return ""
    return next((name for one in source.tree.body if (name := _set_by(source.tree, one))), "")


def _set_by(tree: cst.Module, line: cst.CSTNode) -> str:
    if not isinstance(line, cst.SimpleStatementLine) or not isinstance(line.body[0], cst.Assign):
        return ""
    target = line.body[0].targets[0].target
    is_setting = tree.code_for_node(line.body[0].value).endswith(f".{_ASKS}")
    is_setting = is_setting and len(line.body) == 1
    known = isinstance(target, cst.Name) and target.value in _NAMES
    return target.value if is_setting and known and isinstance(target, cst.Name) else ""


def _setting(name: str) -> cst.SimpleStatementLine:
    line = cst.parse_statement(f"{_SAID}\n{name} = os.{_ASKS}\n")
    assert isinstance(line, cst.SimpleStatementLine)
    return line.with_changes(leading_lines=(cst.EmptyLine(indent=False), *line.leading_lines))


def _place(body: Sequence[Statement], setting: str) -> int:
    """Below the imports at the head of the file, and before the setting is asked for."""
    head = 0
    for index, line in enumerate(body):
        if _asks_for(line, setting):
            return min(head or index, index)
        if is_import(line) or (isinstance(line, cst.Try) and all(map(is_import, line.body.body))):
            head = index + 1
        elif head:
            break
    return head


def _asks_for(line: cst.CSTNode, setting: str) -> bool:
    return any(isinstance(node, cst.Name) and node.value == setting for node in walk(line))


def _imports(lines: Sequence[cst.CSTNode]) -> Iterator[Import]:
    """What import lines import; nothing for ``*``."""
    for line in lines:
        if not isinstance(line, cst.SimpleStatementLine) or not is_import(line):
            continue
        for small in line.body:
            assert isinstance(small, cst.Import | cst.ImportFrom)
            if not isinstance(small.names, cst.ImportStar):
                module = imported_module(small) if isinstance(small, cst.ImportFrom) else ""
                for one in small.names:
                    alias = dotted(one.asname.name) if one.asname is not None else ""
                    yield module, dotted(one.name), alias


def _binds(one: Import) -> str:
    module, name, alias = one
    return alias or (name if module else name.partition(".")[0])


def _more_imports(old: Source, merged: Source) -> Iterator[AddImport]:
    """What the old text imports and the merged one does not."""
    known = set(_imports(merged.tree.body))
    bound = Names.of(merged).bindings.get(merged.tree, {})
    for one in _imports(old.tree.body):
        if one not in known and (_binds(one) not in bound or not (one[0] or one[2])):
            yield AddImport(merged, merged.tree.body[-1], *one)


class _Merging:
    """Statements of two texts made those of one."""

    def __init__(self, old: Source, new: Source, setting: str) -> None:
        self.old, self.new = old.tree, new.tree
        self.setting = setting
        self.bound = Names.of(old).bindings.get(old.tree, {})
        """The names of the old module."""
        imports = [
            {_binds(one): one for one in _imports(tree.body)} for tree in (self.old, self.new)
        ]
        self.clashing = {
            name for name, one in imports[0].items() if imports[1].get(name, one) != one
        }
        """Names that either text imports from elsewhere."""

    def body(self) -> list[Statement]:
        """The lines of the merged module."""
        return self._lines(self.old, self.new)

    def _code(self, node: cst.CSTNode) -> str:
        """A node as it is written, without what is above it."""
        bare = node.with_changes(leading_lines=()) if hasattr(node, "leading_lines") else node
        return self.new.code_for_node(bare).strip()

    def _lines(
        self, before: cst.Module | cst.IndentedBlock, after: cst.Module | cst.IndentedBlock
    ) -> list[Statement]:
        """The lines of two blocks: what is in both is there once, the rest for its side."""
        top = isinstance(after, cst.Module)
        old, new = ([x for x in b.body if isinstance(x, Statement)] for b in (before, after))
        found: list[Statement] = []
        if old and new and is_docstring(old[0]) and is_docstring(new[0]):
            found, old, new = new[:1], old[1:], new[1:]
        keys = ([*map(self._key, old)], [*map(self._key, new)])
        was: list[Statement] = []
        becomes: list[Statement] = []
        for tag, i, k, j, n in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
            if tag != "equal":
                was += old[i:k]
                becomes += new[j:n]
                continue
            for one, other in zip(old[i:k], new[j:n], strict=True):
                merged = self._merged(one, other)
                if merged is None:
                    was.append(one)
                    becomes.append(other)
                else:
                    found += [*self._apart(was, becomes, top), merged]
                    was, becomes = [], []
        return [*found, *self._apart(was, becomes, top)]

    def _key(self, one: Statement) -> str:
        """What a statement is known by: its text, or its first line where the block below it may differ."""
        if isinstance(one, cst.FunctionDef | cst.ClassDef):
            return f"{type(one).__name__} {one.name.value}"
        if isinstance(one, cst.BaseCompoundStatement):
            return f"{type(one).__name__} {self._head(one)}"
        field = _field(one)
        if field is not None:  # what type it is said to have is no matter
            value = field.value
            return f"{self._code(field.target)}: {self._code(value) if value is not None else ''}"
        return self._code(one)

    def _head(self, one: cst.BaseCompoundStatement) -> str:
        """The first line of a compound statement, without its block."""
        if isinstance(one, cst.Match):
            return self._code(one)
        if isinstance(one, cst.Try | cst.TryStar):
            return ""
        nothing = cst.SimpleStatementSuite([cst.Pass()])
        bare = one.with_changes(leading_lines=(), body=nothing)
        return self._code(bare.with_changes(orelse=None) if hasattr(bare, "orelse") else bare)

    def _merged(self, old: cst.CSTNode, new: cst.CSTNode) -> Statement | None:
        """One statement for two; None where they differ in more than their blocks and tests."""
        if self._code(old) == self._code(new) or (_field(old) and _field(new)):
            assert isinstance(new, Statement)
            return new
        if type(old) is not type(new) or not isinstance(new, cst.BaseCompoundStatement):
            return None
        if isinstance(new, cst.FunctionDef) and (_declares(old) or _declares(new)):
            return None  # `global` is said once, before all uses
        changes: dict[str, object] = {}
        for part in ("body", "orelse", "finalbody"):
            if getattr(new, part, None) is not None or getattr(old, part, None) is not None:
                changes[part] = self._block(getattr(old, part), getattr(new, part))
        if isinstance(new, cst.Try) and isinstance(old, cst.Try):
            changes["handlers"] = self._handlers(old.handlers, new.handlers)
        if any(part is None for part in changes.values()) or not self._have_one_head(old, new):
            return None
        if isinstance(new, cst.If | cst.While) and isinstance(old, cst.If | cst.While):
            changes["test"] = self._either(old.test, new.test)
        return new.with_changes(**changes)

    def _have_one_head(self, old: cst.CSTNode, new: cst.BaseCompoundStatement) -> bool:
        """Whether the first lines of two compound statements are the same, but for tests and annotations."""
        if isinstance(new, cst.If | cst.While):
            return True
        if isinstance(new, cst.FunctionDef) and isinstance(old, cst.FunctionDef):
            decorators = [[*map(self._code, one.decorators)] for one in (old, new)]
            parameters = [[*self._parameters(one.params)] for one in (old, new)]
            return decorators[0] == decorators[1] and parameters[0] == parameters[1]
        assert isinstance(old, cst.BaseCompoundStatement)
        return self._head(old) == self._head(new)

    def _parameters(self, params: cst.Parameters) -> Iterator[tuple[str, str, str]]:
        """Kind, name and default of each parameter."""
        for node in walk(params):
            if isinstance(node, cst.Param):
                default = self._code(node.default) if node.default is not None else ""
                yield str(node.star), node.name.value, default
            elif isinstance(node, cst.ParamSlash | cst.ParamStar):
                yield type(node).__name__, "", ""

    def _block(self, old: cst.CSTNode | None, new: cst.CSTNode | None) -> cst.CSTNode | None:
        """One block, ``else`` or ``elif`` for two."""
        if old is None or new is None:
            return None
        if isinstance(new, cst.If):
            return self._merged(old, new)
        if isinstance(new, cst.Else | cst.Finally) and isinstance(old, type(new)):
            body = self._block(old.body, new.body)
            return None if body is None else new.with_changes(body=body)
        if isinstance(old, cst.IndentedBlock) and isinstance(new, cst.IndentedBlock):
            return new.with_changes(body=self._lines(old, new))
        return new if self._code(old) == self._code(new) else None

    def _handlers(
        self, old: Sequence[cst.ExceptHandler], new: Sequence[cst.ExceptHandler]
    ) -> list[cst.ExceptHandler] | None:
        bodies = [self._block(a.body, b.body) for a, b in zip(old, new, strict=False)]
        caught = [
            [(self._code(h.type) if h.type else "", h.name and self._code(h.name)) for h in one]
            for one in (old, new)
        ]
        if caught[0] != caught[1] or None in bodies:
            return None
        return [h.with_changes(body=body) for h, body in zip(new, bodies, strict=True)]

    def _either(self, old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
        if self._code(old) == self._code(new):
            return new
        return cst.IfExp(cst.Name(self.setting), _in_brackets(new), _in_brackets(old))

    def _apart(
        self, old: Sequence[Statement], new: Sequence[Statement], top: bool
    ) -> list[Statement]:
        """Statements of which each side has its own; what both can have is where the new side has it."""
        if len(old) == len(new):
            pairs = [*map(self._with_another_test, old, new)]
            if all(pairs):
                return [one for one in pairs if one is not None]
        theirs = [one for one in old if not self._is_free(one, top) and not _is_pass(one)]
        found: list[Statement] = []
        mine: list[Statement] = []
        for one in new:
            if self._is_free(one, top) or self._is_helper(one, top):
                found += [*self._choice(mine, []), one]
                mine = []
            elif not _is_pass(one):
                mine.append(one)
        return [*found, *self._choice(mine, theirs)] or [*new][:1]

    def _with_another_test(self, old: Statement, new: Statement) -> Statement | None:
        """One statement for two of which the test alone differs."""
        if not isinstance(old, cst.If | cst.While) or not isinstance(new, cst.If | cst.While):
            return None
        return self._merged(old, new) if self._code(old.body) == self._code(new.body) else None

    def _choice(
        self, mine: Sequence[Statement], theirs: Sequence[Statement]
    ) -> Iterator[Statement]:
        """Statements of FSDP2 and of FSDP1 behind the setting; nothing where there are none."""
        both = [[*one] for one in (mine, theirs) if one]
        if not both:
            return
        above = _shared_above([one[0] for one in both])
        sides = [cst.IndentedBlock([_below(one[0], above), *one[1:]]) for one in both]
        test: cst.BaseExpression = cst.Name(self.setting)
        if not mine:
            test = cst.UnaryOperation(cst.Not(), test)
        orelse = cst.Else(sides[1]) if len(sides) > 1 else None
        yield cst.If(test, sides[0], orelse, leading_lines=above)

    def _is_free(self, one: Statement, top: bool) -> bool:
        """Whether the other side may have a statement too: an import whose names mean nothing else there."""
        return top and is_import(one) and self.clashing.isdisjoint(map(_binds, _imports([one])))

    def _is_helper(self, one: Statement, top: bool) -> bool:
        """Whether a statement of the new side is a definition that the old side knows nothing of."""
        if not isinstance(one, cst.FunctionDef | cst.ClassDef) or one.decorators:
            return False
        return top and one.name.value not in self.bound


def _declares(function: cst.CSTNode) -> bool:
    return any(isinstance(node, cst.Global | cst.Nonlocal) for node in walk(function))


def _field(one: cst.CSTNode) -> cst.AnnAssign | None:
    """The annotation that a line is."""
    small = one.body[0] if isinstance(one, cst.SimpleStatementLine) else None
    return small if isinstance(small, cst.AnnAssign) else None


def _is_pass(one: Statement) -> bool:
    return isinstance(one, cst.SimpleStatementLine) and isinstance(one.body[0], cst.Pass)


def _shared_above(firsts: Sequence[Statement]) -> Sequence[cst.EmptyLine]:
    """The blank lines above what comes first, with the comments where those of all are the same."""
    said = [[line.comment and line.comment.value for line in one.leading_lines] for one in firsts]
    lines = list(firsts[0].leading_lines)
    if len(said) > 1 and all(one == said[0] for one in said):
        return lines
    return lines[: next((i for i, line in enumerate(lines) if line.comment), len(lines))]


def _below(one: Statement, above: Sequence[cst.EmptyLine]) -> Statement:
    """A statement without the lines that are above it already."""
    lines = list(one.leading_lines)
    gap = next((i for i, line in enumerate(lines) if line.comment), len(lines))
    taken = len(lines) if any(line.comment for line in above) else gap
    return one.with_changes(leading_lines=lines[taken:])


def _in_brackets(one: cst.BaseExpression) -> cst.BaseExpression:
    """An expression that can be one of a choice."""
    loose = isinstance(one, cst.IfExp | cst.Lambda | cst.NamedExpr) and not one.lpar
    if not loose:
        return one
    return one.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class _Choosing:
    """The lines of a text in which the setting is known."""

    def __init__(self, setting: str, fsdp2: bool) -> None:
        self.setting = setting
        self.fsdp2 = fsdp2

    def lines(self, block: cst.Module | cst.IndentedBlock) -> Iterator[cst.BaseStatement]:
        """The lines of a block that one side has."""
        for line in block.body:
            side = self._side(line)
            if side is None:
                yield self._inside(line)
            else:
                yield from side

    def _says(self, test: cst.BaseExpression) -> bool | None:
        """What a test comes to; None where it does not ask for the setting alone."""
        if isinstance(test, cst.Name) and test.value == self.setting:
            return self.fsdp2
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self._says(test.expression)
            return None if inner is None else not inner
        return None

    def _side(self, line: cst.BaseStatement) -> list[cst.BaseStatement] | None:
        """The lines of the side that is chosen; None for what was not written by :func:`side_by_side`."""
        if not isinstance(line, cst.If) or not isinstance(line.orelse, cst.Else | None):
            return None
        says = self._says(line.test)
        blocks = [line.body, *([line.orelse.body] if isinstance(line.orelse, cst.Else) else ())]
        if says is None or not all(isinstance(one, cst.IndentedBlock) for one in blocks):
            return None
        if not says and len(blocks) == 1:
            return []
        first, *rest = (one for one in blocks[0 if says else 1].body)
        above = [*line.leading_lines, *getattr(first, "leading_lines", ())]
        return [_as_line(first).with_changes(leading_lines=above), *map(_as_line, rest)]

    def _inside(self, node: Node) -> Node:
        """A statement, or a part of one, with one side of the blocks in it."""
        changes: dict[str, object] = {}
        body, test = getattr(node, "body", None), getattr(node, "test", None)
        if isinstance(body, cst.IndentedBlock):
            lines = [*self.lines(body)] or [cst.SimpleStatementLine([cst.Pass()])]
            changes["body"] = body.with_changes(body=lines)
        if isinstance(test, cst.IfExp) and (says := self._says(test.test)) is not None:
            changes["test"] = test.body if says else test.orelse
        for part in ("orelse", "finalbody"):
            if (one := getattr(node, part, None)) is not None:
                changes[part] = self._inside(one)
        for part in ("handlers", "cases"):
            if one := getattr(node, part, None):
                changes[part] = [*map(self._inside, one)]
        return node.with_changes(**changes) if changes else node


def _as_line(one: cst.BaseStatement | cst.BaseSmallStatement) -> cst.BaseStatement:
    return one if isinstance(one, cst.BaseStatement) else cst.SimpleStatementLine([one])
