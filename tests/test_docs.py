"""The site: its links lead somewhere, its commands exist, its example of a rule works."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import SECTIONS
from fsdp2lint.catalogue.toolrules import TOOL_RULES
from fsdp2lint.check.session import Session
from fsdp2lint.cli.program import program
from fsdp2lint.interpret.entries import traces
from fsdp2lint.project.project import Project
from fsdp2lint.rehearse.commands import marked
from fsdp2lint.source.source import Source

DOCS = Path(__file__).parent.parent / "docs"
WRITTEN = sorted(p for p in DOCS.rglob("*.md") if "reference" not in p.parts)
EACH = pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.relative_to(DOCS).as_posix())


def script(name: str) -> types.ModuleType:
    """A program of the site."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated() -> dict[str, str]:
    """The pages that the program writes."""
    return dict(script("generate").pages())


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in heads}


@EACH
def test_links_lead_somewhere(page: Path) -> None:
    reference = {f"reference/{name}" for name in generated()}
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        inside = path.relative_to(DOCS.resolve()).as_posix() if name else ""
        assert path.is_file() or inside in reference, link
        if anchor:
            assert anchor in anchors(path.read_text("utf-8")), link


@EACH
def test_commands_exist(page: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    for line in lines:
        found = re.match(r"fsdp2lint ([\w-]+)([^#]*)", line)
        if found is None:
            continue
        command = program.get_command(click.Context(program), found[1])
        assert command is not None, line
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        words = re.sub(r"\"[^\"]*\"|'[^']*'", "", found[2]).split()
        words = " ".join(marked(words)).partition("-- ")[0].split()
        assert {w.partition("=")[0] for w in words if w.startswith("-")} <= known, line


def every_option() -> set[str]:
    context = click.Context(program)
    commands = [program.get_command(context, name) for name in program.list_commands(context)]
    known = {"--version", "--help"}
    for command in commands:
        assert command is not None
        known |= {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return known


OTHERS = {
    "--bless", "--nproc-per-node", "--nproc_per_node", "--nnodes", "--standalone", "--strict",
    "--use_fsdp", "--fsdp_version", "--fsdp_state_dict_type", "--every",
}  # fmt: skip
"""Options of other programs that the pages name."""


@EACH
def test_options_in_the_text_exist(page: Path) -> None:
    named = set(re.findall(r"`(--[a-z][a-z_-]+)", page.read_text("utf-8")))
    assert named <= every_option() | OTHERS


@EACH
def test_rules_in_the_text_exist(page: Path) -> None:
    text = page.read_text("utf-8").replace("FSDP299", "")  # the one that the reader writes
    known = {rule.code for rule in (*knowledge.rules(), *TOOL_RULES)}
    assert set(re.findall(r"\bFSDP\d{3}\b", text)) <= known


def test_the_site_is_built(tmp_path: Path) -> None:
    """By mkdocs, which fails on a link that leads nowhere and on a page that is in no menu."""
    pytest.importorskip("material", reason="pip install mkdocs-material")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("reference"))
    shutil.copy(DOCS.parent / "mkdocs.yml", tmp_path)
    for name, text in generated().items():
        path = tmp_path / "docs" / "reference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", "site"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "rules" / "optimizer-before-shard.html").read_text(
        "utf-8"
    )
    assert '<a href="https://docs.pytorch.org/' in page
    assert 'src="http' not in page  # nothing comes from another host
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
    pages = {p.relative_to(tmp_path / "site").as_posix() for p in tmp_path.rglob("site/**/*.html")}
    assert {f"reference/{name[:-3]}.html" for name in generated()} <= pages


def test_language_models_get_every_page() -> None:
    files = dict(script("generate").for_models())
    index = files["llms.txt"]
    links = dict(re.findall(r"^- \[(.+?)\]\((.+?)\)", index, re.MULTILINE))
    pages = {f"reference/{n}" for n in generated()}
    pages |= {p.relative_to(DOCS).as_posix() for p in WRITTEN if p.name != "index.md"}
    assert set(links.values()) == {f"{page.removesuffix('.md')}.html" for page in pages}
    assert links["FSDP201 optimizer-before-shard"] == "reference/rules/optimizer-before-shard.html"
    assert index.startswith("# fsdp2lint\n\n> ")
    assert all(rule.page.strip() in files["llms-full.txt"] for rule in TOOL_RULES)


def test_the_pages_in_the_menu_are_there() -> None:
    menu = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    named = set(re.findall(r": ([\w/-]+\.md)$", menu, re.MULTILINE))
    there = {p.relative_to(DOCS).as_posix() for p in WRITTEN}
    assert named == there | {f"reference/{n}" for n in generated() if "/" not in n}


def test_the_sections_of_a_page_are_named() -> None:
    text = (DOCS / "guides" / "write-a-rule.md").read_text("utf-8")
    block = text.partition("```markdown\n")[2].partition("```")[0]
    assert tuple(re.findall("^## (.+)$", block, re.MULTILINE)) == tuple(SECTIONS)


def test_the_example_of_a_rule_works() -> None:
    text = (DOCS / "guides" / "write-a-rule.md").read_text("utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    module = types.ModuleType("optimizer_example")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, "optimizer_example.py", "exec", dont_inherit=True), module.__dict__)
    finally:
        from fsdp2lint.catalogue.declare import declared

        del sys.modules[module.__name__]
        declared.pop(module.__name__, None)
    script = Source(
        "train.py",
        "import torch\nfrom torch import nn\nfrom torch.distributed.fsdp import fully_shard\n"
        "model = nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), lr=1.0)\n"
        "fully_shard(model)\n",
    )
    (trace,) = traces(Project.of([script]))
    (finding,) = module.check(trace)
    assert "replaced later" in finding.message


HOW = "python docs/pictures.py draws it anew"


@pytest.mark.skipif(sys.platform == "win32", reason="draws in a terminal")
@pytest.mark.parametrize("name", ["check", "migrate"])
def test_a_picture_shows_what_the_program_says(name: str) -> None:
    pictures = script("pictures")
    wanted = pictures.svg(pictures.terminal(name), pictures.COMMANDS[name])
    ElementTree.fromstring(wanted)
    assert (DOCS / "pictures" / f"{name}.svg").read_text("utf-8") == wanted, HOW


@pytest.mark.ranks
def test_the_picture_and_the_page_of_verify_show_what_it_says(tmp_path: Path) -> None:
    """But for the numbers, in which machines differ."""
    pictures = script("pictures")
    said = pictures.terminal("verify", tmp_path / "page.html")
    assert pictures.wrong_schedule() in said
    texts = (
        pictures.svg(said, pictures.COMMANDS["verify"]),
        (DOCS / "pictures" / "verify.svg").read_text("utf-8"),
    )
    # 1.5 is shorter than 1.499999: columns are as wide as their numbers
    wanted, drawn = (re.sub(r" *[\d.]+(e-\d+)?", "#", shown(text)) for text in texts)
    assert drawn == wanted, HOW
    assert pictures.wrong_schedule() in (tmp_path / "page.html").read_text("utf-8")


def shown(picture: str) -> str:
    """The words in a picture, without the circles of its curve and the numbers along it."""
    texts = (one.text or "" for one in ElementTree.fromstring(picture).iter() if one.text)
    curve = re.compile(r"[-\d.e\s]*|.*[●○×┤│└].*")
    return "\n".join(text for text in texts if not curve.fullmatch(text))


def test_the_picture_of_an_editor_shows_what_check_says() -> None:
    words = shown((DOCS / "pictures" / "editor.svg").read_text("utf-8")).split()
    report = Session([str(DOCS.parent / "fixtures/projects/tour")], {}, isolated=True).check()
    (message,) = (one.message for one in report.found if one.rule.code == "FSDP201")
    assert "".join(message.split()) in "".join(words), HOW


@pytest.mark.parametrize("name", ["report", "site"])
def test_pictures_of_a_browser_are_of_what_is_shown_today(name: str) -> None:
    pictures = script("pictures")
    carried = pictures.shown_digest(DOCS / "pictures" / f"{name}.png")
    text = {"site": pictures.site_text, "report": pictures.report_text}[name]()
    assert carried == pictures.digest(text), HOW


def test_every_picture_is_in_a_page() -> None:
    pages = [*WRITTEN, DOCS.parent / "README.md"]
    texts = "".join(page.read_text("utf-8") for page in pages)
    for picture in (DOCS / "pictures").iterdir():
        assert f"pictures/{picture.name})" in texts, picture.name


def test_a_picture_breaks_lines_as_a_terminal_does() -> None:
    picture = script("pictures")
    long = "\x1b[1;31mab\x1b[0m" + "c" * picture.COLUMNS
    first, second = picture.rows(long)
    assert ["".join(t for t, _, _ in row) for row in (first, second)] == [
        "ab" + "c" * (picture.COLUMNS - 2),
        "cc",
    ]
    assert ("ab", picture.INKS[31], True) in first
