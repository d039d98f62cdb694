"""Which rules run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.toolrules import ALWAYS_ON, TOOL_RULES
from fsdp2lint.check.stored import pack_rules, unpacked_rules
from fsdp2lint.config import resolve
from fsdp2lint.config.files import Config
from fsdp2lint.config.settings import BadSetting, Settings, unknown
from tests.support.running import invoke
from tests.support.saying import EVERY, rule

TOOL = {r.code for r in TOOL_RULES}
STUBBORN = {r.code for r in ALWAYS_ON}


def codes(**given: object) -> set[str]:
    return {r.code for r in Settings(**given).chosen(EVERY)}  # type: ignore[arg-type]


def test_default() -> None:
    assert codes() == {"FSDP101", "FSDP201", "FSDP203", "FSDP228", "FSDP301"} | TOOL


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        (("FSDP203",), {"FSDP203"}),
        (("fsdp203",), {"FSDP203"}),
        (("direct-forward-call",), {"FSDP203"}),
        (("FSDP2",), {"FSDP201", "FSDP203", "FSDP228"}),
        (("FSDP20",), {"FSDP201", "FSDP203"}),
        (("correctness",), {"FSDP201", "FSDP203", "FSDP301"}),
        (("migration", "perf"), {"FSDP101", "FSDP102", "FSDP501"}),
        (("FSDP",), {r.code for r in EVERY} | TOOL),
        (("ALL",), {r.code for r in EVERY} | TOOL),
        (("suspicious",), {"FSDP228", "FSDP901", "FSDP902"}),
    ],
)
def test_select(select: tuple[str, ...], chosen: set[str]) -> None:
    assert codes(select=select) == chosen | STUBBORN


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"ignore": ("FSDP1",)}, {"FSDP201", "FSDP203", "FSDP228", "FSDP301"} | TOOL),
        ({"ignore": ("migration", "FSDP9")}, {"FSDP201", "FSDP203", "FSDP228", "FSDP301"}),
        ({"ignore": ("FSDP203",)}, {"FSDP101", "FSDP201", "FSDP228", "FSDP301"} | TOOL),
        ({"select": ("FSDP2",), "ignore": ("FSDP203",)}, {"FSDP201", "FSDP228"}),
        ({"select": ("FSDP203",), "ignore": ("FSDP2",)}, {"FSDP203"}),
        ({"select": ("FSDP2",), "ignore": ("FSDP2",)}, set()),
        ({"select": ("FSDP2",), "ignore": ("ALL",)}, {"FSDP201", "FSDP203", "FSDP228"}),
        ({"select": ("FSDP3",), "extend_select": ("slow",)}, {"FSDP301", "FSDP501"}),
        ({"select": ("FSDP203",), "ignore": ("direct-forward-call",)}, set()),
    ],
)
def test_the_more_precise_one_wins(given: dict[str, object], chosen: set[str]) -> None:
    assert codes(**given) == chosen | STUBBORN


def test_what_was_not_checked_is_always_said() -> None:
    assert codes(ignore=("ALL", "FSDP900", "FSDP999")) == STUBBORN


@pytest.mark.parametrize("selector", ["FSDP777", "FSDP2O3", "forward", "E501", "", "FSD"])
@pytest.mark.parametrize("where", ["select", "extend_select", "ignore"])
def test_an_unknown_selector_is_an_error(where: str, selector: str) -> None:
    with pytest.raises(BadSetting, match="unknown rule"):
        codes(**{where: (selector,)})


@pytest.mark.parametrize(
    ("since", "until", "target", "runs"),
    [
        ("2.6", "", "2.6", True),
        ("2.8", "", "2.6", False),
        ("2.8", "", "2.8.1", True),
        ("2.10", "", "2.9", False),
        ("2.6", "2.7", "2.7", True),
        ("2.6", "2.7", "2.8", False),
        ("2.8", "", "2.9.0+cpu", True),
        ("2.6", "2.7", "2.7.0+cu126", True),
    ],
)
def test_target_torch(since: str, until: str, target: str, runs: bool) -> None:
    one = rule("FSDP299", "of-some-releases", since=since, until=until)
    assert (one in Settings(target_torch=target).chosen([one])) is runs


def test_a_target_that_is_no_version() -> None:
    with pytest.raises(BadSetting, match="`newest` is not a torch version"):
        codes(target_torch="newest")


def test_the_rules_of_the_folder_can_all_be_chosen() -> None:
    known = knowledge.rules()
    everything = Settings(select=("ALL",), preview=True)
    assert set(everything.chosen(known)) == {*known, *TOOL_RULES} - {
        r for r in known if r.since != "2.6"
    }


def test_did_you_mean() -> None:
    known = ["FSDP203", "direct-forward-call"]
    assert unknown("rule", "FSDP2O3", known) == "unknown rule `FSDP2O3`, did you mean `FSDP203`?"
    assert unknown("rule", "direct_forward_call", known).endswith("`direct-forward-call`?")
    assert unknown("rule", "FSDP204", known) == "unknown rule `FSDP204`"


def test_rules_that_are_tried_out_run_only_when_asked() -> None:
    tried = replace(EVERY[1], code="FSDP299", name="tried-out", group="suspicious", preview=True)
    every = (*EVERY, tried)
    assert tried not in Settings().chosen(every)
    assert tried not in Settings(select=("ALL",)).chosen(every), "nor with the others of a group"
    assert tried in Settings(preview=True).chosen(every)
    assert tried in Settings(preview=True, select=("FSDP299",)).chosen(every)
    assert tried not in Settings(preview=True, ignore=("FSDP299",)).chosen(every)
    with pytest.raises(BadSetting, match="`tried-out` is in preview: --preview runs it"):
        Settings(select=("tried-out",)).chosen(every)


def test_the_preview_is_an_option_and_a_key(tmp_path: Path) -> None:
    for words in (("--preview",), ("--config", "preview=true")):
        shown = invoke("check", "--show-settings", *words, cwd=tmp_path)
        assert "preview = true\n" in shown.stdout
    assert resolve.settings(Config("", None, {"preview": True}, {}), {}).preview
    assert not resolve.settings(Config("", None, {"preview": True}, {}), {"preview": False}).preview


def test_a_rule_is_kept_with_what_it_says_of_itself() -> None:
    """In the cache too."""
    tried = replace(EVERY[1], preview=True, until="2.8")
    (kept,) = unpacked_rules(pack_rules([tried])) or ()
    assert replace(kept, check=tried.check) == tried
