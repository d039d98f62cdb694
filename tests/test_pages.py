"""The page of each rule is true: its example fires, what to use instead is silent, the fix leads there."""

from __future__ import annotations

import re

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import SECTIONS, Rule
from fsdp2lint.source.source import Source

from .test_rules import findings, mended

RULES = pytest.mark.parametrize("rule", knowledge.rules(), ids=lambda rule: rule.name)
BLOCK = re.compile(r"```(python|yaml)\n(.*?)```", re.DOTALL)
OPTIONAL = "Fix safety"


def script(rule: Rule, heading: str) -> Source:
    """The one block of Python or YAML in a section."""
    blocks = BLOCK.findall(rule.section(heading))
    assert len(blocks) == 1, f"{rule.name}: {heading} holds {len(blocks)} blocks"
    (language, text) = blocks[0]
    name = "example.py" if language == "python" else "example.yaml"
    return Source.decode(text.encode(), name)


def codes(source: Source, about: Rule) -> list[str]:
    """What is said of a script."""
    return [rule.code for rule, _ in findings([source], about.name)]


@RULES
def test_a_page_has_its_headings(rule: Rule) -> None:
    headings = re.findall(r"^## (.+)$", rule.page, re.MULTILINE)
    assert headings in (list(SECTIONS), [s for s in SECTIONS if s != OPTIONAL])
    assert all(rule.section(heading) for heading in headings)
    assert rule.summary.endswith(".")


@RULES
def test_the_example_fires(rule: Rule) -> None:
    assert set(codes(script(rule, "Example"), rule)) == {rule.code}


@RULES
def test_what_to_use_instead_is_silent(rule: Rule) -> None:
    assert codes(script(rule, "Use instead"), rule) == []


@RULES
def test_the_fix_of_the_example_makes_it_silent(rule: Rule) -> None:
    source = script(rule, "Example")
    said = list(findings([source], rule.name))
    (after,) = mended([source], said)
    fixable = any(finding.fix is not None for _, finding in said)
    assert codes(after, rule) == [] if fixable else after.text == source.text


@RULES
def test_a_rule_that_fixes_says_how_safely(rule: Rule) -> None:
    safety = {
        f.fix.safety
        for r, f in findings([script(rule, "Example")], rule.name)
        if f.fix and r is rule
    }
    said = rule.section(OPTIONAL)
    for one in safety:
        assert said.lower().startswith(one), f"{rule.name}: {one}, but the page says {said[:20]!r}"


@RULES
def test_a_page_names_its_sources(rule: Rule) -> None:
    for line in rule.section("References").splitlines():
        assert re.match(r"- (https://\S+|`torch/\S+\.py`)", line) or line.startswith("  "), line
