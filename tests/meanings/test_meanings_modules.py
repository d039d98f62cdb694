"""Modules: how they are sharded, wrapped, moved and handed on."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, happenings

SCRIPTS: Scripts = {
    "fully_shard under its old name": (
        """
        from torch.distributed._composable.fsdp import fully_shard as shard
        from torch.distributed._composable.fsdp.fully_shard import fully_shard as other
        net = Net()
        shard(net.head)
        other(net)
        """,
        ["sharded net.head", "sharded net"],
    ),
    "the function of the same name that is FSDP1": (
        """
        from torch.distributed._composable import fully_shard as old
        net = Net()
        old(net)
        """,
        ["net escaped to torch.distributed._composable.fully_shard"],
    ),
    "fully_shard of a list": (
        """
        net = Net()
        fully_shard([net.head, net.blocks[0]])
        """,
        ["sharded net.head and net.blocks[0]"],
    ),
    "the methods of a sharded module": (
        """
        from torch.distributed.fsdp import register_fsdp_forward_method
        net = fully_shard(Net())
        net.set_requires_gradient_sync(False)
        net.set_requires_gradient_sync(net.training)
        net.unshard()
        net.reshard()
        register_fsdp_forward_method(net, "generate")
        """,
        [
            "sharded net",
            "gradient sync of net switched off",
            "gradient sync of net switched on or off",
            "unsharded net",
            "resharded net",
            "registered generate of net",
        ],
    ),
    "no_sync of a wrapper": (
        """
        net = Net()
        net = FSDP(net)
        with net.no_sync():
            net(1).backward()
        """,
        [
            "wrapped net by fsdp1",
            "no_sync of net",
            "forward of net",
            "forward of net.blocks[0]",
            "forward of net.blocks[0].lin",
            "forward of net.blocks[1]",
            "forward of net.blocks[1].lin",
            "forward of net.head",
            "backward",
        ],
    ),
    "wrap inside enable_wrap, and outside": (
        """
        from torch.distributed.fsdp.wrap import enable_wrap, wrap
        with enable_wrap(wrapper_cls=FSDP):
            inner = nn.Linear(1, 1)
            wrap(inner)
        outer = wrap(nn.Linear(1, 1))
        fully_shard(outer)
        """,
        ["wrapped inner by fsdp1", "sharded outer"],
    ),
    "moves of a module and of a tensor": (
        """
        net = Net().to("cuda").half()
        x = torch.ones(1).to("cuda")
        w = net.head.weight.float()
        net.to_empty(device="cuda")
        net.train().eval().requires_grad_(False)
        """,
        ["moved net by to", "moved net by half", "moved net by to_empty"],
    ),
    "a module that grows": (
        """
        net = Net()
        net.blocks.append(Block())
        net.add_module("tail", nn.Linear(1, 1))
        setattr(net, "extra", nn.Linear(1, 1))
        for block in net.blocks:
            fully_shard(block)
        """,
        [
            "assigned net.blocks.2",
            "assigned net.tail",
            "assigned net.extra",
            "sharded net.blocks[0]",
            "sharded net.blocks[1]",
            "sharded net.blocks[2]",
        ],
    ),
    "forward called by hand": (
        """
        head = nn.Linear(1, 1)
        head.forward(1)
        """,
        ["forward of head through .forward"],
    ),
    "wrappers one over the other": (
        """
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.nn.parallel import DistributedDataParallel as DDP
        net = Net()
        net = checkpoint_wrapper(net)
        net = torch.compile(net)
        net = DDP(net)
        fully_shard(net.module)
        copied = copy.deepcopy(net)
        fully_shard(copied)
        """,
        [
            "wrapped net by checkpoint",
            "wrapped net by compile",
            "wrapped net by ddp",
            "collective DistributedDataParallel",
            "sharded net",
            "sharded copied",
        ],
    ),
    "recomputation calls the function": (
        """
        from torch.utils.checkpoint import checkpoint
        head = nn.Linear(1, 1)
        checkpoint(head, 1, use_reentrant=False)
        """,
        ["forward of head"],
    ),
    "a framework takes the model over": (
        """
        from accelerate import Accelerator
        net = Net()
        accelerator = Accelerator()
        net = accelerator.prepare(net)
        accelerator.wait_for_everyone()
        """,
        ["net escaped to .prepare", "collective wait_for_everyone"],
    ),
    "printing and logging keep nothing": (
        """
        import logging, wandb
        net = Net()
        print(net)
        logging.getLogger(__name__).info("%s", net)
        wandb.log({"n": sum(p.numel() for p in net.parameters())})
        torch.save(net.state_dict(), "x")
        """,
        ["state dict of net taken", "saved net.state_dict() with save"],
    ),
    "unknown code keeps everything": (
        """
        from elsewhere import setup
        net = Net()
        setup(net)
        """,
        ["net escaped to elsewhere.setup"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected
