"""The page: verdict, ladder, curves, comparisons, plans, ledger and diff, each where there is one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator

from fsdp2lint import __version__
from fsdp2lint.prove.ladder import Rung, reached
from fsdp2lint.prove.report.changes import changes
from fsdp2lint.prove.report.data import Report
from fsdp2lint.prove.report.markup import Markup, join, prose, raw, tag
from fsdp2lint.prove.report.page import sections
from fsdp2lint.prove.report.page.looks import FILTER, STYLE
from fsdp2lint.system.plain import lines

_BADGES = {
    "equal": "good",
    "different": "bad",
    "proves nothing": "bad",
    "could not run": "bad",
    None: "wait",
}


def html(report: Report) -> str:
    """The whole page; every text of the report in it is escaped."""
    parts = {
        "Contract": sections.contract(report.contract),
        "Curves": join(sections.curves(report.curves)),
        "Comparison": join(sections.comparison(report.compared)),
        "Plan": join(sections.plans(report.plans)),
        "Ledger": join(sections.ledger(report.ledger, report.diff)),
        "Diff": join(changes(report.diff)),
        "Notes": join(sections.notes(report.notes)),
    }
    shown = {title: body for title, body in parts.items() if body}
    body = tag(
        "body",
        tag("header", *_head(report), _links(shown)),
        tag("main", (_section(title, body) for title, body in shown.items())),
        tag("footer", tag("p", f"fsdp2lint {__version__}", class_="dim")),
        tag("script", raw(FILTER)),
    )
    made = f"<!doctype html>\n{tag('html', _meta(report), body, lang='en')}\n"
    return lines(made).encode("utf-8", "backslashreplace").decode("utf-8")


def _meta(report: Report) -> Markup:
    """The head; the policy lets nothing be loaded and no script run but the one of this page."""
    digest = base64.b64encode(hashlib.sha256(FILTER.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{report.before} and {report.after}: {report.verdict or 'migrated'}"),
        tag("style", raw(STYLE)),
    )


def _head(report: Report) -> Iterator[Markup]:
    badge = report.verdict or "not run"
    title = join(tag("code", report.before), " → ", tag("code", report.after))
    yield tag(
        "div",
        tag("h1", title),
        tag("span", badge, class_=f"badge {_BADGES[report.verdict]}"),
        tag("span", _height(report), class_="dim"),
        class_="top",
    )
    if report.failure:
        yield tag("p", _broken(report.failure), class_="failure mono")
    facts = (tag("div", tag("dt", label), tag("dd", value)) for label, value in report.facts)
    if report.facts:
        yield tag("dl", facts, class_="facts")
    if report.rungs:
        yield tag(
            "ol",
            (_rung(rung) for rung in sorted(report.rungs, key=lambda one: one.number)),
            class_="ladder",
        )


def _height(report: Report) -> str:
    if not report.rungs:
        return ""
    highest = reached(report.rungs)
    if highest is None:
        return "no rung of the proof ladder reached"
    title = next(rung.title for rung in report.rungs if rung.number == highest)
    return f"rung {highest} of the proof ladder reached: {title}"


def _rung(rung: Rung) -> Markup:
    return tag(
        "li",
        tag("b", f"{rung.number} {rung.title}"),
        tag("span", f" {rung.state}", class_="dim"),
        tag("p", prose(rung.why)) if rung.why else "",
        class_=rung.state.replace(" ", "-"),
    )


def _section(title: str, body: Markup) -> Markup:
    return tag("section", tag("h2", title), body, id=title.lower())


def _links(titles: Iterable[str]) -> Markup:
    return tag("nav", (tag("a", title, href=f"#{title.lower()}") for title in titles))


def _broken(text: str) -> Iterator[Markup]:
    for line in text.splitlines():
        yield join(line, tag("br"))
