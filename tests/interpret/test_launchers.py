"""Programs that start their training through a decorator, a launcher or a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.check.runner import Batch, check

TRAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def work(cfg):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    model(torch.ones(8)).sum().backward()
    optimizer.step()


"""
MAIN = '\n\nif __name__ == "__main__":\n    '
STARTS = {
    "click": f"import click\n@click.command()\n@click.option('--cfg')\ndef main(cfg):\n    work(cfg)\n{MAIN}main()\n",
    "a click group": "import click\n@click.group()\ndef cli():\n    pass\n\n@cli.command()\n"
    f"def train(cfg):\n    work(cfg)\n{MAIN}cli()\n",
    "a click group that is filled": "import click\n@click.group()\ndef cli():\n    pass\n\n"
    f"def train(cfg):\n    work(cfg)\n\ncli.add_command(train)\n{MAIN}cli()\n",
    "typer": "import typer\napp = typer.Typer()\n\n@app.command()\ndef train(cfg: str):\n"
    f"    work(cfg)\n{MAIN}app()\n",
    "typer.run": f"import typer\ndef train(cfg: str):\n    work(cfg)\n{MAIN}typer.run(train)\n",
    "cyclopts": "from cyclopts import App\napp = App()\n\n@app.default\ndef train(cfg: str):\n"
    f"    work(cfg)\n{MAIN}app()\n",
    "fire": f"import fire\ndef train(cfg):\n    work(cfg)\n{MAIN}fire.Fire(train)\n",
    "fire with commands": "import fire\ndef train(cfg):\n    work(cfg)\n"
    f"{MAIN}fire.Fire({{'train': train}})\n",
    "hydra": "import hydra\n@hydra.main(version_base=None, config_path='conf')\ndef main(cfg):\n"
    f"    work(cfg)\n{MAIN}main()\n",
    "jsonargparse": f"from jsonargparse import auto_cli\ndef main(cfg):\n    work(cfg)\n{MAIN}auto_cli(main)\n",
    "fastcore": "from fastcore.script import *\n@call_parse\ndef main(cfg: str = 'c'):\n    work(cfg)\n",
    "fastcore, called": "from fastcore.script import call_parse\n@call_parse()\ndef main(cfg: str = 'c'):\n"
    "    work(**locals())\n",
    "elastic_launch": "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
    f"{MAIN}elastic_launch(LaunchConfig(1, 1, 8), work)({{}})\n",
    "spawn": f"import torch.multiprocessing as mp\ndef w(rank, cfg):\n    work(cfg)\n{MAIN}mp.spawn(w, args=({{}},))\n",
    "a process": f"import torch.multiprocessing as mp\n{MAIN}mp.Process(target=work, args=({{}},)).start()\n",
    "a ray actor": "import ray\n@ray.remote(num_gpus=1)\nclass Worker:\n    def fit(self, cfg):\n"
    f"        work(cfg)\n{MAIN}ray.get(Worker.options(num_cpus=1).remote().fit.remote(None))\n",
    "a ray task": f"import ray\n@ray.remote\ndef task(cfg):\n    work(cfg)\n{MAIN}ray.get(task.remote(1))\n",
    "ray train": "from ray.train.torch import TorchTrainer\n"
    f"{MAIN}TorchTrainer(work, train_loop_config={{}}).fit()\n",
    "submitit": f"import submitit\n{MAIN}submitit.AutoExecutor('log').submit(work, 1)\n",
    "accelerate": f"from accelerate import notebook_launcher\n{MAIN}notebook_launcher(work, (1,))\n",
}


@pytest.mark.parametrize("start", STARTS)
def test_the_training_is_part_of_the_program(tmp_path: Path, start: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(TRAIN + STARTS[start])
    report = check(Batch.of_files([str(file)]))
    (program,) = report.programs
    assert program.begins, "found by the run of the file"
    assert program.whole, program.lost
    assert [d.rule.code for d in report.found if d.severity == "error"] == ["FSDP201"]


RANKED = {
    "tasks": "@ray.remote\ndef task(rank, cfg):\n    work(rank)\n"
    f"{MAIN}ray.get([task.remote(i, {{}}) for i in range(4)])\n",
    "tasks with other resources": "@ray.remote\ndef task(cfg, rank):\n    work(rank)\n"
    f"{MAIN}for i in range(torch.cuda.device_count()):\n        task.options(num_gpus=1).remote({{}}, rank=i)\n",
    "actors": "@ray.remote\nclass Worker:\n    def __init__(self, rank):\n        self.rank = rank\n"
    f"    def fit(self):\n        work(self.rank)\n{MAIN}workers = [Worker.remote(i) for i in range(4)]\n"
    "ray.get([one.fit.remote() for one in workers])\n",
}
WORK = """
import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def work(rank):
    dist.init_process_group("nccl", rank=rank, world_size=4)
    model = FSDP(nn.Linear(8, 8))
    model(torch.randn(4, 8)).sum().backward()
    states = model.state_dict()
    if rank == 0:
        torch.save(states, "model.pt")
        dist.barrier()
    dist.destroy_process_group()


"""


@pytest.mark.parametrize("start", RANKED)
def test_the_counter_of_the_loop_that_starts_workers_is_their_rank(
    tmp_path: Path, start: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(WORK + RANKED[start])
    found = {d.rule.code for d in check(Batch.of_files([str(file)])).found}
    assert "FSDP401" in found, "rank 0 alone comes to the barrier"
    assert "FSDP310" not in found, "rank 0 alone writes"
