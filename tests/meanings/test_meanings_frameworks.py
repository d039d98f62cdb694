"""Frameworks: what their calls do to models, optimizers and checkpoints."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, happenings, results

SCRIPTS: Scripts = {
    "accelerate prepares by an FSDP that the script does not name": (
        """
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        engine = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        net = nn.Linear(1, 1)
        adam = torch.optim.Adam(net.parameters())
        net, adam = engine.prepare(net, adam)
        """,
        [
            "accelerate asked for FSDP1",
            "optimizer built over net.parameters()",
            "net escaped to .prepare",
            "adam escaped to .prepare",
        ],
    ),
    "accelerate prepares by FSDP2": (
        """
        from accelerate import Accelerator
        from accelerate.utils import FullyShardedDataParallelPlugin
        settings = {"fsdp_version": 2}
        engine = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(**settings))
        net = nn.Linear(1, 1)
        adam = torch.optim.Adam(net.parameters())
        net, adam, loader = engine.prepare(net, adam, [1])
        adam.step()
        engine.unwrap_model(net).state_dict()
        """,
        [
            "optimizer built over net.parameters()",
            "sharded net",
            "net escaped to .prepare",
            "adam escaped to .prepare",
            "optimizer built over net.parameters()",
            "a list escaped to .prepare",
            "stepped adam",
            "state dict of net taken",
        ],
    ),
    "accelerate does not shard on CPUs": (
        """
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        engine = Accelerator(cpu=True, fsdp_plugin=plugin)
        net = nn.Linear(1, 1)
        net, adam = engine.prepare(net, torch.optim.Adam(net.parameters()))
        """,
        [
            "optimizer built over net.parameters()",
            "net escaped to .prepare",
            "torch.optim.Adam(…) escaped to .prepare",
        ],
    ),
    "accelerate's FSDP2 raises for a model without an optimizer": (
        """
        from accelerate import Accelerator, FullyShardedDataParallelPlugin
        engine = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
        net = engine.prepare(nn.Linear(1, 1))
        """,
        [
            "accelerate refuses: with FSDP2, `prepare` takes the model together with its optimizer",
            "torch.nn.Linear(…) escaped to .prepare",
        ],
    ),
    "the kind of training is asked before rank 0 goes alone": (
        """
        from accelerate import Accelerator, DistributedType
        engine = Accelerator()
        if engine.distributed_type != DistributedType.FSDP:
            engine.save_state("x")
        else:
            engine.save_state("y")
        """,
        [
            "collective save_state when engine.distributed_type == accelerate.DistributedType.FSDP",
        ],
    ),
    "functions of accelerate": (
        """
        from accelerate.utils import extract_model_from_parallel, fsdp2_prepare_model
        from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
        net = fsdp2_prepare_model(engine, nn.Linear(1, 1))
        fsdp2_load_full_state_dict(engine, net, torch.load("x"))
        fully_shard(extract_model_from_parallel(FSDP(net)))
        """,
        [
            "sharded net",
            "net escaped to accelerate.utils.fsdp2_prepare_model",
            "loaded with load",
            "collective fsdp2_load_full_state_dict",
            "restored net through fsdp2_load_full_state_dict",
            "wrapped net by fsdp1",
            "sharded net",
        ],
    ),
    "adapters are put into the model in place": (
        """
        from peft import LoraConfig, get_peft_model, inject_adapter_in_model
        net = Net()
        tuned = get_peft_model(net, LoraConfig())
        fully_shard(tuned.base_model.model.blocks[0])
        fully_shard(tuned.model.head)
        fully_shard(tuned.blocks[1])
        tuned.add_adapter("other", LoraConfig())
        inject_adapter_in_model(LoraConfig(), net)
        fully_shard(tuned.merge_and_unload())
        fully_shard(tuned.get_base_model())
        """,
        [
            "wrapped net by peft",
            "sharded net.blocks[0]",
            "sharded net.head",
            "sharded net.blocks[1]",
            "wrapped tuned by peft",
            "wrapped net by peft",
            "sharded net",
            "sharded net",
        ],
    ),
    "prompt learning has no tuner around the model": (
        """
        from peft import PeftModel, PeftModelForCausalLM, PromptTuningConfig
        net = Net()
        fully_shard(PeftModelForCausalLM(net, PromptTuningConfig()).base_model.head)
        fully_shard(PeftModel.from_pretrained(net, "x").base_model.model.head)
        """,
        [
            "wrapped net by peft",
            "sharded net.head",
            "wrapped net by peft",
            "sharded net.head",
        ],
    ),
    "states of adapters": (
        """
        from peft import get_peft_model_state_dict, set_peft_model_state_dict
        net = nn.Linear(1, 1)
        torch.save(get_peft_model_state_dict(net), "x")
        torch.save(get_peft_model_state_dict(net, state_dict=net.state_dict()), "y")
        set_peft_model_state_dict(net, torch.load("x"))
        """,
        [
            "state dict of net taken",
            "saved net.state_dict() with save",
            "state dict of net taken",
            "saved net.state_dict() with save",
            "loaded with load",
            "restored net through peft.set_peft_model_state_dict",
        ],
    ),
    "a module of Lightning lives in the order of its hooks": (
        """
        import lightning as L
        class Lit(L.LightningModule):
            def training_step(self, batch, index):
                return self.net(batch)
            def configure_optimizers(self):
                return [torch.optim.SGD(self.net.parameters())], []
            def configure_model(self):
                self.net = nn.Linear(1, 1)
                fully_shard(self.net)
        lit = Lit()
        L.Trainer().fit(model=lit)
        """,
        [
            "forward of lit through .configure_model",
            "assigned lit.net",
            "sharded lit.net",
            "forward of lit through .configure_optimizers",
            "optimizer built over lit.net.parameters()",
            "forward of lit through .training_step",
            "forward of lit.net",
            "backward",
            "stepped torch.optim.SGD(…)",
            "lit escaped to .fit",
        ],
    ),
    "a module of Lightning saves in its hooks": (
        """
        import lightning as L
        class Lit(L.LightningModule):
            def configure_model(self):
                fully_shard(self)
            def training_step(self, batch, index):
                return batch
            def on_train_batch_end(self, outputs, batch, index):
                self.zero_grad()
            def on_save_checkpoint(self, checkpoint):
                torch.save(self.state_dict(), "x")
        lit = Lit()
        L.Trainer().fit(lit)
        """,
        [
            "forward of lit through .configure_model",
            "sharded lit",
            "forward of lit through .training_step",
            "forward of lit through .on_train_batch_end",
            "forward of lit through .on_save_checkpoint",
            "state dict of lit taken",
            "saved lit.state_dict() with save",
            "lit escaped to .fit",
        ],
    ),
    "manual optimization is the module's own": (
        """
        import pytorch_lightning as pl
        class Lit(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                self.net = nn.Linear(1, 1)
            def configure_optimizers(self):
                return torch.optim.SGD(self.net.parameters())
        trainer = pl.Trainer()
        lit = Lit()
        trainer.fit(lit)
        trainer.save_checkpoint("x")
        """,
        [
            "forward of lit through .configure_optimizers",
            "optimizer built over lit.net.parameters()",
            "lit escaped to .fit",
            "collective save_checkpoint",
        ],
    ),
    "Fabric sets up with its own wrappers": (
        """
        from lightning.fabric import Fabric
        fabric = Fabric("cuda", "ddp")
        net = nn.Linear(1, 1)
        net, adam = fabric.setup(net, torch.optim.Adam(net.parameters()))
        fabric.barrier()
        """,
        [
            "optimizer built over net.parameters()",
            "net escaped to .setup",
            "torch.optim.Adam(…) escaped to .setup",
            "collective barrier",
        ],
    ),
    "Fabric calls the script's own function for FSDP2": (
        """
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import ModelParallelStrategy
        fabric = Fabric("cuda", ModelParallelStrategy(lambda model, mesh: fully_shard(model)))
        net = nn.Linear(1, 1)
        net = fabric.setup_module(net)
        adam = fabric.setup_optimizers(torch.optim.Adam(net.parameters()))
        adam.step()
        fully_shard(net.module)
        """,
        [
            "sharded net",
            "optimizer built over net.parameters()",
            "stepped adam",
            "sharded net",
        ],
    ),
    "a trainer of transformers shards where its arguments say so": (
        """
        from transformers import Trainer, TrainingArguments
        from trl import SFTConfig, SFTTrainer
        net = nn.Linear(1, 1)
        one = Trainer(net, TrainingArguments("x", fsdp=True, fsdp_config={"version": 2}))
        one.train()
        one.save_model()
        two = SFTTrainer(model="gpt2", args=SFTConfig("x", fsdp=""))
        two.save_model()
        two.evaluate()
        """,
        [
            "net escaped to transformers.Trainer",
            "collective train",
            "sharded net",
            "registered generate of net",
            "forward of net",
            "backward",
            "clipped net.parameters()",
            "collective save_model",
            "collective _save_checkpoint",
            "collective save_model",
            "collective evaluate",
        ],
    ),
    "a trainer runs what the script overrides, with the model that it shards": (
        """
        from transformers import Trainer, TrainerCallback, TrainingArguments
        class Mine(Trainer):
            def create_optimizer(self):
                self.optimizer = torch.optim.Adam(self.model.parameters())
                return self.optimizer
            def compute_loss(self, model, inputs, **kwargs):
                return super().compute_loss(model, inputs, **kwargs)
            def _save(self, folder, state_dict=None):
                torch.save(state_dict, folder)
        class Last(TrainerCallback):
            def on_train_end(self, args, state, control, model=None, **kwargs):
                torch.save(model.state_dict(), "x")
        net = Block()
        Mine(net, TrainingArguments("x", fsdp=True, fsdp_config={"version": 2}), callbacks=[Last]).train()
        """,
        [
            "net escaped to .__init__",
            "Mine(…).callbacks escaped to .__init__",
            "collective train",
            "optimizer built over net.parameters()",
            "sharded net",
            "registered generate of net",
            "Mine(…).optimizer escaped to .train",
            "optimizer built over net.parameters()",
            "forward of net",
            "forward of net.lin",
            "backward",
            "clipped net.parameters()",
            "stepped torch.optim.Adam(…)",
            "collective save_model",
            "saved net.state_dict() with save",
            "collective _save_checkpoint",
            "state dict of net taken",
            "saved net.state_dict() with save",
        ],
    ),
    "an optimizer of transformers, a model built from its configuration": (
        """
        from transformers import AdamW, GPT2Config, GPT2LMHeadModel
        net = GPT2LMHeadModel(GPT2Config())
        AdamW(net.parameters()).step()
        """,
        ["optimizer built over net.parameters()", "stepped transformers.AdamW(…)"],
    ),
    "Ray runs the function with its config": (
        """
        from ray.train.torch import TorchTrainer, prepare_model, prepare_optimizer, backward
        def loop(config):
            if config["shard"]:
                net = fully_shard(prepare_model(nn.Linear(1, 1), parallel_strategy=None))
            else:
                net = prepare_model(nn.Linear(1, 1))
            adam = prepare_optimizer(torch.optim.Adam(net.parameters()))
            backward(net(1))
            adam.step()
        TorchTrainer(train_loop_per_worker=loop, train_loop_config={"shard": True}).fit()
        """,
        [
            "sharded net",
            "optimizer built over net.parameters()",
            "forward of net",
            "backward",
            "stepped adam",
        ],
    ),
    "what torchtitan is made of": (
        """
        from torchtitan.components.optimizer import build_lr_schedulers, build_optimizers
        from torchtitan.distributed import utils
        from torchtitan.models.llama3.infra.parallelize import apply_compile, apply_fsdp
        first, second = nn.Linear(1, 1), nn.Linear(1, 1)
        apply_compile(first)
        apply_fsdp(first, None)
        optimizers = build_optimizers([first, second], None)
        build_lr_schedulers(optimizers, None).step()
        utils.clip_grad_norm_(first.parameters(), 1.0)
        optimizers.step()
        """,
        [
            "wrapped first by compile",
            "sharded first",
            "first escaped to torchtitan.models.llama3.infra.parallelize.apply_fsdp",
            "optimizer built over first.parameters() and second.parameters()",
            "clipped first.parameters()",
            "stepped optimizers",
        ],
    ),
    "what a recipe of torchtune is made of": (
        """
        from torchtune import config, training
        from torchtune.models.llama3 import llama3_8b, llama3_tokenizer
        net = training.prepare_mha_for_tp(llama3_8b(), llama3_tokenizer("x"))
        training.compile_model(net)
        adam = config.instantiate(object(), net.parameters())
        training.load_from_full_optimizer_state_dict(net, adam, torch.load("x"), "cuda")
        adam.step()
        training.get_full_optimizer_state_dict(net, adam, True)
        training.DistributedCheckpointer("x", "y").save_checkpoint({})
        """,
        [
            "wrapped net by compile",
            "optimizer built over net.parameters()",
            "loaded with load",
            "collective load_from_full_optimizer_state_dict",
            "restored adam through load_from_full_optimizer_state_dict",
            "stepped adam",
            "collective get_full_optimizer_state_dict",
            "full optimizer state of adam taken",
            "collective save_checkpoint",
        ],
    ),
    "axolotl gathers what the script's functions give": (
        """
        from axolotl.utils.distributed import gather_scalar_from_all_ranks, is_main_process
        def count():
            dist.barrier()
            return 1
        gather_scalar_from_all_ranks(count)
        if is_main_process():
            dist.barrier()
        """,
        [
            "collective barrier",
            "collective gather_scalar_from_all_ranks",
            "collective barrier when rank == 0",
        ],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected


def test_a_rank_is_asked_by_attribute_or_by_method() -> None:
    script = """
    from transformers import Trainer
    trainer = Trainer("x")
    tell(trainer.is_world_process_zero())
    tell(trainer.state.is_world_process_zero)
    """
    assert results(script) == ["rank == 0", "rank == 0"]


def test_the_arguments_of_a_trainer_are_kept_by_a_class_of_the_script() -> None:
    script = """
    from transformers import Trainer, TrainingArguments
    class Mine(Trainer):
        pass
    class Other(Trainer):
        def __init__(self, settings):
            super().__init__(args=settings)
    tell(Mine(None, TrainingArguments("x", fsdp="full_shard")).args.fsdp)
    tell(Other(TrainingArguments("x", fsdp="offload")).args.fsdp)
    """
    assert results(script) == ["'full_shard'", "'offload'"]
