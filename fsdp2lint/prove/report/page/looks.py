"""How the page looks in light and in dark, and the script by which the ledger is filtered."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #fff; --panel: #f6f8fa; --text: #1f2328; --dim: #59636e; --edge: #d1d9e0;
  --good: #1a7f37; --bad: #cf222e; --wait: #6e7781; --add: #dafbe1; --del: #ffebe9; --hunk: #0969da;
  --before: #f0a35e; --after: #0b57d0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0d1117; --panel: #151b23; --text: #e6edf3; --dim: #9198a1; --edge: #3d444d;
    --good: #3fb950; --bad: #f85149; --wait: #9198a1; --add: #12361f; --del: #4a1b1e;
    --hunk: #79c0ff; --before: #b8772f; --after: #79b8ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--ground);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .7rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
code, pre, .mono { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; } td > code, td > a > code { white-space: nowrap; } h1 code { font-size: 1.2rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0; }
a { color: var(--hunk); }
.top { display: flex; flex-wrap: wrap; align-items: center; gap: .8rem; }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.badge { border-radius: 1rem; padding: .15rem .8rem; font-weight: 600; }
.badge.good, .badge.bad, .badge.wait { background: #59636e; color: #fff; }
.badge.good { background: #1a7f37; } .badge.bad { background: #cf222e; }
.facts { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; margin: .6rem 0; }
.facts dt { color: var(--dim); display: inline; } .facts dd { display: inline; margin: 0 0 0 .4rem; }
.ladder {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .6rem;
  list-style: none; margin: 1rem 0; padding: 0;
}
.ladder li { border: 1px solid var(--edge); border-top: 4px solid var(--wait); border-radius: 6px; padding: .5rem .7rem; }
.ladder .reached { border-top-color: var(--good); } .ladder .failed { border-top-color: var(--bad); }
.ladder p { margin: .2rem 0 0; font-size: .9rem; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--edge); border-radius: 6px; padding: .7rem; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin-bottom: .3rem; }
.key::before { content: ""; display: inline-block; width: 1.4rem; margin-right: .4rem; vertical-align: middle; }
.key.before::before { border-top: 6px solid var(--before); } .key.after::before { border-top: 2px solid var(--after); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
figure.wide svg + svg { display: none; }
@media (max-width: 48rem) {
  td > code, td > a > code { white-space: normal; } td { min-width: 4rem; }
  figure.wide svg { display: none; } figure.wide svg + svg { display: block; }
}
svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--edge); stroke-width: 1; }
svg path { fill: none; stroke-linecap: round; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
svg path.before { stroke: var(--before); stroke-width: 5; } svg path.after { stroke: var(--after); stroke-width: 1.6; }
svg .dot { fill: transparent; } svg .dot:hover { fill: var(--after); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--edge); padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td ul { margin: .2rem 0; padding-left: 1.1rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 1.5rem; }
.pair > div { min-width: 0; }
.pair ul { margin: 0; padding-left: 1.1rem; } li.mono { margin: .15rem 0; }
.filter { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: center; margin: .5rem 0; }
.filter input[type=search] { font: inherit; padding: .25rem .5rem; min-width: 14rem; }
.outcome { font-weight: 600; white-space: nowrap; }
.outcome.preserved { color: var(--good); } .outcome.manual, .outcome.open { color: var(--bad); }
details { border: 1px solid var(--edge); border-radius: 6px; margin: .6rem 0; }
summary { background: var(--panel); border-radius: 6px; cursor: pointer; padding: .4rem .7rem; }
summary b.add { color: var(--good); } summary b.del { color: var(--bad); }
pre { margin: 0; overflow-x: auto; padding: .5rem 0; }
pre span { display: inline-block; min-width: 100%; padding: 0 .7rem; white-space: pre; }
pre .add { background: var(--add); } pre .del { background: var(--del); } pre .hunk { color: var(--hunk); }
.failure { border-left: 4px solid var(--bad); padding: .5rem .8rem; background: var(--panel); }
"""

FILTER = """
(function () {
  var form = document.getElementById("filter");
  if (!form) return;
  var rows = Array.from(document.querySelectorAll("#ledger tbody tr[data-outcome]"));
  var count = document.getElementById("shown");
  form.hidden = false;
  function apply() {
    var wanted = Array.from(form.querySelectorAll("input[type=checkbox]:checked"), function (box) {
      return box.value;
    });
    var words = form.querySelector("input[type=search]").value.toLowerCase();
    var shown = 0;
    rows.forEach(function (row) {
      var fits = wanted.includes(row.dataset.outcome) && row.textContent.toLowerCase().includes(words);
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = shown + " of " + rows.length;
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  apply();
})();
"""
