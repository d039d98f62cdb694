"""A migration as commits: one for the settings, then one for each model, and each state of the files runs.

A model is migrated whole in one of them, and until then not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fsdp2lint.migrate.engine import Migration
from fsdp2lint.migrate.ledger import Entry
from fsdp2lint.migrate.units import Model, Stuck
from fsdp2lint.source.source import Source

MOST = 8
"""So many models have commits of their own; the others share the last one."""

Without = Callable[[Collection[Stuck]], Migration]
"""The migration in which the models of some constructors stay."""
Change = tuple[Source, Source]


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit changes: its files before and after, and what it accounts for."""

    title: str
    changed: Sequence[Change]
    entries: Sequence[Entry]


def commits(
    whole: Migration, models: Sequence[Model], without: Without, *, settings_first: bool
) -> Iterator[Commit]:
    """The commits of a migration; ``settings_first`` unless the settings need the new code."""
    settings = [pair for pair in whole.changed if not _is_python(pair[0])]
    paths = {old.path for old, _ in settings}
    about = [one for one in whole.ledger.entries if one.path in paths]
    last = Commit("settings for FSDP2", settings, about)
    if settings and settings_first:
        yield last
    yield from _of_models(whole, models[:MOST], without)
    if settings and not settings_first:
        yield last


def _of_models(whole: Migration, models: Sequence[Model], without: Without) -> Iterator[Commit]:
    """A commit for each model, and what is left with the last of them."""
    before = {one.path: one for one in whole.before if _is_python(one)}
    said: set[object] = set()
    waiting: list[Model] = []
    for index, model in enumerate(models):
        waiting.append(model)
        staying = [one for other in models[index + 1 :] for one in other.constructors]
        made = without(staying) if staying else whole
        if staying and not _runs(made, whole):
            continue  # together with the next
        after = {one.path: one for one in made.after if one.path in before}
        changed = [(before[path], after[path]) for path in before if _differs(before, after, path)]
        entries = [
            one
            for one in made.ledger.entries
            if one.path in before and one.start not in said and (made is whole or _is_done(one))
        ]
        said.update(one.start for one in entries)
        yield Commit(_title(waiting), changed, entries)
        before, waiting = after, []
    if not models:
        changed = [pair for pair in whole.changed if _is_python(pair[0])]
        entries = [one for one in whole.ledger.entries if one.path in before]
        yield Commit("FSDP2 for FSDP1", changed, entries)


def _is_python(source: Source) -> bool:
    return source.path.endswith((".py", ".pyi", ".ipynb"))


def _differs(before: dict[str, Source], after: dict[str, Source], path: str) -> bool:
    return before[path].text != after[path].text


def _runs(made: Migration, whole: Migration) -> bool:
    """Whether a state between the two breaks nothing that the whole does not break."""
    known = {(rule.code, finding.message) for rule, finding in whole.remaining}
    return not made.failures and all(
        (rule.code, finding.message) in known for rule, finding in made.remaining
    )


def _is_done(entry: Entry) -> bool:
    return entry.fate in ("changed", "dropped")


def _title(models: Sequence[Model]) -> str:
    places = list(dict.fromkeys(one.shown for model in models for one in model.constructors))
    return f"fully_shard for the model of {places[0]}" + (
        f" and {len(places) - 1} more" if len(places) > 1 else ""
    )
