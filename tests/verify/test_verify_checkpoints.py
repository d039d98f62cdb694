"""Checkpoints of every format come to the same contents, and differ where they differ."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.state_dict_saver import save as save_folder  # noqa: E402

from fsdp2lint.prove.equality.apart.checkpoints import compare_checkpoints  # noqa: E402
from fsdp2lint.prove.equality.shards import Each, cut, flat  # noqa: E402
from fsdp2lint.prove.equality.tensors import compare  # noqa: E402
from fsdp2lint.rehearse.results import Checkpoint, Compared  # noqa: E402
from tests.support import forks  # noqa: E402

NAMES = ["first.weight", "first.bias", "last.weight"]
SHAPES = {name: torch.Size([2, 3]) for name in NAMES}

Tree = dict[str, Any]


def weights(prefix: str = "") -> Tree:
    return {
        prefix + name: torch.arange(6.0).reshape(2, 3) + place for place, name in enumerate(NAMES)
    }


def state(keys: list[Any]) -> Tree:
    slots = {
        key: {"step": torch.tensor(3.0), "exp_avg": torch.full((2, 3), float(place))}
        for place, key in enumerate(keys)
    }
    group = {"lr": 0.01, "betas": (0.9, 0.99), "params": keys}
    return {"state": slots, "param_groups": [group]}


def flat_state() -> Tree:
    nested = state(NAMES)
    flat = {f"state.{n}.{s}": v for n, slots in nested["state"].items() for s, v in slots.items()}
    settings = {"lr": 0.01, "betas": (0.9, 0.99)}
    return flat | {
        f"param_groups.{n}.{key}": value for n in NAMES for key, value in settings.items()
    }


def whole(**changed: Any) -> Tree:
    return {"model": weights(), "optimizer": state(NAMES), "step": 7} | changed


def file(path: Path, tree: Tree) -> Checkpoint:
    torch.save(tree, path)
    return Checkpoint(str(path), path.name, 3)


def folder(path: Path, tree: Tree) -> Checkpoint:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_folder(tree, checkpoint_id=path)
    return Checkpoint(str(path), path.name, 3)


def compared(before: list[Checkpoint], after: list[Checkpoint], rtol: float = 0.0) -> Compared:
    return compare_checkpoints(before, after, [NAMES], SHAPES, [], rtol)


def test_a_file_and_a_folder_are_equal(tmp_path: Path) -> None:
    found = compared([file(tmp_path / "a.pt", whole())], [folder(tmp_path / "dcp", whole())])
    assert found.differences == []
    assert found.notes == []
    # 3 tensors; for each of 3 parameters 2 slots and 3 settings; the step
    assert (found.count, found.identical) == (3 + 3 * 5 + 1, 19)
    assert found.what == "a.pt / dcp"


@pytest.mark.parametrize(
    "other",
    [
        {"model": weights("_fsdp_wrapped_module._orig_mod."), "optimizer": state(NAMES), "step": 7},
        {"app": {"net": weights("module."), "optim": flat_state(), "step": 7}},
        {"state_dict": weights(), "opt": state([0, 1, 2]), "global_step": 7},
    ],
    ids=["wrapped", "flat", "numbered"],
)
def test_other_names_and_forms_are_the_same(tmp_path: Path, other: Tree) -> None:
    found = compared([file(tmp_path / "a.pt", whole())], [folder(tmp_path / "dcp", other)])
    assert found.differences == []
    assert found.notes == []
    assert found.identical == found.count >= 3 + 3 * 3


def test_two_files_may_become_one(tmp_path: Path) -> None:
    parts = [file(tmp_path / "m.pt", weights()), file(tmp_path / "o.pt", state(NAMES))]
    found = compared(parts, [folder(tmp_path / "dcp", whole())])
    assert found.differences == []
    assert found.count >= 12


def changed_moment() -> Tree:
    tree = state(NAMES)
    tree["state"]["first.bias"]["exp_avg"][0, 0] = 9.0
    return tree


def changed_rate() -> Tree:
    tree = state(NAMES)
    tree["param_groups"][0]["lr"] = 0.02
    return tree


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": weights() | {"last.weight": torch.zeros(2, 3)}}, "`last.weight` differs by 1"),
        ({"model": weights() | {"last.weight": torch.zeros(3)}}, "`last.weight` has shape (2, 3)"),
        ({"model": {k: v.half() for k, v in weights().items()}}, "is torch.float32 in BEFORE"),
        ({"optimizer": changed_moment()}, "`first.bias: exp_avg` differs"),
        ({"optimizer": changed_rate()}, "`first.weight: lr` is 0.01 in BEFORE and 0.02 in AFTER"),
        ({"step": 8}, "`step` is 7 in BEFORE and 8 in AFTER"),
        ({"model": {"first.weight": weights()["first.weight"]}}, "AFTER has no `first.bias`"),
    ],
)
def test_a_difference_is_named(tmp_path: Path, changed: Tree, said: str) -> None:
    for make, name in ((file, "b.pt"), (folder, "dcp")):
        found = compared(
            [file(tmp_path / "a.pt", whole())], [make(tmp_path / name, whole(**changed))]
        )
        assert said in found.differences[0].message
        assert found.differences[0].kind == "checkpoint"


def test_a_tolerance_is_relative_to_the_largest_value() -> None:
    before, after = torch.tensor([100.0, 1e-3]), torch.tensor([100.0, 2e-3])
    identical, apart = compare(before, after)
    assert not identical
    assert apart == pytest.approx(1e-5)
    nothing = torch.tensor([1.0, float("nan")])
    assert compare(nothing, torch.tensor([1.0, 2.0])) == (False, None)
    identical, apart = compare(nothing, nothing)
    assert not identical
    assert apart is not None
    assert math.isnan(apart)
    endless = torch.tensor([1.0, float("inf")])
    assert compare(endless, torch.tensor([2.0, float("inf")])) == (False, 0.5)
    assert compare(endless, torch.tensor([1.0, float("-inf")])) == (False, None)


def test_what_only_one_side_writes(tmp_path: Path) -> None:
    found = compared([file(tmp_path / "a.pt", whole())], [])
    assert [d.message for d in found.differences] == [
        "AFTER writes no checkpoint after step 3, BEFORE does"
    ]
    more = compared([], [file(tmp_path / "b.pt", whole())])
    assert (more.differences, more.notes) == ([], ["only AFTER writes it, after step 3"])


def test_a_save_that_was_never_completed(tmp_path: Path) -> None:
    begun = tmp_path / "dcp"
    begun.mkdir()
    (begun / "__0_0.distcp").touch()
    found = compared([file(tmp_path / "a.pt", whole())], [Checkpoint(str(begun), "dcp", 3)])
    assert [(one.message, one.step) for one in found.differences] == [
        (
            "the checkpoint of AFTER cannot be read: `dcp`: the folder has no `.metadata`: "
            "the save was never completed",
            3,
        )
    ]


SCRIPT = """
import sys, torch
class Settings:
    def __init__(self):
        self.depth = 2
torch.save({"model": {"first.weight": torch.ones(2, 3)}, "settings": Settings()}, sys.argv[1])
"""


def test_settings_may_be_an_object_or_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    assert forks.snippet(SCRIPT, str(path), cwd=tmp_path).returncode == 0
    same = Checkpoint(str(path), "a.pt", 3)
    model = {"model": {"first.weight": torch.ones(2, 3)}}

    def found(**more: Any) -> Compared:
        return compared([same], [file(tmp_path / "b.pt", model | more)])

    assert found(settings={"depth": 2}).differences == []
    assert [d.message for d in found(settings={"depth": 3}).differences] == [
        "`settings.depth` is 2 in BEFORE and 3 in AFTER"
    ]
    assert [(d.name, d.missing) for d in found().differences] == [("settings", True)]


LOST: dict[str, tuple[Tree, str]] = {
    "optimizer": ({"optimizer": None}, "optimizer"),
    "scheduler": ({"scheduler": None}, "scheduler"),
    "scaler": ({"scaler": None}, "scaler"),
    "random numbers": ({"rng": None}, "rng"),
    "average": ({"ema": None}, "ema"),
    "average in a list": ({"shadow": None}, "shadow"),
    "step": ({"step": None}, "step"),
    "one of the settings": ({"config": {"depth": 2}}, "config.name"),
    "a setting of the optimizer": (
        {"optimizer": state(NAMES) | {"param_groups": [{"lr": 0.01, "params": NAMES}]}},
        "first.bias: betas[0]",
    ),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_after_lacks_is_a_difference(tmp_path: Path, lost: str) -> None:
    every = whole(
        scheduler={"last_epoch": 7, "_last_lr": [0.01]},
        scaler={"scale": 65536.0, "_growth_tracker": 7},
        rng={"torch": torch.arange(5, dtype=torch.uint8), "python": [3, [1, 2], None]},
        ema=weights(),
        shadow=[torch.ones(4), torch.ones(2)],
        config={"depth": 2, "name": "small"},
    )
    changes, name = LOST[lost]
    less = {key: value for key, value in (every | changes).items() if value is not None}
    for make in (file, folder):
        found = compared([file(tmp_path / "a.pt", every)], [make(tmp_path / make.__name__, less)])
        assert {d.name for d in found.differences if d.missing} >= {name}, found.differences
        assert all(d.missing for d in found.differences)
    more = compared([file(tmp_path / "a.pt", less)], [file(tmp_path / "c.pt", every)])
    assert not [d for d in more.differences if d.missing]


def test_adam_may_follow_noise_where_there_is_no_gradient() -> None:
    from fsdp2lint.prove.equality.apart import Model, Noise, compare_models

    peaks = {"a": torch.tensor([1.0, 1e-9, 0.0]), "b": torch.full((3,), 1e-8)}
    before = Model({name: torch.full((3,), 0.5) for name in peaks}, {}, peaks)
    shared = {"b": torch.full((3,), 0.51)}

    def differ(place: int, rtol: float = 1e-5) -> list[str]:
        moved = torch.full((3,), 0.5)
        moved[place] += 0.01
        after = Model({"a": moved, **shared})
        slack = Noise([before], rtol, reach=0.02).slack
        parameters, *_ = compare_models([before], [after], rtol, slack)
        return [difference.name for difference in parameters.differences]

    # the second element of `a` and all of `b` had only noise; the third had nothing at all
    assert [differ(place) for place in range(3)] == [["a"], [], ["a"]]
    # exactly equal runs have no noise
    assert differ(1, rtol=0.0) != []


def test_the_state_that_a_checkpoint_holds_may_follow_that_noise_too(tmp_path: Path) -> None:
    from fsdp2lint.prove.equality.apart import Model, Noise

    # what trains `first.bias` is the rounding of larger gradients elsewhere
    peaks = {name: torch.full((2, 3), 1.0 if name == NAMES[0] else 1e-9) for name in NAMES}
    noise = Noise([Model({}, {}, peaks)], 1e-5, reach=0.02)

    def kept(name: str, by: float) -> Tree:
        held = state(NAMES)
        held["state"][name]["exp_avg"] = torch.full((2, 3), 1e-8 + by)
        return whole(optimizer=held)

    def apart(name: str, by: float) -> list[str]:
        found = compare_checkpoints(
            [file(tmp_path / "a.pt", kept(name, 0.0))],
            [file(tmp_path / "b.pt", kept(name, by))],
            [NAMES],
            SHAPES,
            [],
            1e-5,
            state_slack=noise.of_state,
        )
        return [one.name for one in found.differences]

    other = NAMES[1]
    assert noise.of_state(f"{other}: exp_avg") is not None
    within = float(noise.of_state(f"{other}: exp_avg").max()) / 2  # type: ignore[union-attr]
    assert apart(other, within) == []
    assert apart(other, 0.5) == [f"{other}: exp_avg"]


def test_models_of_the_same_names_are_told_apart() -> None:
    from fsdp2lint.prove.equality.apart import Model, compare_models

    def model(value: float, trained: bool = False) -> Model:
        return Model(
            {"a": torch.full((3,), float(value))}, {}, {"a": torch.full((3,), float(trained))}
        )

    def differ(before: list[Model], after: list[Model]) -> list[str]:
        parameters, *_ = compare_models(before, after, 1e-5, lambda _: None)
        return [difference.name for difference in parameters.differences]

    # a trained model, its average and a teacher, which each run may have made in another order
    assert differ([model(1), model(2, True), model(3)], [model(3), model(1), model(2, True)]) == []
    assert differ([model(1), model(2, True)], [model(2), model(1, True)]) == ["a"]
    assert differ([model(1), model(2)], [model(2), model(1.5)]) == ["a"]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("zeros", [False, True])
def test_flat_rows_are_put_together(replicas: int, zeros: bool) -> None:
    layout = [("weight", (2, 2), 4), ("", (), 1), ("bias", (2,), 2)]  # a padding in between
    whole = torch.zeros(7) if zeros else torch.arange(7.0)
    rows = [whole[:4], torch.cat([whole[4:], torch.zeros(1)])] * replicas
    held = flat(Each(rows), layout)
    assert held is not None
    found = cut(held, "unit", layout)
    assert list(found) == ["unit.weight", "unit.bias"]
    assert torch.equal(found["unit.weight"], whole[:4].reshape(2, 2))
    assert torch.equal(found["unit.bias"], whole[5:])
    assert flat(Each(rows[:1]), layout) is None
    assert flat(Each([*rows, rows[0] + 1]), layout) is None
    assert flat(held, layout) is None  # one longer than a single rank would have it
    assert torch.equal(flat(whole, layout), whole)


def test_rows_of_parameters_are_put_together() -> None:
    rows = [torch.arange(4.0), torch.arange(4.0, 6.0)]
    for held in (rows, rows * 2):
        assert torch.equal(Each(held).whole(torch.Size((2, 3))), torch.arange(6.0).reshape(2, 3))
    assert Each(rows).whole(torch.Size((2, 4))) is None
    assert torch.equal(Each([rows[0]] * 2).whole(torch.Size((4,))), rows[0])
