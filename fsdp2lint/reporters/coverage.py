"""What was followed of each training program and what was not, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fsdp2lint.check.coverage import KINDS, gaps

if TYPE_CHECKING:
    from fsdp2lint.check.coverage import Lost, Program, Seen
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View
    from fsdp2lint.reporters._records import Record

VERSION = 1


def render(report: Report, view: View) -> str:
    """One object: the files, how many were analysed, a record for each program, and findings in other files."""
    raw = msgspec.json.encode(
        {
            "version": VERSION,
            "files": report.files,
            "analysed": report.analysed,
            "summary": gaps(report.programs),
            "settings_without_script": list(report.alone),
            "programs": [_record(one) for one in report.programs],
            "elsewhere": [
                {"code": d.rule.code, "filename": d.place.part, "line": d.place.range.line}
                for d in report.elsewhere
            ],
        }
    )
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def _record(program: Program) -> Record:
    return {
        "filename": program.file,
        "begins": program.begins,
        "followed": program.begins and program.whole,
        **{kind: [_named(seen) for seen in program.of(kind)] for kind in KINDS},
        "lost": [_named(lost) for lost in program.lost],
    }


def _named(one: Seen | Lost) -> Record:
    """Its fields by their names."""
    record = one._asdict()
    return {"filename": record.pop("file"), **record}
