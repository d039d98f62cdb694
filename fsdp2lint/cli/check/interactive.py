"""``fsdp2lint check --fix --interactive``: each fix is shown, and made when the user says so."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fsdp2lint.reporters import View, render

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic


class Asking:
    """Asks once about each fix; ``a`` answers for all that follow, ``q`` declines them."""

    def __init__(self, colour: bool) -> None:
        self.view = View(quiet=True, colour=colour)
        self.answers: dict[Hashable, bool] = {}
        self.rest: bool | None = None

    def __call__(self, diagnostic: Diagnostic) -> bool:
        """Whether the fix of a finding is to be made."""
        key = (diagnostic.place.path, diagnostic.rule.code, diagnostic.place.line.strip())
        if key not in self.answers:
            self.answers[key] = self._ask(diagnostic) if self.rest is None else self.rest
        return self.answers[key]

    def _ask(self, diagnostic: Diagnostic) -> bool:
        from fsdp2lint.check.diagnostics import Report

        sys.stderr.write(render("full", Report(found=[replace(diagnostic)]), self.view))
        answer = click.prompt(
            "Apply this fix?", type=click.Choice(["y", "n", "a", "q"]), default="y", err=True
        )
        if answer in ("a", "q"):
            self.rest = answer == "a"
        return answer in ("y", "a")
