"""What each torch release offers in its distributed packages: names, signatures, deprecations.

The facts lie in ``history.json``, which :mod:`fsdp2lint.torch_api.collect` reads from the releases' wheels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).with_name("history.json")

Release = tuple[int, int]
"""The major and the minor number of a torch release."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A public name of torch: the first release of the data that has it, and how it is called.

    ``until`` is the last release that has it; None when the newest one does. ``signatures`` are the parameters as text, each from the release that brought it on. ``deprecated`` is
    the first release that marks the name so with ``typing_extensions.deprecated``.
    """

    since: Release
    until: Release | None
    signatures: tuple[tuple[Release, tuple[str, ...]], ...] = ()
    deprecated: Release | None = None

    def parameters(self, at: Release) -> tuple[str, ...]:
        """The names of the parameters in a release, a variadic one with its stars."""
        known = [names for since, names in self.signatures if since <= at]
        return known[-1] if known else ()


def releases() -> tuple[Release, ...]:
    """The releases that the data know, oldest first."""
    return tuple(_release(one) for one in _data()["releases"])


@lru_cache(maxsize=256)
def offer(name: str) -> Offer | None:
    """What is known of a public dotted name, such as ``torch.distributed.fsdp.fully_shard``; None: nothing."""
    found = _data()["names"].get(name)
    if found is None:
        return None
    return Offer(
        since=_release(found["since"]),
        until=None if found["until"] == _data()["releases"][-1] else _release(found["until"]),
        signatures=tuple(
            (_release(since), tuple(names.split()))
            for since, names in found.get("parameters", {}).items()
        ),
        deprecated=_release(found["deprecated"]) if "deprecated" in found else None,
    )


@lru_cache(maxsize=64)
def exported(module: str, since: Release) -> frozenset[str]:
    """The names that a public module has in every release of the data from ``since`` on."""
    return frozenset(
        name
        for dotted in _data()["names"]
        for home, _, name in (dotted.rpartition("."),)
        if home == module and (one := offer(dotted)) and one.since <= since and one.until is None
    )


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    """The file as it is; its shape is in ``collect.py``."""
    loaded: dict[str, Any] = json.loads(HISTORY.read_text(encoding="utf-8"))
    return loaded


def _release(text: str) -> Release:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)
