"""The run-time checks see the damage of the rules' bad fixtures, and none in good ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

fsdp = pytest.importorskip("torch.distributed.fsdp")

from fsdp2lint.catalogue import knowledge  # noqa: E402
from fsdp2lint.rehearse import contract  # noqa: E402
from tests.evidence.header import Fixture, fixtures  # noqa: E402

from .scenes import ROOT, Rehearsed, forking, runs_here  # noqa: E402

pytestmark = pytest.mark.ranks

RULES = ROOT / "fixtures" / "rules"
SCRIPTS = Path(__file__).parent / "scripts"
TOLD = {
    code
    for path in (ROOT / "fsdp2lint" / "rehearse").rglob("*.py")
    for code in re.findall(r'"(FSDP\d{3})"', path.read_text(encoding="utf-8"))
}
"""The codes of the rules that a run can show to be broken."""

BAD = {
    "optimizer_before_shard/bad_between_blocks_and_root.py": "FSDP201",
    "optimizer_after_forward/bad_sanity_forward.py": "FSDP202",
    "direct_forward_call/bad_inner_block.py": "FSDP203",
    "unregistered_forward_method/bad_encode.py": "FSDP204",
    "root_not_sharded/bad_blocks_only.py": "FSDP206",
    "buffers_not_reinitialized/bad_straight_line.py": "FSDP217",
    "dcp_load_not_applied/bad_straight_line.py": "FSDP306",
    "gradient_sync_left_off/bad_before_loop.py": "FSDP211",
    "meta_never_initialized/bad_across_files/main.py": "FSDP251",
    "optimizer_before_meta_load/bad_assign.py": "FSDP252",
    "optimizer_before_meta_load/bad_straight_line.py": "FSDP252",
    "module_added_after_shard/bad_adapters.py": "FSDP212",
    "partial_value_read/bad_straight_line.py": "FSDP218",
    "stale_parameter_list/bad_clip.py": "FSDP220",
    "torch_save_sharded/bad_rank_zero_file.py": "FSDP301",
    "plain_load_into_sharded/bad_after_shard.py": "FSDP303",
    "async_save_not_awaited/bad_dropped.py": "FSDP307",
    "async_save_without_cpu_backend/bad_nccl_only.py": "FSDP308",
    "collective_under_rank_guard/bad_full_tensor.py": "FSDP401",
    "rank_divergent_exit/bad_return_before_save.py": "FSDP402",
}


def _near_misses() -> Iterator[Fixture]:
    """All of the rules that a run can show to be broken, and one of each other rule."""
    told = {rule.name for rule in knowledge.rules() if rule.code in TOLD}
    others: set[str] = set()
    for fixture in fixtures():
        rule = fixture.path.parent.name.replace("_", "-")
        if fixture.bad or rule in others or not runs_here(fixture.script):
            continue
        if rule not in told:
            others.add(rule)
        yield fixture


GOOD = list(_near_misses())
HERE = (
    "flexible_attention.py",
    "guarded.py",
    "guarded_breaks.py",
    "guarded_doubts.py",
    "guarded_late.py",
    "guarded_starts.py",
    "shared_steps.py",
    "ranks_differ.py",
    "direct_call.py",
    "buffers_differ.py",
    "schedules.py",
    "never_trained.py",
    "apart_in_blocks.py",
    "apart_in_replicas.py",
    "apart_in_units.py",
    "experts_left_out.py",
    "options_and_graphs.py",
)
"""Scripts beside this file: what their lines marked `# seen:` break, and nothing else."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsed]:
    """Every script's reports and violations."""
    with forking() as ranks:
        yield Rehearsed(ranks, tmp_path_factory.mktemp("scenes"))


def expected_line(script: Path, code: str) -> int:
    lines = script.read_text("utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if f"# expect: {code}" in line)


@pytest.mark.parametrize(("name", "code"), BAD.items())
def test_a_bad_script_breaks_its_rule_and_no_other(told: Rehearsed, name: str, code: str) -> None:
    _, violations = told[RULES / name]
    assert [violation.code for violation in violations] == [code]


@pytest.mark.parametrize("code", ["FSDP201", "FSDP202", "FSDP203", "FSDP252", "FSDP301", "FSDP307"])
def test_the_place_is_the_one_that_check_names(told: Rehearsed, code: str) -> None:
    name = next(name for name, its in BAD.items() if its == code)
    at = told[RULES / name][1][0].at
    assert at is not None
    assert at.line == expected_line(RULES / name, code)


@pytest.mark.parametrize("fixture", GOOD, ids=lambda fixture: fixture.name)
def test_a_good_script_breaks_nothing(told: Rehearsed, fixture: Fixture) -> None:
    ranks, violations = told[fixture.script]
    assert violations == []
    assert contract.doubts(ranks) == []
    assert [rank.how for rank in ranks] == ["ended", "ended"]


def test_every_rule_that_a_run_can_break_has_near_misses() -> None:
    told_of = {fixture.path.parent.name.replace("_", "-") for fixture in GOOD}
    assert {rule.name for rule in knowledge.rules() if rule.code in TOLD} <= told_of


DOUBTFUL = {
    "buffers_differ.py": [
        (
            "FSDP261",
            30,
            "training leaves different values of the buffer `norm.running_mean` and 1 more on the ranks: "
            "a checkpoint keeps those of the rank that writes it",
        )
    ],
    "never_trained.py": [
        (
            "FSDP260",
            27,
            "2 of 4 trainable tensors in `AdamW` got no gradient in any step: spare.weight, spare.bias",
        ),
        (
            "FSDP260",
            28,
            "1 of 1 trainable tensors in `SGD` had gradients and never changed: slow.weight",
        ),
    ],
    "schedules.py": [
        (
            "FSDP306",
            14,
            "`LambdaLR`, built after the optimizer's state was loaded, puts the learning rate 0.1 "
            "in place of the loaded 0.05",
        ),
        (
            "FSDP306",
            14,
            "`LambdaLR` starts anew beside a loaded optimizer: its next step puts its own "
            "learning rate in place of the loaded 0.05",
        ),
    ],
}


@pytest.mark.parametrize("name", HERE)
def test_scripts_of_our_own(told: Rehearsed, name: str) -> None:
    text = (SCRIPTS / name).read_text("utf-8")
    wanted = [
        (code, number)
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"# seen: (FSDP\d+)", line)
    ]
    found = [(v.code, v.at.line if v.at else 0) for v in told[SCRIPTS / name][1]]
    assert sorted(found) == sorted(wanted)
    assert [rank.error for rank in told[SCRIPTS / name][0]] == ["", ""]


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_may_be_meant_is_a_doubt_with_its_rule_and_place(told: Rehearsed, name: str) -> None:
    found = [
        (d.code, d.at.line if d.at else 0, d.message)
        for d in contract.doubts(told[SCRIPTS / name][0])
    ]
    assert found == DOUBTFUL[name]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("untrained_parameters/bad_spare_head.py", "FSDP260"),
        ("untrained_parameters/bad_across_files/main.py", "FSDP260"),
        ("rank_local_statistics/bad_small_network.py", "FSDP261"),
    ],
)
def test_a_bad_script_raises_the_doubt_of_its_rule(told: Rehearsed, name: str, code: str) -> None:
    ranks, violations = told[RULES / name]
    assert ([doubt.code for doubt in contract.doubts(ranks)], violations) == ([code], [])


def test_what_a_run_tells_are_rules() -> None:
    assert len(TOLD) > 30
    assert {rule.code for rule in knowledge.rules()} >= TOLD
