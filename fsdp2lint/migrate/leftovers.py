"""What no codemod accounted for: imports by what became of their uses, the rest by the table of symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from textwrap import dedent, indent

import libcst as cst

from fsdp2lint.ask.inventory import Occurrence, imports, inventory
from fsdp2lint.ask.program import Program
from fsdp2lint.edits.imports import Unimport
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Names, dotted, scope_of
from fsdp2lint.edits.statements import InsertBefore, Remove
from fsdp2lint.edits.steps import Step
from fsdp2lint.edits.text import Edit, Splice
from fsdp2lint.meanings import fsdp1_symbols as facts
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.migrate.ledger import Entry, Ledger, Todo, place
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk

MARK = "# TODO(fsdp2lint): "
TOGETHER = 3
"""Statements that begin so many lines apart, at the most, share a comment that says the same."""
WRAPPER = "FullyShardedDataParallel"
FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
_ASKING = ("state_dict_type", "set_state_dict_type")
"""What reads kinds and configurations of state dicts."""


def unused_imports(program: Program) -> Iterator[Step]:
    """Removals of the imports that nothing uses any more, here or in a file that takes them from here."""
    taken = _taken_from_elsewhere(program)
    for one in imports(program):
        if (one.source, _local_name(one)) in taken:
            continue
        target = next(i for i in Names.of(one.source).imports if i.alias is one.node)
        name = canonical(program.origin(one.source, target.loads, target.statement))
        if name not in facts.FRAMEWORKS:  # what is a framework's was unused before, too
            yield Step((Unimport(one.source, target.loads),), ())


def idle_imports(program: Program, pairs: Iterable[tuple[Source, Source]]) -> Iterator[Step]:
    """Removals of the imports that nothing uses any more since the migration, or that came with it for nothing.

    ``pairs`` are the files as they were and as they are.
    """
    taken = _taken_from_elsewhere(program)
    for old, new in pairs:
        if old.text == new.text:
            continue
        names = Names.of(old)
        idle = {
            (one.loads, one.name) for one in names.imports if not names.used(one.name, one.scope)
        }
        for one in Names.of(new).imports:
            if (one.loads, one.name) not in idle and (new, one.name) not in taken:
                yield Step((Unimport(new, one.loads),), ())


def idle_tests(pairs: Iterable[tuple[Source, Source]]) -> Iterator[Step]:
    """Removals of each ``if``, and of each last branch of one, in which the migration left nothing but ``pass``,
    and of each choice whose two sides it made the same.

    ``pairs`` are the files as they were and as they are.
    """
    for old, new in pairs:
        if old.text != new.text:
            before = Counter(said for said, _ in _idle_tests(old))
            for said, edit in _idle_tests(new):
                if before[said] > 0:
                    before[said] -= 1
                else:
                    yield Step((edit,), ())


def long_pairs(pairs: Iterable[tuple[Source, Source]]) -> Iterator[Step]:
    """``a, b = one(…), other(…)`` that the migration has made longer than a line becomes an assignment for each name.

    ``pairs`` are the files as they were and as they are.
    """
    for old, new in pairs:
        if old.text != new.text:
            before = {said for said, _ in _pairs_on_lines(old)}
            yield from (Step((e,), ()) for said, e in _pairs_on_lines(new) if said not in before)


def _pairs_on_lines(source: Source) -> Iterator[tuple[str, Edit]]:
    """Each assignment of several values to names that takes more than a line: its names, and how it falls apart."""
    layout = Layout.of(source)
    for node in walk(source.tree):
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0].target, node.value
        line = layout.parents[node]
        if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Tuple) or value.lpar:
            continue
        names = [one.value.value for one in target.elements if isinstance(one.value, cst.Name)]
        values = [one.value for one in value.elements]
        read = [{n.value for n in walk(one) if isinstance(n, cst.Name)} for one in values]
        apart = len(names) == len(target.elements) == len(values) == len(set(names))
        waits = any(name in later for i, name in enumerate(names) for later in read[i + 1 :])
        start, end = layout.span(node)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if apart and alone and not waits and "\n" in layout.text[start:end]:
            texts = (layout.text[slice(*layout.whole(one))] for one in values)
            lines = (f"{name} = {text}" for name, text in zip(names, texts, strict=True))
            said = (layout.newline + layout.indentation(line)).join(lines)
            yield ", ".join(names), Splice(source, start, end, said)


def _idle_tests(source: Source) -> Iterator[tuple[str, Edit]]:
    yield from _empty_branches(source)
    yield from _equal_sides(source)


def _equal_sides(source: Source) -> Iterator[tuple[str, Edit]]:
    """Each choice between two equal sides by a test without effects: what it is known by, and its side alone."""
    layout = Layout.of(source)
    for node in walk(source.tree):
        if isinstance(node, cst.IfExp):
            same = source.code(node.body) == source.code(node.orelse)
            if same and not any(map(_acts, walk(node.test))):
                simple = isinstance(node.body, cst.Name | cst.Attribute | cst.Call)
                start, end = layout.whole(node) if simple else layout.span(node)
                yield (
                    f"sides of {source.code(node.test)}",
                    Splice(source, start, end, source.code(node.body)),
                )
        elif isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
            first, last = (_lines(layout, one.body) for one in (node, node.orelse))
            is_elif = isinstance(layout.parents.get(node), cst.If)
            if first and first == last and not is_elif and not any(map(_acts, walk(node.test))):
                start, end = layout.top(node), layout.bottom(node.orelse)
                text = indent(first, layout.indentation(node))
                yield f"branches of {source.code(node.test)}", Splice(source, start, end, text)


def _lines(layout: Layout, body: cst.BaseSuite) -> str:
    """The lines of a block as they would be at the top of a file; empty where they cannot be moved as text."""
    if not isinstance(body, cst.IndentedBlock) or any(
        isinstance(one, cst.SimpleString) and len(one.quote) > 1 for one in walk(body)
    ):
        return ""
    text = layout.text[layout.comments_above(body.body[0]) : layout.bottom(body.body[-1])]
    return dedent(text)


def _empty_branches(source: Source) -> Iterator[tuple[str, Edit]]:
    """Each ``if`` or last branch that does nothing, whatever its test says: what it is known by, and how it goes."""
    layout = Layout.of(source)
    for node in walk(source.tree):
        if not isinstance(node, cst.If) or isinstance(layout.parents.get(node), cst.If):
            continue
        branches: list[cst.If | cst.Else] = [node]
        while isinstance(branches[-1], cst.If) and branches[-1].orelse is not None:
            branches.append(branches[-1].orelse)
        tests = [one.test for one in branches if isinstance(one, cst.If)]
        last = branches[-1]
        if all(_does_nothing(source, one) for one in branches):
            if not any(map(_acts, (part for test in tests for part in walk(test)))):
                yield source.code(node.test), Remove(source, node, comments="lone")
        elif _does_nothing(source, last) and len(branches) > 1:
            if isinstance(last, cst.Else) or not any(map(_acts, walk(last.test))):
                start, end = layout.top(last), layout.bottom(last)
                yield f"else of {source.code(tests[-1])}", Splice(source, start, end, "")


def _does_nothing(source: Source, branch: cst.If | cst.Else) -> bool:
    """Whether a branch holds nothing but ``pass``: no comment either."""
    layout = Layout.of(source)
    start, end = layout.span(branch.body)
    if source.text[start:end].strip().lstrip(":").strip() != "pass":
        return False
    first = branch.body.body[0]
    return layout.comments_above(first) == layout.top(first)


def _acts(node: cst.CSTNode) -> bool:
    """Whether something may happen where a part of a test is asked."""
    if isinstance(node, cst.Call):
        return dotted(node.func).rpartition(".")[2] not in _ASKING_ONLY
    return isinstance(node, cst.Await | cst.NamedExpr | cst.Yield)


_ASKING_ONLY = frozenset(
    "isinstance hasattr len is_available is_initialized device_count get_rank get_world_size getenv".split()
)


def account_for_the_rest(program: Program, ledger: Ledger) -> None:
    """Close every open entry but those of imports: what nothing accounts for is left to a person.

    This asks the runs, so it comes before the text changes for the last time, in its imports and its layout.
    """
    now = inventory(program)
    ledger.entries += ledger.missing(now)
    symbols = (one for one in now if one.kind == "symbol" and one.symbol == WRAPPER)
    every = [one for one in symbols if _wraps(one)]
    asking = {one.source for one in now if one.symbol in _ASKING}
    by_path = {source.path: source for source in program.sources}
    stands = {(one.source.path, one.start) for one in now}
    for entry in ledger.entries:
        if entry.fate == "open" and _was_called(entry) and (entry.path, entry.at) not in stands:
            entry.account("changed", "what is called here shards the module now", entry.by, 0)
        if entry.fate == "open" and entry.kind != "import":
            plain = entry.symbol.partition(".")[0] in facts.PLAIN_VALUES
            beside = program.connected(by_path[entry.path])
            wraps = [one for one in every if one.source in beside]
            asks = not asking.isdisjoint(beside)
            read = wraps or (asks and "StateDict" in entry.symbol)
            if plain and not read:
                entry.account(
                    "preserved", "kept: a plain value that no FSDP1 code reads any more", "", 0
                )
            elif plain and entry.at is not None and _is_compared(by_path[entry.path], entry.at):
                entry.account(
                    "preserved", "kept: a plain value that others are compared with", "", 0
                )
            elif plain and entry.at is not None and _for_fsdp2(program, entry, wraps):
                entry.account(
                    "preserved", "kept: a plain value that FSDP2 code beside it reads", "", 0
                )
            else:
                _close(entry)


def account_for_imports(program: Program, ledger: Ledger) -> None:
    """Close the entries of imports: each follows its uses."""
    by_path = {source.path: source for source in program.sources}
    for entry in ledger.entries:
        if entry.fate == "open":
            _close_import(entry, ledger, by_path[entry.path])


def comments(program: Program, ledger: Ledger) -> Iterator[Step]:
    """The comments above the statements that a person has to look at; one for statements that lie together."""
    by_path = {source.path: source for source in program.sources}
    said: dict[tuple[str, str], int] = {}
    for entry in ledger.manual:
        if entry.at is None or not entry.todo or entry.kind == "import":
            continue
        source = by_path[entry.path]
        layout = Layout.of(source)
        statement = statement_at(source, entry.at)
        line = layout.line(statement)
        top = layout.top(line)
        text = MARK + entry.todo
        if text in _above(source, top) or text in _lines_above(source, top):
            continue
        at = layout.line_number(top)
        last = said.get((source.path, text))
        if last is None or not 0 <= at - last < TOGETHER:
            said[source.path, text] = at
            yield Step((InsertBefore(source, statement, text),), ())


def left_before(source: Source, node: cst.CSTNode) -> str:
    """What an earlier run has left to a person at the statement of a node; empty where it has left nothing."""
    if MARK not in source.text or node is source.tree:
        return ""
    layout = Layout.of(source)
    line = layout.line(layout.statement(node))
    said = [one for one in _above(source, layout.top(line)).split("\n") if one.startswith(MARK)]
    return said[0].removeprefix(MARK) if said else ""


def todos(sources: Sequence[Source]) -> Iterator[Todo]:
    """The comments of earlier runs in the files."""
    for source in sources:
        at = source.text.find(MARK)
        while at >= 0:
            said = source.text[at + len(MARK) : Layout.of(source).line_end(at)].strip()
            line, _, cell = place(source, at)
            yield Todo(source.path, line, cell, said)
            at = source.text.find(MARK, at + len(MARK))


def _taken_from_elsewhere(program: Program) -> set[tuple[Source, str]]:
    """The names that files of the program import from others of them."""
    found: set[tuple[Source, str]] = set()
    for source in program.sources:
        for one in Names.of(source).imports:
            if isinstance(one.statement, cst.ImportFrom):
                module, level = dotted(one.statement.module), len(one.statement.relative)
                other = program.project.module_named(module, level, source)
                if other is not None:
                    found.add((other, one.loads.rpartition(".")[2]))
    return found


def _local_name(one: Occurrence) -> str:
    return next(i.name for i in Names.of(one.source).imports if i.alias is one.node)


def _wraps(one: Occurrence) -> bool:
    """Whether a use of the wrapper class can call it; a class derived from it does so in its own methods."""
    layout = Layout.of(one.source)
    statement = layout.parents.get(layout.parents[one.node])
    if isinstance(statement, cst.ClassDef):
        return "super().__init__(" in one.source.code(statement)
    return one.code == "FSDP101"


def _for_fsdp2(program: Program, entry: Entry, wraps: Sequence[Occurrence]) -> bool:
    """Whether an entry is in a function that calls ``fully_shard`` and does not wrap."""
    source = next(one for one in program.sources if one.path == entry.path)
    assert entry.at is not None
    around = _function_at(source, entry.at)
    calls = (one.node for one in program.references(FULLY_SHARD) if one.source is source)
    inside = set(walk(around)) if around is not None else set()
    return any(one in inside for one in calls) and not any(one.node in inside for one in wraps)


def _function_at(source: Source, offset: int) -> cst.FunctionDef | None:
    """The innermost function around an offset."""
    layout = Layout.of(source)
    statement = statement_at(source, offset)
    around = (n for n in layout.ancestors(statement) if isinstance(n, cst.FunctionDef))
    return next(around, None)


def _is_compared(source: Source, offset: int) -> bool:
    """Whether what begins at an offset is one side of a comparison, or one of several on a side."""
    layout = Layout.of(source)
    for node in layout.parents:
        if isinstance(node, cst.Comparison):
            for side in (node.left, *(target.comparator for target in node.comparisons)):
                if any(layout.span(one)[0] == offset for one in _several(source, side)):
                    return True
    return False


def _several(source: Source, side: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The expressions that one side of a comparison writes: those of a tuple, also by its name."""
    if isinstance(side, cst.Name):
        names = Names.of(source)
        scope = names.owner(side.value, scope_of(Layout.of(source).ancestors(side)))
        bound = names.bindings[scope][side.value] if scope is not None else []
        assign = Layout.of(source).parents.get(bound[0]) if len(bound) == 1 else None
        if isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Tuple):
            side = assign.value
    if isinstance(side, cst.Tuple | cst.List | cst.Set):
        yield from (element.value for element in side.elements)
    else:
        yield side


def _was_called(entry: Entry) -> bool:
    """Whether an entry is a call of something that wraps a module: what it calls is made elsewhere."""
    return entry.kind == "symbol" and entry.symbol == WRAPPER and entry.code == "FSDP101"


def _close(entry: Entry) -> None:
    if entry.at is None:
        entry.account("changed", "rewritten together with the code around it", entry.by, 0)
        return
    symbol = facts.BY_LAST_NAME.get(entry.symbol.rpartition(".")[2])
    symbol = symbol or facts.BY_LAST_NAME.get(entry.symbol.partition(".")[0])
    instead = f"FSDP2 has {symbol.instead}" if symbol is not None else "migrate this by hand"
    what = entry.symbol.rpartition(".")[2]
    why = "no rewriting is proven equivalent here"
    entry.account("manual", why, "", 0, f"`{what}` is FSDP1; {instead}")


def _close_import(entry: Entry, ledger: Ledger, source: Source) -> None:
    name = entry.symbol
    if entry.at is None:
        entry.account("changed", "removed: import no longer used", "", 0)
        return
    uses = [e for e in ledger.entries if e.path == entry.path and e.kind != "import"]
    uses = [e for e in uses if e.symbol.partition(".")[0] == name and e.at is not None]
    if any(e.fate == "manual" for e in uses):
        entry.account("preserved", "kept: code left for manual migration uses it", "", 0)
    elif uses or _is_used(source, entry.at):
        entry.account("preserved", "kept: still used", "", 0)
    else:
        entry.account("preserved", "kept: another file may import it from here", "", 0)


def _is_used(source: Source, offset: int) -> bool:
    """Whether the file names what an import there brings, by its local name."""
    names, layout = Names.of(source), Layout.of(source)
    here = [one for one in names.imports if layout.span(one.alias)[0] == offset]
    return any(one.name in names.uses for one in here)


def statement_at(source: Source, offset: int) -> cst.CSTNode:
    """The statement whose first line or inside holds an offset."""
    layout = Layout.of(source)
    inside: list[cst.CSTNode] = [
        node
        for node in layout.parents
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement)
        and layout.span(node)[0] <= offset < layout.span(node)[1]
    ]
    return layout.statement(max(inside, key=lambda node: layout.span(node)[0]))


def _lines_above(source: Source, top: int) -> list[str]:
    """The lines above an offset that lie together with it, and all comments between and above them."""
    found: list[str] = []
    of_code = 0
    for line in reversed(source.lines[: Layout.of(source).line_number(top) - 1]):
        said = line.strip()
        of_code += not said.startswith("#")
        if of_code > TOGETHER:
            break
        found.append(said)
    return found


def _above(source: Source, top: int) -> str:
    """The comment lines directly above an offset."""
    lines: list[str] = []
    layout = Layout.of(source)
    while top > 0:
        start = layout.line_start(top - 1)
        text = source.text[start:top].strip()
        if not text.startswith("#"):
            break
        lines.append(text)
        top = start
    return "\n".join(lines)
