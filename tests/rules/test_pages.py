"""The page of each rule is true: the code before its diff fires, the code after it is silent, and so is what the fix makes."""

from __future__ import annotations

import re

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import OPTIONAL_SECTIONS, SECTIONS, Rule
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended
from tests.support.examples import example

RULES = pytest.mark.parametrize("rule", knowledge.rules(), ids=lambda rule: rule.name)
FIXES = "Fix safety"
FORM = re.compile(r"^(Found|Not found): (.+?)\.\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def before(rule: Rule) -> Source:
    """What the example of a page shows as wrong."""
    return example(rule.section("Example"))[0]


def codes(source: Source, about: Rule) -> list[str]:
    """What is said of a script."""
    return [rule.code for rule, _ in findings([source], about.name)]


@RULES
def test_a_page_has_its_headings(rule: Rule) -> None:
    headings = re.findall(r"^## (.+)$", rule.page, re.MULTILINE)
    assert headings == [s for s in SECTIONS if s in headings]
    assert set(SECTIONS) - set(headings) <= set(OPTIONAL_SECTIONS)
    assert all(rule.section(heading) for heading in headings)
    assert rule.summary.endswith(".")


@RULES
def test_the_example_fires(rule: Rule) -> None:
    assert set(codes(before(rule), rule)) == {rule.code}


@RULES
def test_what_to_use_instead_is_silent(rule: Rule) -> None:
    assert codes(example(rule.section("Example"))[1], rule) == []


def forms(rule: Rule) -> list[tuple[str, str, Source]]:
    """The other spellings that a page shows: whether they are found, in what they differ, and the script."""
    header = [line for line in before(rule).lines if line.startswith(("import ", "from "))]
    return [
        (kind, said, Source.decode("\n".join([*header, "", text]).encode(), "example.py"))
        for kind, said, text in FORM.findall(rule.section("Forms"))
    ]


@RULES
def test_the_forms_of_a_page_are_found_or_not(rule: Rule) -> None:
    shown = forms(rule)
    assert len(shown) == rule.section("Forms").count("```python")
    for kind, said, source in shown:
        assert (rule.code in codes(source, rule)) == (kind == "Found"), f"{kind}: {said}"


@RULES
def test_the_fix_of_the_example_makes_it_silent(rule: Rule) -> None:
    source = before(rule)
    said = list(findings([source], rule.name))
    (after,) = mended([source], said)
    fixable = any(finding.fix is not None for _, finding in said)
    assert codes(after, rule) == [] if fixable else after.text == source.text


@RULES
def test_a_rule_that_fixes_says_how_safely(rule: Rule) -> None:
    safety = {f.fix.safety for r, f in findings([before(rule)], rule.name) if f.fix and r is rule}
    said = rule.section(FIXES)
    for one in safety:
        assert said.lower().startswith(one), f"{rule.name}: {one}, but the page says {said[:20]!r}"


@RULES
def test_a_page_names_its_sources(rule: Rule) -> None:
    for line in rule.section("References").splitlines():
        assert re.match(r"- (https://\S+|`torch/\S+\.py`)", line) or line.startswith("  "), line
