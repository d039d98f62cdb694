"""The page of each rule is true: the code before its diff fires, the code after it is silent, and so is what the fix makes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import OPTIONAL_SECTIONS, SECTIONS, Rule
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended
from tests.support.examples import example

RULES = pytest.mark.parametrize("rule", knowledge.rules(), ids=lambda rule: rule.name)
FIXES = "Fix safety"
FIXTURES = Path(__file__).parents[2] / "fixtures" / "rules"
FORM = re.compile(
    r"^(Found|Not found): (.+?)\.\n\n```(python|yaml|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def before(rule: Rule) -> Source:
    """What the example of a page shows as wrong."""
    return example(rule.section("Example"))[0]


@cache
def said_before(rule: Rule) -> tuple[Source, list[tuple[Rule, Finding]]]:
    """What the example of a page shows as wrong, and what is said of it."""
    source = before(rule)
    return source, list(findings([source], rule.name))


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
    assert {one.code for one, _ in said_before(rule)[1]} == {rule.code}


@RULES
def test_what_to_use_instead_is_silent(rule: Rule) -> None:
    assert codes(example(rule.section("Example"))[1], rule) == []


def forms(rule: Rule) -> list[tuple[str, str, Source]]:
    """The other spellings that a page names: whether they are found, in what they differ, and the script or settings."""
    return [
        (kind, said, _form(rule, language, text))
        for kind, said, language, text in FORM.findall(_shown(rule))
    ]


def _shown(rule: Rule) -> str:
    return (FIXTURES / rule.name.replace("-", "_") / "forms.md").read_text(encoding="utf-8")


def _form(rule: Rule, language: str, text: str) -> Source:
    if language != "python":
        return decode(text.encode(), f"example.{language}")
    return decode(f"{_header(rule)}\n{text}".encode(), "example.py")


def _header(rule: Rule) -> str:
    """The imports of the example; where they are the mistake, those of the code to write instead."""
    old, new = (_imports(source) for source in example(rule.section("Example")))
    alone = decode(old.encode(), "example.py")
    return new if rule.code in codes(alone, rule) else old


def _imports(source: Source) -> str:
    if not source.path.endswith(".py"):
        return ""
    statements = ast.parse(source.text).body
    return "".join(
        f"{ast.unparse(one)}\n"
        for one in statements
        if isinstance(one, ast.Import | ast.ImportFrom)
    )


@RULES
def test_a_page_names_the_forms_that_are_shown(rule: Rule) -> None:
    named = re.findall(r"^- (Found|Not found): (.+?)\.$", rule.section("Forms"), re.M | re.S)
    shown = [(kind, said) for kind, said, _ in forms(rule)]
    assert [(kind, re.sub(r"\s+", " ", said)) for kind, said in named] == [
        (kind, re.sub(r"\s+", " ", said)) for kind, said in shown
    ]


@RULES
def test_the_forms_of_a_page_are_found_or_not(rule: Rule) -> None:
    shown = forms(rule)
    assert "Found" in {kind for kind, _, _ in shown}
    assert len(shown) == len(re.findall(r"^```\w", _shown(rule), re.MULTILINE))
    for kind, said, source in shown:
        assert (rule.code in codes(source, rule)) == (kind == "Found"), f"{kind}: {said}"


@RULES
def test_the_fix_of_the_example_makes_it_silent(rule: Rule) -> None:
    source, said = said_before(rule)
    (after,) = mended([source], said)
    fixable = any(finding.fix is not None for _, finding in said)
    assert codes(after, rule) == [] if fixable else after.text == source.text


@RULES
def test_a_rule_that_fixes_says_how_safely(rule: Rule) -> None:
    safety = {f.fix.safety for r, f in said_before(rule)[1] if f.fix and r is rule}
    said = rule.section(FIXES)
    for one in safety:
        assert said.lower().startswith(one), f"{rule.name}: {one}, but the page says {said[:20]!r}"


@RULES
def test_a_page_names_its_sources(rule: Rule) -> None:
    for line in rule.section("References").splitlines():
        assert re.match(r"- (https://\S+|`torch/\S+\.py`)", line) or line.startswith("  "), line
