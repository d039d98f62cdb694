"""The last lines of the formats that people read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fsdp2lint.check.coverage import gaps, programs_of
from fsdp2lint.system.plain import count

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View

NOUNS = {"error": "error", "warning": "warning", "info": "note"}


def summary(report: Report, view: View) -> list[str]:
    """``Found 3 errors and 1 note.`` and what could be fixed, or that all is well."""
    unfollowed = gaps(report.programs)
    lines = [*_fixed(report, view), *_left(report)]
    safe = sum(d.applicable(unsafe=False) for d in report.found)
    either = sum(d.applicable(unsafe=True) for d in report.found)
    now = either if view.unsafe else safe
    if now and not view.fixing:
        options = "`--fix --unsafe-fixes`" if view.unsafe and either > safe else "`--fix`"
        lines.append(f"[*] {now} fixable with {options}{_more(either - now, also=True)}.")
    elif either > now or (either and not view.fixing):
        lines.append(f"No safe fixes{_more(either, also=False)}.")
    if report.known:
        lines.append(f"{count(len(report.known), 'finding')} of the baseline left out.")
    left = alone(report) if report.alone else ""
    lines += [line for line in (_elsewhere(report), unfollowed, left) if line]
    return lines


def _elsewhere(report: Report) -> str:
    """``1 finding more in a file that was not passed: helper.py:6 (FSDP201).``, the first three by name."""
    found = [d for d in report.elsewhere if d.severity != "info"]
    if not found:
        return ""
    files = len({d.place.path for d in found})
    where = "a file that was not passed" if files == 1 else f"{files} files that were not passed"
    named = [f"{_near(d.place.part)}:{d.place.range.line} ({d.rule.code})" for d in found[:3]]
    rest = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{count(len(found), 'finding')} more in {where}: {', '.join(named)}{rest}."


def _near(path: str) -> str:
    """The path as seen from the working folder, where it lies below."""
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near


def alone(report: Report) -> str:
    """Which settings were checked without the scripts that they are for."""
    first, *more = report.alone
    others = f" and {count(len(more), 'other settings file')}" if more else ""
    named = "them" if more else "it"
    why = f"no launch command names {named} with a script"
    return f"No script was analysed under the settings in {first}{others}: {why}."


def _left(report: Report) -> list[str]:
    if not report.found:
        return [] if report.fixed or report.stale else [_all_is_well(report)]
    counts = [
        count(n, noun)
        for severity, noun in NOUNS.items()
        if (n := sum(d.severity == severity for d in report.found))
    ]
    left = " and ".join(filter(None, [", ".join(counts[:-1]), counts[-1]]))
    return [f"{'Left: ' if report.fixed else 'Found '}{left}."]


def _fixed(report: Report, view: View) -> list[str]:
    lines = [f"Fixed {count(len(report.fixed), 'finding')}."] if report.fixed else []
    if view.show_fixes:
        lines += [
            f"  {d.place.part}:{d.place.range.line}: {d.rule.code} {d.rule.name}"
            for d in report.fixed
        ]
    for diagnostic, why in report.refused:
        place = f"{diagnostic.place.part}:{diagnostic.place.range.line}"
        lines.append(f"Not fixed: {place}: {diagnostic.rule.code}: {why}")
    return lines


def ending(report: Report, view: View) -> list[str]:
    """The summary, unless only findings are wanted."""
    return [] if view.quiet else summary(report, view)


def _more(number: int, *, also: bool) -> str:
    if not number:
        return ""
    more = " more" if also else ""
    return f" ({number}{more} with `--unsafe-fixes`)"


def _all_is_well(report: Report) -> str:
    if not report.files:
        return "No Python files found; nothing was checked."
    files = count(report.files, "file")
    if not report.analysed:
        return f"No FSDP code found in {files}; nothing was checked."
    where = f"FSDP in {report.analysed} of {files}"
    if gaps(report.programs):
        return f"No findings in what was followed ({where})."
    if report.alone:
        return f"No findings in what was analysed ({where})."
    followed = len(programs_of(report.programs))
    if not followed:
        return f"No findings ({where}; no training program was found to follow)."
    where += f"; {count(followed, 'training program')} followed"
    if _elsewhere(report):
        return f"No findings in what was passed ({where})."
    return f"All checks passed! ({where})"
