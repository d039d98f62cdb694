"""``fsdp2lint rule``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.options import CONFIGURATION, OUTPUT
from fsdp2lint.cli.sessions import configured, said_to_be_wrong
from fsdp2lint.config.settings import BadSetting

if TYPE_CHECKING:
    from fsdp2lint.catalogue.accuracy import Accuracy
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.session import Session


@click.command("rule", short_help="Explain a rule.")
@click.argument("rules", nargs=-1, metavar="CODE|NAME...")
@click.option("--all", "every", is_flag=True, help="All rules.")
@OUTPUT
@CONFIGURATION
def command(rules: tuple[str, ...], every: bool, output_format: str, **given: Any) -> int:
    """Explain the rules with these codes or names: what they report, why, and what to write instead."""
    session = configured(["."], given)
    known = _known(session)
    if not rules and not every:
        raise click.UsageError("name a rule by its code or its name, or give --all")
    wanted = known if every else [_named(name, known) for name in rules]
    sys.stdout.write(_json(wanted) if output_format == "json" else _text(wanted))
    return 2 * said_to_be_wrong(session)


def _known(session: Session) -> list[Rule]:
    """All rules, with those of the plugins that the configuration here names."""
    from fsdp2lint.catalogue import knowledge
    from fsdp2lint.catalogue.toolrules import TOOL_RULES

    try:
        session.chosen(session.main, session.settings(session.main))
        plugins = session.settings(session.main).plugins  # those that can be imported
    except BadSetting as error:
        raise click.ClickException(str(error)) from error
    every = (*knowledge.rules(plugins), *TOOL_RULES)
    return sorted(every, key=lambda rule: rule.code)


def _named(name: str, known: Sequence[Rule]) -> Rule:
    from fsdp2lint.config.settings import precision, unknown

    for rule in known:
        if precision(name, rule) == 100:
            return rule
    names = [n for rule in known for n in (rule.code, rule.name)]
    raise click.ClickException(unknown("rule", name, names))


def _text(rules: Sequence[Rule]) -> str:
    return "\n".join(f"{_title(rule)}\n\n{page(rule)}\n" for rule in rules)


def page(rule: Rule) -> str:
    """The page of a rule, with what was measured of it; findings of the tool itself and rules from outside are not measured."""
    from fsdp2lint.catalogue.accuracy import recall_sentence, recalled, sentence

    said = rule.page.strip()
    numbers = f"{sentence(rule.code)}\n{recall_sentence(recalled().get(rule.code))}"
    return f"{said}\n\n## Accuracy\n\n{numbers}" if _measured(rule) else said


def _measured(rule: Rule) -> bool:
    from fsdp2lint.catalogue.declare import OWN
    from fsdp2lint.catalogue.toolrules import TOOL_RULES

    return rule.code.startswith(OWN) and rule not in TOOL_RULES


def _title(rule: Rule) -> str:
    releases = f", torch {rule.since}" if rule.since != "2.6" else ""
    releases += f" up to {rule.until}" if rule.until else " and later" if releases else ""
    releases += ", preview" if rule.preview else ""
    title = f"{rule.code} {rule.name} ({rule.group}{releases})"
    return f"{title}\n{'=' * len(title)}"


def _accuracy(seen: Accuracy | None) -> dict[str, float] | None:
    if seen is None:
        return None
    numbers = {"judged": seen.judged, "right": seen.right, "repositories": seen.repositories}
    return {**numbers, "precision": round(seen.precision, 3)}


def _json(rules: Sequence[Rule]) -> str:
    import msgspec

    from fsdp2lint.catalogue.accuracy import measured, recalled
    from fsdp2lint.check.diagnostics import SEVERITIES

    seen = measured()
    planted = recalled()
    said = [
        {
            "code": rule.code,
            "name": rule.name,
            "group": rule.group,
            "severity": SEVERITIES[rule.group],
            "since": rule.since,
            "until": rule.until or None,
            "preview": rule.preview,
            "fix": rule.fix,
            "summary": rule.summary,
            "url": rule.link,
            "explanation": rule.page.strip(),
            "accuracy": _accuracy(seen.get(rule.code)),
            "recall": planted.get(rule.code),
        }
        for rule in rules
    ]
    return msgspec.json.format(msgspec.json.encode(said), indent=2).decode() + "\n"
