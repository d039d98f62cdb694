"""The ledger of whole migrations: what is in it, and where it says that things stand."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.source.source import Source

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


"""

BLOCKS = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])


"""


def in_parts(text: str) -> Migration:
    """The same, asked codemod by codemod: then each model may be migrated in parts."""
    return migrate((Source("train.py", text),), knowledge.codemods(), accept=lambda stage: True)


def made(text: str) -> Migration:
    done = migrate((Source("train.py", text),), knowledge.codemods())
    assert done.failures == []
    assert done.ledger.complete
    return done


def lines(done: Migration) -> list[str]:
    """The entries as one reads them."""
    return [f"{e.line}:{e.column} {e.symbol}: {e.fate}: {e.why}" for e in done.ledger.entries]


def line_of(text: str, said: str) -> int:
    return text[: text.index(said)].count("\n") + 1


def test_a_model_that_was_one_unit_stays_one() -> None:
    text = HEAD + BLOCKS + "model = Net()\nmodel = FSDP(model, use_orig_params=True)\n"
    done = made(text)
    assert done.after[0].text.count("fully_shard(") == 1
    (said,) = (one for one in lines(done) if "as under FSDP1" in one)
    assert "fully_shard(model): preserved: as under FSDP1: " in said
    assert said.startswith(f"{line_of(text, 'model = FSDP')}:")
    assert "(FSDP205)" in said
    assert done.remaining == []


def test_ranks_that_left_alone_under_fsdp1_still_do() -> None:
    text = (
        "import time\n"
        + HEAD
        + (
            "start = time.time()\n"
            "model = FSDP(nn.Linear(8, 8), use_orig_params=True)\n"
            "optimizer = torch.optim.AdamW(model.parameters())\n"
            "for _ in range(100):\n"
            "    model(torch.ones(4, 8)).sum().backward()\n"
            "    optimizer.step()\n"
            "    if time.time() - start > 60:\n"
            "        break\n"
        )
    )
    done = made(text)
    assert "fully_shard(" in done.after[0].text
    (said,) = (one for one in lines(done) if "(FSDP402)" in one)
    assert "break: preserved: as under FSDP1: " in said
    assert done.remaining == []


def test_weights_that_trained_in_16_bits_still_do() -> None:
    text = HEAD.replace("ShardingStrategy", "MixedPrecision") + (
        "model = nn.Sequential(nn.Linear(8, 8)).to(torch.bfloat16)\n"
        "model = FSDP(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(4, 8)).sum().backward()\n"
        "optimizer.step()\n"
    )
    done = made(text)
    assert "nn.Sequential(nn.Linear(8, 8)).to(torch.bfloat16)" in done.after[0].text
    (said,) = (one for one in lines(done) if "as under FSDP1" in one)
    assert said.startswith(f"{line_of(text, 'model = nn')}:")
    assert "(FSDP222)" in said
    assert done.remaining == []


def test_the_order_of_the_data_stays_that_of_fsdp1() -> None:
    text = HEAD + (
        "data = list(torch.ones(8, 8))\n"
        "sampler = torch.utils.data.distributed.DistributedSampler(data)\n"
        "loader = torch.utils.data.DataLoader(data, sampler=sampler)\n"
        "model = nn.Sequential(nn.Linear(8, 8))\n"
        "model = FSDP(model, use_orig_params=True)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for epoch in range(3):\n"
        "    for batch in loader:\n"
        "        model(batch).sum().backward()\n"
        "        optimizer.step()\n"
    )
    assert "set_epoch" not in made(text).after[0].text


def test_what_the_rules_mend_has_a_line_of_its_own() -> None:
    text = HEAD + (
        "model = nn.Sequential(nn.Linear(8, 8))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model = FSDP(model, use_orig_params=True)\n"
        "model.forward(torch.ones(4, 8)).sum().backward()\n"
        "optimizer.step()\n"
    )
    done = made(text)
    new = done.after[0].text
    assert new.index("fully_shard(model)") < new.index("AdamW")
    assert "model(torch.ones(4, 8))" in new
    said = lines(done)
    optimizer, forward = line_of(text, "optimizer = "), line_of(text, "model.forward")
    assert any(one.startswith(f"{optimizer}:") and "(FSDP201)" in one for one in said), said
    assert any(one.startswith(f"{forward}:") and "(FSDP203)" in one for one in said), said


def test_a_model_of_unseen_code_is_asked_what_only_fsdp1_has() -> None:
    text = HEAD + (
        "class Trainer:\n"
        "    def __init__(self, model, limit):\n"
        "        self.model, self.limit = model, limit\n"
        "\n"
        "    def turn(self, batches):\n"
        "        with self.model.no_sync():\n"
        "            for batch in batches:\n"
        "                self.model(batch).sum().backward()\n"
        "        self.model.clip_grad_norm_(self.limit)\n"
        "        clip = self.model.clip_grad_norm_\n"
        "        return self.model.mixed_precision, clip\n"
        "\n"
        "\n"
        "def wrapped(model):\n"
        "    return FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
    )
    done = made(text)
    new = done.after[0].text
    assert "self.model.set_requires_gradient_sync(False)" in new
    assert "nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)" in new
    fates = {(e.line, e.symbol): e.fate for e in done.ledger.entries}
    assert fates[line_of(text, "self.model.no_sync"), "no_sync"] == "changed"
    assert fates[line_of(text, "self.model.clip_grad"), "clip_grad_norm_"] == "changed"
    assert fates[line_of(text, "clip = "), "clip_grad_norm_"] == "manual"
    assert fates[line_of(text, "return self.model."), "mixed_precision"] == "manual"
    assert new.count("# TODO(fsdp2lint)") == 2


def test_an_engine_that_wraps_models_itself_is_not_asked() -> None:
    text = HEAD + (
        "from accelerate import Accelerator\n"
        "\n"
        "\n"
        "def turn(accelerator: Accelerator, model, batch):\n"
        "    with accelerator.no_sync(model):\n"
        "        accelerator.backward(model(batch).sum())\n"
        "    accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    return isinstance(model, FSDP)\n"
    )
    done = made(text)
    assert "accelerator.clip_grad_norm_(model.parameters(), 1.0)" in done.after[0].text
    assert not [e for e in done.ledger.entries if e.symbol in ("no_sync", "clip_grad_norm_")]


def test_lines_are_those_of_the_text_as_it_was() -> None:
    text = HEAD + (
        "def store(model, optimizer, path):\n"
        "    state = model.state_dict()\n"
        "    torch.save(state, path)\n"
        "\n"
        "\n"
        "model = FSDP(nn.Linear(8, 8), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "model = torch.compile(model)\n"
        "store(model, None, 'net.pt')\n"
    )
    done = made(text)
    assert done.after[0].text.count("\n") != text.count("\n")
    taken, saved = (e for e in done.ledger.entries if e.kind == "code")
    assert (taken.symbol, saved.symbol) == ("model.state_dict()", "torch.save(state, path)")
    assert taken.line == line_of(text, "model.state_dict")
    assert saved.line == line_of(text, "torch.save")


def test_a_state_from_before_the_first_step_counts_none() -> None:
    """The getter of torch would make the first step the second: neither the text nor ``check`` says so."""
    text = HEAD + (
        "model = FSDP(nn.Linear(8, 8), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        'torch.save(FSDP.full_optim_state_dict(model, optimizer), "start.pt")\n'
        "model(torch.ones(4, 8)).sum().backward()\n"
        "optimizer.step()\n"
    )
    done = made(text)
    assert 'values["step"].zero_()' in done.after[0].text
    assert done.remaining == []


DERIVED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class OwnFSDP(FSDP):
    pass


class Loop:
    model: DDP | FSDP

    def step(self, batches):
        for batch in batches:
            with self.model.no_sync():
                self.model(batch).sum().backward()
"""


def test_the_way_of_the_new_code_for_other_models_is_no_fsdp1() -> None:
    done = in_parts(DERIVED)
    assert [e.symbol for e in done.ledger.manual if e.kind != "import"] == [
        "FullyShardedDataParallel"
    ]
    text = done.after[0].text
    assert "if not isinstance(model, FSDPModule):\n        with model.no_sync():" in text


def test_flags_of_flat_parameters_are_left_to_a_person() -> None:
    script = HEAD + BLOCKS + (
        "net = FSDP(Net())\n"
        "flat = [p for p in net.parameters() if p._is_flat_param]\n"
        "print([p._shard_param_infos for p in flat])\n"
    )  # fmt: skip
    assert [e.symbol for e in made(script).ledger.manual] == [
        "_is_flat_param",
        "_shard_param_infos",
    ]


OWN_SHARDING = """\
class Sharded:
    def __init__(self, model):
        self.model = model

    def summon_full_params(self):
        return self.model


class Engine:
    def __init__(self, sharded):
        self.sharded = sharded

    def weights(self):
        with self.sharded.summon_full_params():
            return list(self.sharded.model.parameters())
"""


def test_a_method_of_the_scripts_own_is_not_fsdp1() -> None:
    """A library may build its own sharding, in FSDP's words."""
    done = made(
        '"""As ``torch.distributed.fsdp.FullyShardedDataParallel`` does."""\n' + OWN_SHARDING
    )
    assert [entry.symbol for entry in done.ledger.entries] == []


def test_words_of_a_docstring_take_nothing_from_fsdp() -> None:
    """Neither an import nor a method is one because a text says so."""
    said = '"""Elsewhere:\n\nfrom torch.distributed.fsdp import MixedPrecision\n"""\n'
    assert [entry.symbol for entry in made(said + OWN_SHARDING).ledger.entries] == []
    function = OWN_SHARDING.replace("    def summon_full_params(self):\n        return", "    of =")
    unknown = function + "\n\ndef summon_full_params():\n    return None\n"
    assert [e.symbol for e in made(unknown).ledger.entries] == ["summon_full_params"]


def test_beside_fsdp_the_same_word_may_be_of_a_wrapped_model() -> None:
    for line in (
        "from torch.distributed.fsdp import MixedPrecision",
        "from torch.distributed import fsdp",
    ):
        done = made(f"{line}\n{OWN_SHARDING}")
        assert "summon_full_params" in {entry.symbol for entry in done.ledger.entries}


def test_a_plain_value_that_others_are_compared_with_stays() -> None:
    """Also where a class of the script's own keeps FSDP1 in it: new code may compare so, too."""
    done = in_parts(
        HEAD
        + "class Custom(FSDP):\n    def __init__(self, net):\n        super().__init__(net)\n\n\n"
        "def whole(strategy):\n    return strategy == ShardingStrategy.NO_SHARD\n"
    )
    fates = {e.symbol: (e.fate, e.why) for e in done.ledger.entries if e.kind == "symbol"}
    assert fates["ShardingStrategy.NO_SHARD"] == (
        "preserved",
        "kept: a plain value that others are compared with",
    )


def test_a_string_may_name_two_things_of_fsdp1() -> None:
    script = HEAD + (
        "def gradients(log):\n"
        '    names = ["grad/0._fsdp_wrapped_module._flat_param"]\n'
        "    return [log[name] for name in names]\n\n\n"
        "def built(model):\n"
        "    return FSDP(model)\n"
    )
    done = made(script)
    said = {e.symbol: (e.fate, e.line) for e in done.ledger.entries if e.kind == "string"}
    assert said["_fsdp_wrapped_module"][0] == "changed"
    assert said["_flat_param"] == ("manual", line_of(script, "grad/0"))
    text = done.after[0].text
    assert "grad/0._flat_param" in text
    assert made(text).after[0].text == text


def test_a_dictionary_that_reaches_no_call_is_not_said_again() -> None:
    text = HEAD + (
        "def first(model):\n"
        "    kwargs = dict(use_orig_params=True, sync_module_states=True)\n"
        "    print(kwargs)\n"
        "    return FSDP(model, **kwargs)\n\n\n"
        "def second(model, more):\n"
        "    kwargs = dict(use_orig_params=True, sync_module_states=True)\n"
        "    kwargs.pop(more, None)\n"
        "    return FSDP(model, **kwargs)\n\n\n"
        "first(nn.Linear(4, 4))\nsecond(nn.Linear(4, 4), 'forward_prefetch')\n"
    )
    done = in_parts(text)
    assert [e.line for e in done.ledger.manual if e.symbol == "use_orig_params"] == [14]
    again = migrate(done.after, knowledge.codemods())
    assert again.changed == []


def test_a_setting_of_the_projects_own_class_is_not_fsdp1s() -> None:
    models = """\
from torch import nn


class Chunked(nn.Module):
    def __init__(self, mixed_precision):
        super().__init__()
        self.mixed_precision = mixed_precision
"""
    text = f"""{HEAD}from models import Chunked


def of_its_own(module):
    assert isinstance(module, Chunked)
    return list(module.parameters()), module.mixed_precision


def of_any(module):
    return list(module.parameters()), module.mixed_precision


model = FSDP(nn.Linear(8, 8))
"""
    sources = (Source("models.py", models), Source("train.py", text))
    done = migrate(sources, knowledge.codemods())
    assert [e.line for e in done.ledger.manual] == [line_of(text, "def of_any") + 1]


def test_a_call_that_a_codemod_has_rewritten_is_its_own_in_the_next_round() -> None:
    """Under FSDP1 the method gave the norm over all ranks: only `torch.nn.utils` gave that of each shard."""
    text = (
        HEAD.replace(
            "import ShardingStrategy",
            "import ShardingStrategy\nfrom torch.distributed.fsdp.wrap import enable_wrap, wrap",
        )
        + "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(8, 8)\n\n"
        "    def shard(self):\n"
        "        with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):\n"
        "            self.head = wrap(self.head)\n\n"
        "    def clip(self):\n"
        "        self.head.clip_grad_norm_(1.0)\n\n\n"
        "net = Net()\n"
        "net.shard()\n"
        "net.clip()\n"
    )
    (said,) = (one for one in lines(made(text)) if "norm" in one)
    assert said.endswith("the same norm over all ranks, from `torch.nn.utils.clip_grad_norm_`")


EARLY = """\
def make():
    model = nn.Linear(8, 8)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def train():
    for model, optimizer in [make() for _ in range(2)]:
        model = FSDP(model{options})
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


train()
"""


def test_an_optimizer_that_trained_nothing_under_fsdp1_keeps_no_model() -> None:
    """FSDP1 puts flat parameters in place of those that the optimizer has, unless it is to keep them."""
    done = made(HEAD + EARLY.format(options=""))
    assert "fully_shard(model)" in done.after[0].text
    assert done.ledger.manual == []
    assert any("as under FSDP1: `optimizer` was built before" in one for one in lines(done))
    kept = made(HEAD + EARLY.format(options=", use_orig_params=True"))
    assert "fully_shard(model)" not in kept.after[0].text.replace("`fully_shard(model)`", "")
    assert len(kept.ledger.manual) > 0


SHARDS = """\
import torch.distributed as dist
from torch.distributed.fsdp import StateDictType


def write(name, state):
    torch.save(state, name)


def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.{kind}):
        state = {{"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}}
        {save}


dist.init_process_group("nccl")
model = FSDP(nn.Linear(8, 8), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
save(model, optimizer)
"""
NAMED = 'f"rank{dist.get_rank()}.pt"'


@pytest.mark.parametrize(
    "save", [f"torch.save(state, {NAMED})", f"write({NAMED}, state)"], ids=["here", "helper"]
)
def test_files_of_shards_stay_files_of_shards(save: str) -> None:
    done = made(HEAD + SHARDS.format(kind="SHARDED_STATE_DICT", save=save))
    text = done.after[0].text
    assert "fully_shard(" in text
    assert '"model": get_model_state_dict(model)' in text
    assert done.ledger.manual == []
    assert any("as under FSDP1: `torch.save` writes the state dict" in one for one in lines(done))


LOAD = """\
def load(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = torch.load({name})
        model.load_state_dict(state["model"])
        optim = FSDP.optim_state_dict_to_load(model, optimizer, state["optim"])
        optimizer.load_state_dict(optim)


load(model, optimizer)
"""


def test_files_of_shards_are_read_by_what_writes_them() -> None:
    save = SHARDS.format(kind="SHARDED_STATE_DICT", save=f"torch.save(state, {NAMED})")
    done = made(HEAD + save + LOAD.format(name=NAMED))
    text = done.after[0].text
    assert 'set_model_state_dict(model, state["model"])' in text
    assert 'set_optimizer_state_dict(model, optimizer, state["optim"])' in text
    assert done.ledger.manual == []
    assert any("that FSDP1 wrote raises" in one for one in lines(done))


def test_files_of_shards_that_others_wrote_are_left() -> None:
    built = SHARDS.partition("dist.init")[2].partition("save(")[0]
    done = made(
        HEAD + SHARDS.partition("def ")[0].format() + f"dist.init{built}" + LOAD.format(name=NAMED)
    )
    assert any("which FSDP2 cannot read" in entry.why for entry in done.ledger.manual)


def test_a_rank_s_state_of_the_optimizer_beside_a_ddp_model_keeps_no_model() -> None:
    """What is new in the file is said; what each rank wrote under FSDP1 too is not."""
    text = (
        HEAD
        + """\
import argparse

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
args = parser.parse_args()
dist.init_process_group("nccl")
model = nn.Linear(8, 8)
model = FSDP(model, use_orig_params=True) if args.kind == "fsdp" else DDP(model)
optimizer = torch.optim.AdamW(model.parameters())
torch.save({"optimizer": optimizer.state_dict(), "epoch": 1}, f"{dist.get_rank()}.pt")
"""
    )
    done = made(text)
    assert "fully_shard(" in done.after[0].text
    assert done.ledger.manual == []


def test_what_an_old_path_gives_is_not_imported_twice() -> None:
    text = f"""\
{HEAD}from torch.distributed._composable.fsdp import fully_shard


def wrap(model, version):
    if version == 1:
        return FSDP(model, use_orig_params=True)
    return fully_shard(model)


wrap(nn.Linear(8, 8), 1)
"""
    after = made(text).after[0].text
    assert after.count("import fully_shard") == 1
    assert after.count("fully_shard(model)") == 2
    assert "torch_fully_shard" not in after


def test_another_model_on_the_meta_device_is_not_this_one() -> None:
    """What `super().__init__()` gives is None, which many modules hold."""
    text = (
        HEAD
        + """\
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Encoder(nn.Module):
    def __init__(self, pooling=None):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.pooling = pooling


with torch.device("meta"):
    coder = Coder()
coder.load_state_dict(torch.load("coder.pt"), assign=True)
model = FSDP(Encoder(), use_orig_params=True)
"""
    )
    assert "materialize" not in made(text).after[0].text
    text = text.replace("FSDP(Encoder()", "FSDP(coder")
    assert "materialize" in made(text.replace("coder.load", "# coder.load")).after[0].text


def test_a_strategy_that_the_function_looks_up_itself_is_known() -> None:
    text = (
        HEAD
        + """\
def wrap(model, strategy="full"):
    strategy = {"full": ShardingStrategy.FULL_SHARD, "grad": ShardingStrategy.SHARD_GRAD_OP}[strategy]
    return FSDP(model, sharding_strategy=strategy, use_orig_params=True)
"""
    )
    after = made(text).after[0].text
    assert "reshard_after_forward" in after
    assert "ShardingStrategy" not in after
    assert "getattr(" not in after


KWARGS = """\
from torch.distributed.fsdp import BackwardPrefetch


def build(args, model):
    kwargs = {{}}
    {prefetch}
    if args.hybrid:
        kwargs["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    print(kwargs{more})
    return FSDP(model, use_orig_params=True, **kwargs)
"""
PREFETCH = 'kwargs["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE'


@pytest.mark.parametrize("prefetch", [PREFETCH, f"if args.prefetch:\n        {PREFETCH}"])
def test_an_entry_for_fsdp1_that_nothing_reads_goes(prefetch: str) -> None:
    """Nor is a function removed that nobody calls here: others may import it."""
    after = made(HEAD + KWARGS.format(prefetch=prefetch, more="")).after[0].text
    assert "refetch" not in after
    assert 'kwargs["sharding_strategy"] = "HYBRID_SHARD"' in after


def test_an_entry_for_fsdp1_goes_from_a_script_too() -> None:
    text = f"""\
{HEAD}from torch.distributed.fsdp import BackwardPrefetch

kwargs = {{"use_orig_params": True}}
{PREFETCH}
model = FSDP(nn.Linear(8, 8), **kwargs)
"""
    after = made(text).after[0].text
    assert "fully_shard(" in after
    assert "refetch" not in after


def test_an_entry_for_fsdp1_that_something_reads_stays_as_a_word() -> None:
    more = ', kwargs.get("backward_prefetch")'
    after = made(HEAD + KWARGS.format(prefetch=PREFETCH, more=more)).after[0].text
    assert 'kwargs["backward_prefetch"] = "BACKWARD_PRE"' in after
    chosen = f"if args.other:\n        print()\n    elif args.prefetch:\n        {PREFETCH}"
    after = made(HEAD + KWARGS.format(prefetch=chosen, more="")).after[0].text
    assert "if args.other:\n        print()\n" in after
    assert "args.prefetch" not in after
