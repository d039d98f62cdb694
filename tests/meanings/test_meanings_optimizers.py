"""Optimizers, and the parameters that they and others take."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, happenings

SCRIPTS: Scripts = {
    "optimizers under many names": (
        """
        import bitsandbytes as bnb
        net = Net()
        a = torch.optim.SGD([{"params": net.head.parameters()}, {"params": net.blocks.parameters()}])
        b = getattr(torch.optim, "Adam" + "W")(net.parameters())
        c = getattr(torch.optim, os.environ["OPT"])(net.parameters())
        d = bnb.optim.AdamW8bit(p for p in net.parameters() if p.requires_grad)
        e = functools.partial(torch.optim.AdamW, lr=1)(list(net.parameters()))
        f = torch.optim.lr_scheduler.StepLR(a, 1)
        f.step()
        a.step()
        a.add_param_group({"params": itertools.chain(net.head.parameters(), net.blocks.parameters())})
        """,
        [
            "optimizer built over net.head.parameters() and net.blocks.parameters()",
            *["optimizer built over net.parameters()"] * 4,
            "stepped a",
            "optimizer built over net.head.parameters() and net.blocks.parameters()",
        ],
    ),
    "an optimizer of the project": (
        """
        class Mine(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

        net = Net()
        opt = Mine(net.parameters(), 1)
        """,
        ["optimizer built over net.parameters()"],
    ),
    "a class that is given parameters and is no optimizer": (
        """
        from somewhere import Average
        net = Net()
        Average(net.parameters())
        """,
        ["net.parameters() escaped to somewhere.Average"],
    ),
    "the steps of a scaler": (
        """
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1)
        scaler = torch.amp.GradScaler("cuda")
        loss = net.head(1)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        """,
        [
            "optimizer built over net.parameters()",
            "forward of net.head",
            "backward",
            "clipped net.parameters()",
            "stepped opt",
        ],
    ),
    "parameters taken early and used late": (
        """
        net = Net()
        params = list(net.parameters())
        fully_shard(net)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        """,
        ["sharded net", "clip_grad_norm_ used net.parameters()", "clipped net.parameters()"],
    ),
    "an average of parameters taken early": (
        """
        net = Net()
        params = list(net.parameters())
        shadow = [p.detach().clone() for p in params]
        fully_shard(net)
        torch._foreach_lerp_(shadow, params, 0.1)
        """,
        ["sharded net", "_foreach_lerp_ used net.parameters()"],
    ),
    "copies of parameters are not the parameters": (
        """
        net = Net()
        masters = [p.detach().clone().float() for p in net.parameters()]
        views = [p.data for p in net.parameters()]
        fully_shard(net)
        torch.optim.SGD(masters, lr=1)
        torch.optim.SGD(views, lr=1)
        masters[0].mul_(2)
        """,
        [
            "sharded net",
            "optimizer built over unknown parameters",
            "optimizer built over net.parameters()",
        ],
    ),
    "parameters sorted into groups": (
        """
        net = Net()
        groups = [{"params": []}, {"params": [], "weight_decay": 0.0}]
        for p in net.parameters():
            groups[p.ndim < 2]["params"].append(p)
        fully_shard(net)
        torch.optim.SGD(groups, lr=1)
        """,
        ["sharded net", "optimizer built over net.parameters()"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected
