"""The report page: everything is on it, nothing comes from elsewhere, nothing gets out of its place."""

from __future__ import annotations

import html as entities
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from fsdp2lint.plan.data import Group, Model, Optimizer, Plan, Tensor, Traffic, Transfer, Unit
from fsdp2lint.prove.compare import Verification
from fsdp2lint.prove.ladder import Rung
from fsdp2lint.prove.report import Curve, Entry, Report, html, report_of, write_report
from fsdp2lint.prove.report.changes import files
from fsdp2lint.prove.report.markup import Markup, prose, tag
from fsdp2lint.prove.report.page.sections import plot, round_ticks, thinned
from fsdp2lint.rehearse.launch import Run
from fsdp2lint.rehearse.outcome import Frame, RankReport, Request, Spot, Step, Violation
from fsdp2lint.rehearse.rehearse import Rehearsal
from fsdp2lint.rehearse.results import Compared, Difference
from fsdp2lint.system.journal import NotWritten

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" onload='x' & `<b>`"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VOID = {"meta", "input", "br", "line", "path", "rect", "circle"}
DIFF = """\
diff --git a/train.py b/train.py
--- a/train.py
+++ b/train.py
@@ -1,3 +1,3 @@
 import torch
--- a comment in SQL
+++ counter
 model = Net()
diff --git a/old.py b/old.py
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x = "</pre><script>alert(3)</script>"
\\ No newline at end of file
"""


def unit(name: str, size: int, api: str = "fsdp1") -> Unit:
    tensors = (Tensor(f"{name}.weight", (size, 4), "float32"),)
    traffic = Traffic(Transfer(2, size * 32), Transfer(1, size * 16))
    settings = (8, 1, True, "bfloat16", "float32", size * 2, 0, size * 16, size * 2, traffic)
    return Unit(name, tensors, "fsdp1" if api == "fsdp1" else "fsdp2", *settings)


def planned(api: str, decay: float) -> Plan:
    units = tuple(unit(f"blocks.{n}", 64, api) for n in range(3))
    names = tuple(f"blocks.{n}.weight" for n in range(3))
    groups = (Group({"lr": 0.1, "weight_decay": decay}, names),)
    return Plan("train.py", 8, (Model("Net", units),), (Optimizer("AdamW", groups, 1024),))


LOSSES = tuple(3 / (step + 1) for step in range(20))
REPORT = Report(
    before="before/train.py",
    after=f"after/{EVIL}",
    verdict="different",
    rungs=(Rung(3, "failed", EVIL), Rung(0, "reached", "quiet"), Rung(1, "not tried")),
    facts=(("ranks", "2 on CPU"), ("arguments", EVIL)),
    failure=f"rank 0 raised\n{EVIL}",
    curves=(
        Curve("loss", LOSSES, (*LOSSES[:12], *(loss + 0.25 for loss in LOSSES[12:]))),
        Curve("gradient norm", (1.0, None, 2.0, 3.0, math.inf), (1.0, None, 2.0, 3.0, math.inf)),
        Curve(EVIL, (5.0,) * 4),
    ),
    compared=(
        Compared(
            "losses",
            40,
            24,
            0.5,
            [Difference("loss", f"step 13 {EVIL}", 13, more=7, causes=(f"begins here {EVIL}",))],
        ),
        Compared("parameters", 19, 19, notes=["all of them"]),
    ),
    plans=(planned("fsdp1", 0.1), planned("fsdp2", 0.0)),
    diff=DIFF,
    ledger=(
        Entry("train.py", 3, "FullyShardedDataParallel", "changed", "now `fully_shard`"),
        Entry("train.py", 9, "limit_all_gathers", "dropped", "no rate limiter"),
        Entry("util.py", 2, EVIL, "manual", EVIL),
    ),
    notes=(EVIL,),
)


class Page(HTMLParser):
    """Reads a page, insisting that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("script", "style"):
            self.text.append(data)

    def count(self, name: str, **wanted: str) -> int:
        return sum(
            name == tag and wanted.items() <= attributes.items()
            for tag, attributes in self.elements
        )


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(html(REPORT))


def test_everything_is_on_the_page(page: Page) -> None:
    said = "".join(page.text)
    for part in (
        "rung 0 of the proof ladder reached: text",
        "first unequal in step 13, at most 0.25 apart",
        "and 7 more",
        "begins here",
        "8 ranks, planned in one process",
        "3x blocks.*: 1 parameter",
        "blocks.0.weight and 2 others",
        "weight_decay=0.1",
        "no rate limiter",
        "-x = ",
    ):
        assert part in said, part
    for title in ("Curves", "Comparison", "Plan", "Ledger", "Diff", "Notes"):
        assert (
            page.count("section", id=title.lower())
            == page.count("a", href=f"#{title.lower()}")
            == 1
        )
    assert page.count("svg") == 4  # the first curve also for small screens
    assert page.count("tr", **{"data-outcome": "manual"}) == 1
    assert page.count("input", type="checkbox") == 3
    assert page.count("a", href="#diff-0") == 2
    assert page.count("details", id="diff-1") == 1
    assert page.count("li", **{"class": "failed"}) == 1


def test_hostile_text_stays_text(page: Page) -> None:
    said = "".join(page.text).replace("`", "")
    assert said.count(EVIL.replace("`", "")) == 11
    assert page.count("script") == 1
    assert page.count("img") == 0
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]


def test_nothing_comes_from_elsewhere(page: Page) -> None:
    for element, attributes in page.elements:
        assert element not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    text = html(REPORT)
    assert "default-src &#x27;none&#x27;" in text
    assert not re.findall(r"url\(|@import|https?://", text)


def test_a_report_with_nothing_in_it_is_a_page() -> None:
    empty = Page(html(Report("a.py", "b.py")))
    assert empty.count("section") == 0
    assert "not run" in "".join(empty.text)
    one = Page(html(Report("a.py", "b.py", plans=(planned("fsdp1", 0.1),))))
    assert "before" not in "".join(one.text)


def test_equal_plans_are_said_to_be() -> None:
    same = Report("a", "b", plans=(planned("fsdp1", 0.1), planned("fsdp2", 0.1)))
    assert "trained alike" in html(same)
    assert "trained alike" not in html(REPORT)


def test_the_files_of_a_diff() -> None:
    assert files(DIFF) == ["train.py", "old.py"]
    page = Page(html(Report("a", "b", diff=DIFF)))
    assert page.count("span", **{"class": "del"}) == 2
    assert page.count("span", **{"class": "add"}) == 1
    assert "diff --git" not in "".join(page.text)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 1.0), (3.2, 3.4), (-5.0, 1e9), (1e-9, 2e-9), (7.0, 7.0), (0.0, 0.0), (1.0, 1.0000001)],
)
def test_ticks_are_round_and_hold_the_values(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    slack = (ticks[-1] - ticks[0]) * 1e-6
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert len({format(tick, ".4g") for tick in ticks}) == len(ticks)


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [math.sin(step / 50) for step in range(20_000)]
    values[7_777] = 40.0
    drawn = list(thinned(values))
    assert len(drawn) < 1_000
    assert (7_778, 40.0) in drawn
    assert [step for step, _ in drawn] == sorted({step for step, _ in drawn})
    assert len(plot(Curve("loss", tuple(values)), 500)) < 30_000


def test_a_curve_breaks_where_a_value_is_missing() -> None:
    drawn = plot(Curve("norm", (1.0, 2.0, None, 3.0, 4.0)), 500)
    path = re.search(r'<path d="([^"]+)"', drawn)
    assert path is not None
    assert re.sub(r"[\d.,]+", "", path[1]) == "Mh L Mh L"


def test_markup_escapes_unless_told() -> None:
    assert tag("p", "<b>", Markup("<i></i>"), title='"x"') == (
        '<p title="&quot;x&quot;">&lt;b&gt;<i></i></p>'
    )
    assert tag("input", checked=True, hidden=False) == '<input checked=""/>'
    assert prose("a `b<` c") == "a <code>b&lt;</code> c"
    assert prose("a ` b") == "a ` b"


def rehearsal(steps: list[Step], how: str = "ended", **more: object) -> Rehearsal:
    ranks = [
        msgspec.convert({"rank": rank, "how": how, "steps": steps} | more, RankReport)
        for rank in range(2)
    ]
    return Rehearsal(
        Request(str(Path.cwd() / "train.py"), ""), Run(ranks=ranks, seconds=2.5), [], []
    )


def test_a_verification_becomes_a_report() -> None:
    steps = [Step([2.0], 2.0, [0.1, 0.1]), Step([1.0], 0.5, [0.05, 0.05])]
    verification = Verification(rehearsal(steps), rehearsal(steps), rungs=[Rung(3, "reached")])
    report = report_of(verification, ledger=REPORT.ledger)
    assert (report.before, report.verdict) == ("train.py", "equal")
    assert [curve.title for curve in report.curves] == [
        "loss (mean of the ranks)",
        "gradient norm",
        "learning rate of group 1",
    ]
    assert report.curves[0].before == (2.0, 1.0)
    assert report.curves[1].after == (2.0, 1.0)
    assert ("steps", "2") in report.facts
    assert "equal in every step" in html(report)


def test_what_breaks_the_contract_is_on_the_page(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("model = build()\nmodel.forward(x)\n")
    old = Violation("FSDP260", "1 of 3 tensors got no gradient", Spot(str(script), 1))
    new = Violation("FSDP261", "ranks differ", Spot(str(script), 1))
    broken = Violation("FSDP203", "`forward` passes by the <hooks>", Spot(str(script), 2))
    before, after = rehearsal([]), rehearsal([])
    before = replace(before, doubts=[old])
    after = replace(after, violations=[broken], doubts=[old, new])
    report = report_of(Verification(before, after))
    page = html(report)
    assert "error[FSDP203] direct-forward-call: `forward` passes by the &lt;hooks&gt;" in page
    assert "2 | model.forward(x)" in page
    assert "warning[FSDP261] rank-local-statistics: ranks differ" in page
    assert "FSDP260" not in page, "it was so before"
    assert 'id="contract"' not in html(report_of(Verification(before, before)))


def test_a_failed_run_becomes_a_report() -> None:
    frames = [Frame(Spot("/x/train.py", 7), "main")]
    failed = rehearsal([], "raised", error="ValueError: no data", frames=frames)
    report = report_of(Verification(failed, fault="BEFORE"))
    assert (report.verdict, report.after) == ("could not run", "")
    assert "train.py:7 in main" in report.failure
    assert "ValueError: no data" in html(report)


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_report(REPORT, target)
    assert target.read_text("utf-8") == html(REPORT)
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(NotWritten, match="No such file"):
        write_report(REPORT, tmp_path / "nowhere" / "report.html")


PROBE = """
var form = document.getElementById("filter"), before = document.getElementById("shown").textContent;
form.querySelector("input[value=changed]").click();
var boxes = document.getElementById("shown").textContent;
var words = form.querySelector("input[type=search]");
words.value = "RATE limiter"; words.dispatchEvent(new Event("input", {bubbles: true}));
var rows = Array.from(document.querySelectorAll("#ledger tbody tr"));
var seen = Array.from(document.querySelectorAll("svg")).filter(function (svg) {
  return svg.getBoundingClientRect().width > 200;
});
document.body.dataset.probe = JSON.stringify({
  before: before, boxes: boxes,
  rows: rows.filter(function (row) { return row.offsetHeight > 0; }).length,
  plots: seen.length,
  lines: Array.from(document.querySelectorAll("svg path")).filter(function (path) {
    return path.getBoundingClientRect().width > 100;
  }).length,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  badge: getComputedStyle(document.querySelector(".badge")).color
});
"""


def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


def dom(page: Path, width: int, folder: Path) -> str:
    command = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},900", f"--user-data-dir={folder}", page.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return run.stdout


@pytest.mark.parametrize("width", [1280, 520])
def test_the_page_works_in_a_browser(tmp_path: Path, width: int) -> None:
    text = html(REPORT)
    # the probe is no script of the page: for it alone the policy has to go
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page = tmp_path / "probed.html"
    page.write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"), "utf-8")
    found = re.search(r'data-probe="([^"]*)"', dom(page, width, tmp_path / "profile"))
    assert found is not None
    assert json.loads(entities.unescape(found[1])) == {
        "before": "3 of 3",
        "boxes": "2 of 3",
        "rows": 1,
        "plots": 3,
        "lines": 5,
        "overflow": 0,
        "badge": "rgb(255, 255, 255)",
    }


def test_the_policy_of_the_page_lets_only_its_own_script_run(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    intruder = "<script>document.body.dataset.intruder = 1</script></body>"
    page.write_text(html(REPORT).replace("</body>", intruder), "utf-8")
    shown = dom(page, 1000, tmp_path / "profile")
    assert "3 of 3" in shown
    assert "data-intruder" not in shown
