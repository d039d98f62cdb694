"""What differs from rank to rank, form by form: where it comes from, and where the rules stop asking."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import glob
import os
import random
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
"""
MODEL = """dist.init_process_group("nccl")
        model = nn.Linear(8, 8)
        fully_shard(model)"""


ONE_CAUSE = {
    "a trainer that counts its steps": """
        class Trainer:
            def __init__(self, config, dataset):
                self.config = config
                self.model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
                for layer in self.model:
                    fully_shard(layer)
                fully_shard(self.model)
                self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
                self.loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
                self.steps = 0

            def validate(self):
                with torch.no_grad():
                    self.model(torch.zeros(1, 8))

            def fit(self):
                for epoch in range(self.config.epochs):
                    self.loader.sampler.set_epoch(epoch)
                    batches, done, count = iter(self.loader), self.steps % self.config.steps, 0
                    while done < self.config.steps:
                        try:
                            batch = next(batches)
                        except StopIteration:
                            break
                        loss = self.model(batch).mean()
                        if torch.isnan(loss):  # expect: FSDP414
                            continue
                        loss.backward()
                        if (count + 1) % self.config.accumulate == 0:
                            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                            self.optimizer.step()
                            self.optimizer.zero_grad()
                            self.steps += 1
                            done += 1
                            if self.steps % self.config.save_every == 0:
                                dcp.save({"model": self.model.state_dict()}, checkpoint_id=f"out/{self.steps}")
                            if self.steps % self.config.validate_every == 0:
                                self.validate()
                        count += 1


        def main(config, dataset):
            dist.init_process_group("nccl")
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            Trainer(config, dataset).fit()


        if __name__ == "__main__":
            from settings import config, dataset

            main(config, dataset)
        """,
    "a counter of bad rounds still stops the loop": """
        class Patience:
            def __init__(self, most):
                self.best, self.bad, self.most = float("inf"), 0, most

            def over(self, value):
                if value < self.best:
                    self.best, self.bad = value, 0
                    return False
                self.bad += 1
                return self.bad >= self.most


        dist.init_process_group("nccl")
        model = nn.Linear(8, 8)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        patience = Patience(3)
        for _ in range(10):
            loss = model(torch.randn(4, 8)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if patience.over(loss.item()):
                break  # expect: FSDP402
        """,
}


@pytest.mark.parametrize("text", ONE_CAUSE.values(), ids=ONE_CAUSE)
def test_what_differs_because_of_a_departure_is_reported_once(text: str) -> None:
    says_what_it_marks(text)


FILES = (
    ('os.path.exists("/tmp/run/latest")', True),
    ('(Path("/tmp") / "run").exists()', True),
    ('Path(os.environ["SLURM_TMPDIR"], "run").is_dir()', True),
    ('os.path.isfile(f"{tempfile.gettempdir()}/run/meta.json")', True),
    ('os.path.isdir(os.path.join(os.getenv("TMPDIR", "/tmp"), "run"))', True),
    ('sorted(glob.glob("/dev/shm/run/*"))', True),
    ('os.path.exists("runs/latest")', False),
    ('os.path.exists("/tmpfs/latest")', False),
    ('os.path.exists("/tmp/run" if os.environ.get("LOCAL") else "runs")', False),
    ('os.path.exists(os.path.join(tempfile.mkdtemp(dir="runs"), "latest"))', False),
)


@pytest.mark.parametrize(("test", "local"), FILES)
def test_files_are_asked_about_where_each_machine_has_its_own(test: str, local: bool) -> None:
    says_what_it_marks(
        f"""
        {MODEL}
        if {test}:
            dcp.load({{"model": model.state_dict()}}, checkpoint_id="x")  # {word(local, "FSDP412")}
        model(torch.randn(4, 8)).sum().backward()
        """
    )


def test_a_file_that_the_ranks_have_agreed_on_is_fine() -> None:
    says_what_it_marks(
        f"""
        {MODEL}
        there = [os.path.exists("/tmp/run/latest")]
        dist.broadcast_object_list(there, src=0)
        if there[0]:
            dcp.load({{"model": model.state_dict()}}, checkpoint_id="x")
        model(torch.randn(4, 8)).sum().backward()
        """
    )


FREE = """
        def free():
            with socket.socket() as s:
                s.bind(("", 0))
                return s.getsockname()[1]

"""
PORTS = {
    "each spawned rank looks": """
        def main(rank, size):
            os.environ["MASTER_PORT"] = str(free())  # expect: FSDP406
            dist.init_process_group("nccl", rank=rank, world_size=size)
            fully_shard(nn.Linear(8, 8))

        if __name__ == "__main__":
            mp.spawn(main, args=(2,), nprocs=2)
        """,
    "each spawned rank draws, for a method": """
        class Worker:
            def __init__(self):
                self.port = random.randint(20000, 30000)

            def start(self, rank, size):
                where = f"tcp://localhost:{self.port}"
                dist.init_process_group("nccl", where, rank=rank, world_size=size)  # expect: FSDP406

        def main(rank, size):
            Worker().start(rank, size)
            fully_shard(nn.Linear(8, 8))

        if __name__ == "__main__":
            mp.spawn(main, args=(2,), nprocs=2)
        """,
    "the process that starts them has looked": """
        def main(rank, size, port):
            os.environ["MASTER_PORT"] = str(port)
            dist.init_process_group("nccl", rank=rank, world_size=size)
            fully_shard(nn.Linear(8, 8))

        if __name__ == "__main__":
            mp.spawn(main, args=(2, free()), nprocs=2)
        """,
    "only where none is set": """
        def main(rank, size):
            if "MASTER_PORT" not in os.environ:
                os.environ["MASTER_PORT"] = str(free())
            dist.init_process_group("nccl", rank=rank, world_size=size)
            fully_shard(nn.Linear(8, 8))

        if __name__ == "__main__":
            mp.spawn(main, args=(2,), nprocs=2)
        """,
}


@pytest.mark.parametrize("text", PORTS.values(), ids=PORTS)
def test_a_port_is_found_once(text: str) -> None:
    says_what_it_marks(FREE + text)


NORMS = (
    ("clip_grad_norm_(model.parameters(), 1.0)", (2, 9), True),
    ("clip_grad_norm_(model.parameters(), 1.0)", (2, 10), False),
    ("get_total_norm([p.grad for p in model.parameters()])", (2, 9), True),
    ("get_total_norm([p.grad for p in model.parameters()])", (2, 10), False),
    ('clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))', (2, 13), True),
)


@pytest.mark.parametrize(("norm", "torch", "partial"), NORMS)
def test_a_norm_is_gathered_by_all_ranks_while_it_is_partial(
    norm: str, torch: tuple[int, int], partial: bool
) -> None:
    says_what_it_marks(
        f"""
        # target: torch {torch[0]}.{torch[1]}
        def log(norm):
            if dist.get_rank() == 0:
                print(norm.full_tensor())  # {word(partial, "FSDP401")}

        {MODEL}
        model(torch.randn(4, 8)).sum().backward()
        log(torch.nn.utils.{norm})
        """
    )


WEIGHED = (
    ("loss = (per_token(out) * batch['mask']).sum()", True),
    ("loss = per_token(out)[batch['mask']].sum() / 4", True),
    ("loss = masked(per_token(out), batch)", True),
    ("loss = per_token(out, batch['mask']).sum()", False),  # may have been reduced in there
    ("loss = (per_token(out) * batch['mask']).sum(); dist.all_reduce(loss)", False),
)


@pytest.mark.parametrize(("loss", "differs"), WEIGHED)
def test_a_loss_of_another_library_differs_where_data_of_the_rank_weighs_it(
    loss: str, differs: bool
) -> None:
    says_what_it_marks(
        f"""
        from elsewhere import dataset, per_token

        def masked(scores, batch):
            return scores[batch["mask"] > 0].mean()

        {MODEL}
        for batch in DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False)):
            out = model(batch["input"])
            {loss}
            if not torch.isnan(loss):  # {word(differs, "FSDP414")}
                loss.backward()
        dist.destroy_process_group()
        """
    )


DATES = (
    ("datetime.now() - start > timedelta(minutes=10)", True),
    ("(datetime.now() - start).total_seconds() > 600", True),
    ("datetime.utcnow().timestamp() > start.timestamp() + 600", True),
    ("agreed(datetime.now() - start > timedelta(minutes=10))", False),
    ("start.year > 2000 and step == 10", False),
)


@pytest.mark.parametrize(("late", "differs"), DATES)
def test_a_date_is_a_clock(late: str, differs: bool) -> None:
    says_what_it_marks(
        f"""
        from datetime import datetime, timedelta

        def agreed(late):
            flag = torch.tensor(late)
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            return flag.item()

        {MODEL}
        start = datetime(2001, 1, 1)
        for step in range(100):
            model(torch.ones(2, 8)).sum().backward()
            if {late}:
                dcp.save({{"model": model.state_dict()}}, checkpoint_id="out")  # {word(differs, "FSDP412")}
        dist.destroy_process_group()
        """
    )


FLAGS = (
    ("flag = torch.tensor(ask(step), device='cuda')", "flag.item()", True),
    ("flag = torch.tensor([int(ask(step))]).cuda()", "int(flag.item()) == 1", True),
    ("flag = torch.as_tensor(ask(step)); sent = flag", "bool(sent)", True),
    ("flag = torch.tensor(ask(step)); dist.broadcast(flag, src=0)", "flag.item()", False),
    ("flag = torch.tensor(ask(step)); agree(flag)", "flag.item()", False),
    ("flag = torch.tensor(step > 10)", "flag.item()", False),
)


@pytest.mark.parametrize(("flag", "test", "differs"), FLAGS)
@pytest.mark.parametrize("asked", ["(rank == 0 and step > 10)", "helper(step)"])
def test_a_flag_of_one_rank_is_sent_to_the_others(
    flag: str, test: str, differs: bool, asked: str
) -> None:
    says_what_it_marks(
        f"""
        rank = int(os.environ["RANK"])

        def agree(value):
            dist.all_reduce(value, op=dist.ReduceOp.MAX)

        def helper(step):
            stop = False
            if rank == 0:
                if step > 10:
                    stop = True
            return stop

        {MODEL}
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            {flag.replace("ask(step)", asked)}
            if {test}:
                break  # {word(differs, "FSDP402")}
        dist.destroy_process_group()
        """
    )


def word(expected: bool, code: str) -> str:
    """What the comment of a line says of a code."""
    return f"{'expect' if expected else 'fine'}: {code}"


def says_what_it_marks(text: str) -> None:
    """The script gives the findings that its comments expect, and no other."""
    sources = [Source("train.py", HEAD + dedent(text))]
    assert named(list(findings(sources))) == marked(sources, "expect")


ALONE = (
    'if "RANK" in os.environ:',
    'distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1\n        if distributed:',
)
REDUCED = """
        def finite(loss):
            good = bool(torch.isfinite(loss))
            if dist.is_initialized():
                flag = torch.tensor([1.0 if good else 0.0], device="cuda")
                dist.all_reduce(flag, dist.ReduceOp.MIN)
                everywhere = flag.item() > 0
            else:
                everywhere = good
            return everywhere
"""
NOT_REDUCED = """
        def finite(loss):
            return bool(torch.isfinite(loss))
"""


@pytest.mark.parametrize("started", ALONE)
@pytest.mark.parametrize(("finite", "differs"), [(REDUCED, False), (NOT_REDUCED, True)])
def test_a_run_without_a_group_has_no_other_rank_to_differ_from(
    started: str, finite: str, differs: bool
) -> None:
    """A flag is the rank's own where the run has one process; the ranks reduce it where there are several."""
    says_what_it_marks(
        f"""{finite}
        {started}
            dist.init_process_group("nccl")
        model = nn.Linear(8, 8)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(10):
            loss = model(torch.randn(2, 8)).sum()
            loss.backward()
            if not finite(loss):  # {word(differs, "FSDP414")}
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
        """
    )


def test_a_list_of_losses_is_no_loss_itself() -> None:
    """Whether anything was added up since the last step depends on how many batches came, not on the losses."""
    says_what_it_marks(
        f"""
        {MODEL}
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(torch.ones(64, 8), sampler=DistributedSampler(torch.ones(64, 8)))
        losses = []
        for step, batch in enumerate(loader, 1):
            loss = model(batch).sum()
            loss.backward()
            losses.append(loss.detach())
            if step % 4 == 0:
                optimizer.step()
                losses = []
        if losses:  # fine: FSDP414
            optimizer.step()
        """
    )


@pytest.mark.parametrize(
    ("other", "there"),
    [("", True), ("if dist.get_rank() != 0:\n            launch(follow)", False)],
)
def test_an_import_that_may_fail_on_one_rank_sends_the_others_nowhere(
    other: str, there: bool
) -> None:
    """What was left of `raise` in a helper keeps nobody away from the calls behind it."""
    says_what_it_marks(
        f"""
        from elsewhere import config, launch

        def start_log():
            if not config.log or dist.get_rank() != 0:
                return None
            try:
                import wandb
            except ImportError as error:
                raise RuntimeError("install wandb") from error
            return wandb.init()

        def follow():
            dist.barrier()

        {MODEL}
        run = start_log()
        optimizer = torch.optim.AdamW(model.parameters())
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
        {other}
        if dist.get_rank() == 0:
            dist.barrier()  # {word(there, "FSDP401")}
        """
    )


@pytest.mark.parametrize(
    ("place", "some"),
    [
        ("dist.get_rank() // config.tensor_parallel", True),
        ("dist.get_rank() % config.ranks_of_node", True),
        ("dist.get_rank() // 8", False),
        ("config.rank // config.tensor_parallel", False),
    ],
)
def test_a_place_among_groups_of_ranks_is_not_the_same_for_all(place: str, some: bool) -> None:
    says_what_it_marks(
        f"""
        from elsewhere import config

        {MODEL}
        loss = torch.ones(1)
        place = {place}
        if place == 0:
            dist.all_reduce(loss)  # {word(some, "FSDP401")}
        """
    )


@pytest.mark.parametrize(
    ("test", "own"),
    [
        ("done.item() or late()", True),
        ("late() or step > 100", True),
        ("done.item() or step > 100", False),
        ("(not dist.is_initialized()) and late()", False),
    ],
)
def test_one_side_of_or_decides_where_the_other_does_not_hold(test: str, own: bool) -> None:
    says_what_it_marks(
        f"""
        import time

        start = time.monotonic()

        def late():
            return time.monotonic() - start > 3600

        {MODEL}
        done = torch.zeros(1)
        for step in range(1000):
            model(torch.ones(2, 8)).sum().backward()
            dist.all_reduce(done)
            if {test}:
                break  # {word(own, "FSDP402")}
        """
    )


SHARES = {
    "a data set that is told its place": """
        class Share(torch.utils.data.IterableDataset):
            def __init__(self, files, rank, world_size):
                self.files, self.rank, self.world_size = files, rank, world_size

            def __iter__(self):
                for number, file in enumerate(self.files):
                    if number % self.world_size == self.rank:
                        yield torch.load(file)

        class Mixed(torch.utils.data.IterableDataset):
            def __init__(self, one):
                self.one = one

            def __iter__(self):
                yield from self.one

        data = Mixed(Share(config.files, dist.get_rank(), dist.get_world_size()))
        """,
    "a data set that is told nothing": """
        class Share(torch.utils.data.IterableDataset):
            def __init__(self, files):
                self.files = files

            def __iter__(self):
                for file in self.files:
                    yield torch.load(file)

        data = Share(config.files)
        """,
}


@pytest.mark.parametrize("share", SHARES)
def test_batches_that_a_generator_hands_on_are_a_ranks_own(share: str) -> None:
    """Where each rank has its share of the files, one of them may have a batch without targets."""
    differs = share == "a data set that is told its place"
    says_what_it_marks(
        f"""
        from elsewhere import config
        {SHARES[share]}
        {MODEL}

        def whole(loader):
            for batch in loader:
                if batch is not None:
                    yield batch

        batches = whole(DataLoader(data))  # {word(not differs, "FSDP409")}
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(100):
            batch = next(batches)
            targets = int((batch["labels"] != -100).sum().item())
            if targets == 0:  # {word(differs, "FSDP412")}
                continue
            model(batch["input"]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )


def test_whether_a_model_is_compiled_says_nothing_of_how_it_is_sharded() -> None:
    """A forward under `not args.compile` is that of the model which is sharded under `args.shard`."""
    says_what_it_marks(
        """
        from elsewhere import config

        dist.init_process_group("nccl")
        model = nn.Linear(8, 8)
        if config.shard:
            fully_shard(model)
        if config.torch_compile:
            model = torch.compile(model)
        for _ in range(10):
            loss = model(torch.randn(2, 8)).sum()
            if loss.item() > 50.0:  # expect: FSDP414
                continue
            loss.backward()
        """
    )


@pytest.mark.parametrize("reduced", [True, False])
def test_what_a_callback_counts_in_its_own_loop_may_be_any_number(reduced: bool) -> None:
    """The loop over the callbacks is walked whole, the one over the epochs around it is not."""
    says_what_it_marks(
        f"""
        from elsewhere import data

        {MODEL}
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))

        class Patience:
            def __init__(self, patience):
                self.patience, self.best, self.bad = patience, float("inf"), 0

            def on_epoch_end(self, loop):
                if loop.last < self.best:
                    self.best, self.bad = loop.last, 0
                else:
                    self.bad += 1
                if self.bad >= self.patience:
                    loop.stopped = True

        class Loop:
            def __init__(self, callbacks):
                self.callbacks, self.stopped, self.last = callbacks, False, float("inf")

            def emit(self, name):
                for callback in self.callbacks:
                    getattr(callback, name)(self)

            def evaluate(self):
                total = torch.zeros(2)
                for x in loader:
                    total[0] += model(x).mean()
                    total[1] += 1
                {"dist.all_reduce(total)" if reduced else ""}
                return (total[0] / total[1]).item()

            def run(self):
                for epoch in range(10):
                    model(torch.ones(1, 8)).sum().backward()
                    optimizer.step()
                    self.last = self.evaluate()
                    self.emit("on_epoch_end")
                    if self.stopped:
                        break  # {word(not reduced, "FSDP402")}

        Loop([Patience(3)]).run()
        """
    )
