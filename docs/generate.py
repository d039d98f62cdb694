"""Write what of the site comes from the program itself: rules, codemods, commands, and the index for language models.

python docs/generate.py        (before `mkdocs build`)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import Rule
from fsdp2lint.catalogue.toolrules import TOOL_RULES
from fsdp2lint.cli.program import program
from fsdp2lint.cli.rule import page

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
FIXTURES = DOCS.parent / "fixtures" / "rules"


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each generated page."""
    rules = (*knowledge.rules(), *TOOL_RULES)
    rows = [
        f"| [{r.code}](rules/{r.name}.md) | {r.name} | {r.group} | {r.fix or ''} | {r.summary} |"
        for r in rules
    ]
    yield (
        "rules.md",
        _table(
            "Rules", "| code | name | group | fix | what it reports |\n|---|---|---|---|---|", rows
        ),
    )
    for rule in rules:
        head = f"# {rule.code} {rule.name}\n\n*{rule.group}*\n\n"
        yield f"rules/{rule.name}.md", f"{head}{_linked(_with_forms(rule))}\n"
    codemods = knowledge.codemods()
    rows = [f"| [{c.name}](codemods/{c.name}.md) | {c.summary} |" for c in codemods]
    yield "codemods.md", _table("Codemods", "| name | what it does |\n|---|---|", rows)
    for codemod in codemods:
        yield (
            f"codemods/{codemod.name}.md",
            f"# {codemod.name}\n\n{_linked(codemod.page.strip())}\n",
        )
    yield "commands.md", _commands()


def _with_forms(rule: Rule) -> str:
    """The page of a rule with the code of the forms that it names."""
    shown = FIXTURES / rule.name.replace("-", "_") / "forms.md"
    named = rule.section("Forms")
    return page(rule).replace(named, shown.read_text("utf-8").strip()) if named else page(rule)


def for_models() -> Iterator[tuple[str, str]]:
    """``llms.txt``, which lists the pages (https://llmstxt.org), and ``llms-full.txt``, which holds them as one text."""
    made = {f"reference/{name}": text for name, text in pages()}
    guides = {f"guides/{p.name}": p.read_text("utf-8") for p in sorted(DOCS.glob("guides/*.md"))}
    tops = {name: text for name, text in made.items() if name.count("/") == 1}
    rules = {name: text for name, text in made.items() if "/rules/" in name}
    codemods = {name: text for name, text in made.items() if "/codemods/" in name}
    rooms = {"Guides": guides, "Reference": tops, "Rules": rules, "Codemods": codemods}
    index = "\n".join(
        f"## {room}\n\n" + "\n".join(_entry(name, text) for name, text in texts.items()) + "\n"
        for room, texts in rooms.items()
    )
    start = (DOCS / "index.md").read_text("utf-8")
    about = start.split("\n\n")[1].replace("\n", " ")
    yield "llms.txt", f"# fsdp2lint\n\n> {about}\n\n{index}"
    whole = [
        start,
        *guides.values(),
        *rules.values(),
        *codemods.values(),
        made["reference/commands.md"],
    ]
    yield "llms-full.txt", "\n\n".join(text.strip() for text in whole) + "\n"


def _entry(name: str, text: str) -> str:
    """A page in the index: its title, and its first sentence if it begins with one."""
    title, *rest = [part for part in text.strip().split("\n\n") if not part.startswith("*")]
    first = rest[0].replace("\n", " ") if rest and rest[0][0].isalpha() else ""
    said = f": {re.split(r'(?<=[.!?]) ', first)[0]}" if first else ""
    return f"- [{title.lstrip('# ')}]({name.removesuffix('.md')}.html){said}"


def _linked(text: str) -> str:
    """The page with its bare addresses as links: markdown asks for brackets around them."""
    return re.sub(r"(?m)^(- )(https://\S+)", r"\1<\2>", text)


def _table(title: str, head: str, rows: list[str]) -> str:
    return "\n".join((f"# {title}", "", head, *rows)) + "\n"


def _commands() -> str:
    parts = ["# Commands\n"]
    context = click.Context(program, info_name="fsdp2lint")
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert command is not None
        with click.Context(command, info_name=f"fsdp2lint {name}", max_content_width=90) as inner:
            parts.append(f"## {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write all pages; those of rules that are gone go too."""
    wanted = dict(pages())
    for old in REFERENCE.rglob("*.md"):
        if old.relative_to(REFERENCE).as_posix() not in wanted:
            old.unlink()
    for name, text in wanted.items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, text in for_models():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
