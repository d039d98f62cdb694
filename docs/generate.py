"""Write the pages of the site that come from the program itself: rules, codemods, commands.

python docs/generate.py        (before `zensical build` or `mkdocs build`)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from fsdp2lint import knowledge
from fsdp2lint.cli.program import program
from fsdp2lint.cli.rule import page

REFERENCE = Path(__file__).parent / "reference"


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each generated page."""
    rules = knowledge.rules()
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
        yield f"rules/{rule.name}.md", f"{head}{_linked(page(rule))}\n"
    codemods = knowledge.codemods()
    rows = [f"| [{c.name}](codemods/{c.name}.md) | {c.summary} |" for c in codemods]
    yield "codemods.md", _table("Codemods", "| name | what it does |\n|---|---|", rows)
    for codemod in codemods:
        yield (
            f"codemods/{codemod.name}.md",
            f"# {codemod.name}\n\n{_linked(codemod.page.strip())}\n",
        )
    yield "commands.md", _commands()


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


if __name__ == "__main__":
    main()
