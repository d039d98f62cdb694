"""The rules that the code base itself lives by."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
import warnings
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import OPTIONAL_SECTIONS, SECTIONS, Rule
from fsdp2lint.cli.program import COMMANDS, program

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures"
README = ROOT / "README.md"
RECALL = ROOT / "docs" / "guides" / "recall.md"

LAYERS = (
    {"frameworks", "source", "system", "torch_api"},
    {"model"},
    {"project"},
    {"interpret", "meanings"},
    {"edits"},
    {"ask"},
    {"catalogue", "config"},
    {"api"},
    {"check"},
    {"reporters"},
    {"bridge", "migrate", "plan", "prove", "rehearse", "verify"},
    {"server"},
    {"cli"},
    {"__main__"},
)
"""From the ground up: a module imports from its own layer and from those before it."""

RUN = ("bridge", "plan", "prove", "rehearse")
"""The rooms that run programs and may import PyTorch."""

KNOWLEDGE = ("rules", "codemods")
LONG_FILE = 500
RULES = pytest.mark.parametrize("rule", knowledge.rules(), ids=lambda rule: rule.name)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package with its dotted name below it."""
    for path in sorted((ROOT / "fsdp2lint").rglob("*.py")):
        parts = path.relative_to(ROOT / "fsdp2lint").with_suffix("").parts
        yield ".".join(p for p in parts if p != "__init__"), path


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The full names of all modules that a file imports, wherever the import stands."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            if node.module in (None, "fsdp2lint"):
                yield from (f"{base}.{alias.name}".replace("..", ".") for alias in node.names)


def layer(module: str) -> int:
    room = module.partition(".")[0]
    found = [n for n, rooms in enumerate(LAYERS) if room in rooms]
    assert found, f"{module} stands in no layer: add it to LAYERS"
    return found[0]


@pytest.mark.parametrize(("module", "path"), [m for m in modules() if m[0]])
def test_imports_point_down(module: str, path: Path) -> None:
    for name in imports(path):
        assert not name.startswith("."), f"{module} imports relatively"
        room = name.removeprefix("fsdp2lint.")
        if name.startswith("fsdp2lint.") and room != "__version__":
            assert layer(room) <= layer(module), f"{module} imports {name}, which is above it"


def test_no_file_needs_itself() -> None:
    """By no way of imports, wherever they stand; those for types alone lead nowhere."""
    needs = {user: {one for one in named if one != user} for user, named in _loaded().items()}
    while bare := {user for user, named in needs.items() if not named & needs.keys()}:
        needs = {user: named - bare for user, named in needs.items() if user not in bare}
    while above := needs.keys() - set().union(*needs.values()):
        needs = {user: named for user, named in needs.items() if user not in above}
    assert not needs, f"there is a circle among {sorted(needs)}"


MOST_ARROWS = 110


def test_rooms_know_few_others() -> None:
    """From one to another, by all imports that run; the version of the package is no room."""

    def room(name: str) -> str:
        return name.removeprefix("fsdp2lint.").partition(".")[0]

    pairs = {(room(user), room(one)) for user, named in _loaded().items() for one in named}
    arrows = {(a, b) for a, b in pairs if a != b and b != "fsdp2lint"}
    assert len(arrows) <= MOST_ARROWS, f"{len(arrows)} arrows between rooms"


@cache
def _loaded() -> dict[str, set[str]]:
    """By module: the modules that it loads when it runs."""
    paths = dict(everything())
    found = {}
    for user, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = [ast.Pass()]
        package = user if path.name == "__init__.py" else user.rpartition(".")[0]
        found[user] = _modules_named(tree, package, paths)
    return found


@pytest.mark.parametrize("folder", KNOWLEDGE)
def test_knowledge_imports_the_api_and_its_own_helpers(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = len(path.relative_to(ROOT / folder).parts)
        for name in imports(path):
            inside = name.startswith(".") and len(name) - len(name.lstrip(".")) <= parts
            outside = not name.startswith((".", "fsdp2lint", "rules", "codemods", "tests", "torch"))
            assert name == "fsdp2lint.api" or inside or outside, f"{path.name} imports {name}"


FAMILIES = sorted(p.parent for p in (ROOT / "rules").glob("[a-z]*/__init__.py"))


@pytest.mark.parametrize("folder", [ROOT / "codemods", ROOT / "rules", *FAMILIES], ids=str)
def test_a_part_stands_with_what_it_is_a_part_of(folder: Path) -> None:
    """Of one rule or codemod alone: in its folder; of several in a family: in its ``_common``; else in that above."""
    private = {p.name for p in folder.glob("_*") if p.name != "__pycache__"}
    assert private - {"_common"} == {"__init__.py"}


def test_what_one_family_shares_stands_in_it() -> None:
    """In ``rules/_common`` is only what rules of several families use, themselves or through others there."""
    rules = ROOT / "rules"
    users: dict[Path, set[Path]] = {p: set() for p in (rules / "_common").glob("[a-z]*.py")}
    for path in rules.rglob("*.py"):
        for name in imports(path):
            dots = len(name) - len(name.lstrip("."))
            above = path.parents[dots - 1] if dots else path
            used = above.joinpath(*name[dots:].split(".")).with_suffix(".py")
            if used in users:
                users[used].add(path)

    def families(path: Path) -> set[str]:
        if path in users:
            return set().union(*map(families, users[path]))
        return {path.relative_to(rules).parts[0]}

    assert not [path.name for path in users if len(families(path)) < 2]


@pytest.mark.parametrize("folder", ["fsdp2lint", *KNOWLEDGE])
def test_a_folder_is_read_at_a_glance(folder: str) -> None:
    """At most thirty files and folders in one."""
    for inside in {p.parent for p in (ROOT / folder).rglob("*.py")}:
        held = [p for p in inside.iterdir() if p.name not in ("__init__.py", "__pycache__")]
        assert len(held) <= 30, f"{inside.relative_to(ROOT)} holds {len(held)}"


WHOLE = {"fsdp2lint.meanings": {"fsdp2lint.meanings.registry", "fsdp2lint.meanings.families"}}
"""Folders that are loaded whole: what imports one of these modules there is loaded by it too."""


def test_what_one_module_uses_stands_with_it() -> None:
    """In the same file, or both in a folder of their own: a part has no room beside what it is a part of."""
    lonely = []
    for name, users in sorted(importers().items()):
        folder, user = name.rpartition(".")[0], next(iter(users), "")
        if len(users) == 1 and user.startswith(f"{folder}.") and user != f"{folder}.__main__":
            lonely.append(f"{name}, of {user}")
    assert not lonely, "\n".join(lonely)


@cache
def importers() -> dict[str, set[str]]:
    """By module: those that import it anywhere, and what else loads it: Python, as a process, or its folder as a whole."""
    paths = dict(everything())
    found: dict[str, set[str]] = {n: set() for n, p in paths.items() if p.stem[:2] != "__"}
    for user, path in paths.items():
        package = user if path.name == "__init__.py" else user.rpartition(".")[0]
        text = path.read_text(encoding="utf-8")
        named = _modules_named(ast.parse(text), package, paths)
        for one in named & found.keys() - {user}:
            found[one].add(user)
        if user in found and 'if __name__ == "__main__"' in text:
            found[user].add("python -m")
        for folder, registers in WHOLE.items():
            if user in found and user.startswith(folder) and named & registers:
                found[user].add(folder)
    return found


def _modules_named(tree: ast.Module, package: str, known: Collection[str]) -> set[str]:
    """The modules that a file imports, in full: of ``from package import module`` the module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join(above) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            each = {f"{base}.{alias.name}" for alias in node.names}
            found |= {one if one in known else base for one in each}
    return found & set(known)


def everything() -> Iterator[tuple[str, Path]]:
    """Every module of the tool with its full name, rules and codemods too."""
    for top in ("fsdp2lint", *KNOWLEDGE):
        for path in sorted((ROOT / top).rglob("*.py")):
            yield (
                ".".join(
                    p for p in path.relative_to(ROOT).with_suffix("").parts if p != "__init__"
                ),
                path,
            )


def test_nobody_imports_a_rule_by_name() -> None:
    everything = [*modules(), *(("tests", p) for p in (ROOT / "tests").rglob("*.py"))]
    for module, path in everything:
        for name in imports(path):
            assert not re.match(r"(fsdp2lint\.)?(rules|codemods)\b", name), f"{module}: {name}"


def test_nothing_heavy_on_the_way_of_check() -> None:
    """Torch belongs to ``verify``; libcst's matchers and codemods cost 0.4 s to import."""
    for module, path in modules():
        if module.partition(".")[0] not in RUN:
            for name in imports(path):
                assert name.partition(".")[0] != "torch", f"{module} imports {name}"
                assert not name.startswith(("libcst.matchers", "libcst.codemod")), (
                    f"{module}: {name}"
                )


def test_nothing_loose_at_the_root() -> None:
    """Each module stands in the room of its task."""
    loose = {path.stem for path in (ROOT / "fsdp2lint").glob("*.py")}
    assert loose == {"__init__", "__main__", "api"}


def test_long_files_are_pointed_out() -> None:
    """A long file is a reason to look for two ideas in it, not to cut it: this only warns."""
    for folder in ("fsdp2lint", "rules", "codemods", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            length = len(path.read_text(encoding="utf-8").splitlines())
            if length > LONG_FILE:
                name = path.relative_to(ROOT)
                warnings.warn(f"{name} has {length} lines: is it one idea?", stacklevel=1)


def test_what_starts_ranks_is_marked() -> None:
    """A plain ``pytest`` leaves it out, but for a sample."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                marks = [ast.unparse(one) for one in node.decorator_list]
                assert "run_script" not in names or "pytest.mark.ranks" in marks, (
                    f"{path.name}: {node.name}"
                )


@RULES
def test_a_rule_is_in_the_shape_of_the_catalogue(rule: Rule) -> None:
    assert re.fullmatch(r"FSDP[1-6]\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert (rule.code[4] == "1" or rule.code == "FSDP601") == (rule.group == "migration")
    assert re.fullmatch(r"\d+\.\d+", rule.since)
    assert re.fullmatch(r"(\d+\.\d+)?", rule.until)


@RULES
def test_a_rule_has_its_page(rule: Rule) -> None:
    headings = re.findall(r"^## (.+)$", rule.page, re.MULTILINE)
    name = rule.name.replace("-", "_")
    files = [*ROOT.glob(f"rules/*/{name}.py"), *ROOT.glob(f"rules/*/{name}/*.py")]
    source = "".join(p.read_text(encoding="utf-8") for p in files)
    has_fix = re.search(r"\bfix=|\bFix\(", source) is not None
    wanted = [s for s in SECTIONS if s not in OPTIONAL_SECTIONS]
    assert ("Fix safety" in headings) == has_fix
    wanted = [s for s in SECTIONS if s in wanted or s in headings]
    assert headings == wanted
    assert rule.summary.endswith(".")
    assert not [s for s in wanted if not rule.section(s)], "a section is empty"


@RULES
def test_a_rule_has_fixtures(rule: Rule) -> None:
    folder = FIXTURES / "rules" / rule.name.replace("-", "_")
    files = (p for p in sorted(folder.rglob("*")) if p.suffix in (".py", ".yaml"))
    texts = [p.read_text(encoding="utf-8") for p in files]
    assert any(f"# expect: {rule.code}" in text for text in texts), f"nothing fires in {folder}"
    assert any(f"# expect: {rule.code}" not in text for text in texts), f"no good one in {folder}"


def test_fixtures_belong_to_a_rule() -> None:
    names = {rule.name.replace("-", "_") for rule in knowledge.rules()}
    folders = {p.name for p in (FIXTURES / "rules").iterdir() if any(p.rglob("*.py"))}
    assert folders <= names


def readme_commands() -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = (re.search(r"\bfsdp2lint ([^#;]*)", line) for line in lines)
    return [shlex.split(match[1]) for match in found if match]


def test_the_commands_of_the_readme_exist() -> None:
    named = readme_commands()
    assert {words[0] for words in named} == set(COMMANDS)
    for name, *arguments in named:
        command = program.get_command(click.Context(program), name)
        assert command is not None
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        assert {a for a in arguments if a.startswith("-") and " " not in a and a != "-"} <= known


def test_a_guide_says_which_damage_was_not_run(bless: bool) -> None:
    """Rules whose bad fixtures all say ``not shown on CPU`` are named between the marks; ``--bless`` renews them."""

    def is_shown(bad: Path) -> bool:
        script = bad / "main.py" if bad.is_dir() else bad
        return "# evidence: not shown on CPU" not in script.read_text(encoding="utf-8")

    folders = (
        (r.code, ROOT / "fixtures/rules" / r.name.replace("-", "_")) for r in knowledge.rules()
    )
    codes = [code for code, folder in folders if not any(map(is_shown, folder.glob("bad_*")))]
    named = textwrap.fill(f"{', '.join(codes)}.", 118)
    text = RECALL.read_text(encoding="utf-8")
    block = re.compile(r"(?<=<!-- not run -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if bless:
        RECALL.write_text(block.sub(lambda _: f"{named}\n", text), encoding="utf-8")
    else:
        assert block.findall(text) == [f"{named}\n"]


def test_ci_installs_as_the_readme_says() -> None:
    command = re.search(r"pip install --editable '(\S+)'", README.read_text(encoding="utf-8"))
    assert command is not None
    assert f"install --quiet --editable '{command[1]}'" in (ROOT / ".ci" / "run").read_text()
