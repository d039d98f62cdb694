"""One name that is FSDP1's in some runs and another library's in others."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source
from tests.migrate.test_ledger import made

XLA = "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP"
TORCH = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
OURS = "FSDP(model, use_orig_params=True)"
THEIRS = "FSDP(model, reshard_after_forward=True, compute_dtype=torch.bfloat16)"
PROGRAM = """\
import torch
from torch import nn

try:
    {tried}
except ImportError:
    {caught}


class Trainer:
    def build(self, model):
        {branches}
        return model


model = Trainer().build(nn.Linear(8, 8))
"""


def program(tried: str, caught: str, *branches: str) -> str:
    return PROGRAM.format(
        tried=tried.replace("\n", "\n    "),
        caught=caught.replace("\n", "\n    "),
        branches="\n        ".join(branches),
    )


@pytest.mark.parametrize(
    ("told", "untold", "test"),
    [
        ("import torch_xla.core.xla_model as xm", "xm = None", "xm"),
        ("import torch_xla.core.xla_model as xm", "xm = None", "xm is not None"),
        ("ON_TPU = True", "ON_TPU = False", "ON_TPU"),
        ("ON_TPU = True", "ON_TPU = False", "ON_TPU and model is not None"),
    ],
)
def test_the_branches_of_a_test_tell_them_apart(told: str, untold: str, test: str) -> None:
    branches = (f"if {test}:", f"    model = {THEIRS}", "else:", f"    model = {OURS}")
    if " and " in test:
        branches = (
            f"if {test}:",
            f"    model = {THEIRS}",
            f"elif not {told.split()[0]}:",
            branches[3],
        )
    done = made(program(f"{told}\n{XLA}", f"{TORCH}\n{untold}", *branches))
    text = done.after[0].text
    assert THEIRS in text
    assert XLA in text
    assert "fully_shard(model)" in text
    assert TORCH not in text
    assert "TODO" not in text
    assert done.ledger.manual == []


def test_the_handler_may_hold_the_other_one() -> None:
    text = made(
        program(
            f"{TORCH}\nON_GPU = True",
            f"{XLA}\nON_GPU = False",
            "if not ON_GPU:",
            f"    return {THEIRS}",
            f"model = {OURS} if ON_GPU else model",
        )
    )
    after = text.after[0].text
    assert THEIRS in after
    assert XLA in after
    assert TORCH not in after
    assert "fully_shard(model)" in after


def test_a_callback_is_what_its_branch_makes_it() -> None:
    callback = "wrap = lambda m, *args, **kwargs: FSDP(m, *args, **kwargs)"
    done = made(
        program(
            f"import torch_xla.core.xla_model as xm\n{XLA}",
            f"{TORCH}\nxm = None",
            "if xm:",
            f"    {callback}",
            "    model = FSDP(model, auto_wrapper_callable=wrap)",
            "else:",
            f"    model = {OURS}",
        )
    )
    assert callback in done.after[0].text
    assert done.ledger.manual == []


def test_what_nothing_tells_apart_is_left() -> None:
    text = program(f"{XLA}", f"{TORCH}", f"model = {OURS}")
    done = made(text)
    entry = next(e for e in done.ledger.manual if e.todo)
    assert "`torch_xla.distributed.fsdp.XlaFullyShardedDataParallel` where that can" in entry.todo
    assert "fully_shard(model)" not in done.after[0].text


def test_a_fallback_for_old_releases_of_torch_tells() -> None:
    other = "from fairscale.nn import FullyShardedDataParallel as FSDP"
    done = made(program(TORCH, other, f"model = {OURS}"))
    text = done.after[0].text
    assert "fully_shard(model)" in text
    assert "try:" not in text
    assert "fairscale" not in text


def test_check_reports_torchs_alone() -> None:
    text = program(
        f"import torch_xla.core.xla_model as xm\n{XLA}",
        f"{TORCH}\nxm = None",
        "if xm:",
        f"    return {THEIRS}",
        "else:",
        f"    return {OURS}",
    )
    done = migrate((Source("train.py", text),), knowledge.codemods())
    lines = [e.line for e in done.ledger.entries if e.kind == "symbol"]
    assert lines == [text[: text.index(OURS)].count("\n") + 1]


CHECKPOINTS = """\
import torch

try:
    {tried}
except ImportError:
    {caught}
from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType


class Checkpoints:
    def __init__(self, path):
        self.path = path
        self.config = ShardedStateDictConfig(offload_to_cpu=True)

    def load(self, model, optimizer):
        if xm:
            self._of_xla(model)
        else:
            self._of_torch(model, optimizer)

    def save(self, model, optimizer):
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, self.config):
            state = {{"model": model.state_dict()}}
            state["optimizer"] = FSDP.optim_state_dict(model, optimizer)
            torch.save(state, self.path)

    def _of_xla(self, model):
        model.load_state_dict(torch.load(self.path)["model"])

    def _of_torch(self, model, optimizer):
        state = torch.load(self.path)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, self.config):
            model.load_state_dict(state["model"])
            flat = FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"])
            optimizer.load_state_dict(flat)
"""
BOTH = (f"import torch_xla.core.xla_model as xm\n{XLA}", f"{TORCH}\nxm = None")


def with_checkpoints(saves: str) -> str:
    """The text of the checkpoints' file after the migration of a program in two files."""
    main = program(*BOTH, "if xm:", f"    model = {THEIRS}", "else:", f"    model = {OURS}")
    main = main.replace("import torch\n", "import torch\nfrom checkpoints import Checkpoints\n", 1)
    main += (
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "checkpoints = Checkpoints('last.pt')\n"
        "checkpoints.load(model, optimizer)\n"
        "if not xm:\n"
        "    checkpoints.save(model, optimizer)\n"
    )
    sources = (Source("checkpoints.py", saves), Source("train.py", main))
    done = migrate(sources, knowledge.codemods())
    assert done.ledger.manual == []
    return done.after[0].text


def test_a_method_that_xlas_class_lacks_is_torchs() -> None:
    tried, caught = (text.replace("\n", "\n    ") for text in BOTH)
    text = with_checkpoints(CHECKPOINTS.format(tried=tried, caught=caught))
    assert "set_optimizer_state_dict(model, optimizer, state[" in text
    assert "state_dict_type" not in text
    assert TORCH not in text


def test_what_one_file_finds_installed_the_other_finds_too() -> None:
    tried, caught = (text.replace("\n", "\n    ") for text in BOTH)
    text = with_checkpoints(CHECKPOINTS.format(tried=tried, caught=caught))
    assert 'model.load_state_dict(torch.load(self.path)["model"])' in text
    assert 'set_model_state_dict(model, state["model"])' in text
