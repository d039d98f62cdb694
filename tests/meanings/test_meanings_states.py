"""State dicts, checkpoints and files."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, happenings

SCRIPTS: Scripts = {
    "state dicts of FSDP1 and their kinds": (
        """
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        net = Net()
        net = FSDP(net)
        a = net.state_dict()
        full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, full):
            b = net.state_dict()
        with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
            c = net.state_dict()
        FSDP.set_state_dict_type(net, StateDictType.LOCAL_STATE_DICT)
        d = net.state_dict()
        """,
        [
            "wrapped net by fsdp1",
            "collective state_dict",
            "full state dict of net taken",
            "collective state_dict",
            "full state dict of net taken",
            "sharded state dict of net taken",
            "sharded state dict of net taken",
        ],
    ),
    "optimizer states of FSDP1": (
        """
        net = Net()
        net = FSDP(net)
        opt = torch.optim.SGD(net.parameters(), lr=1)
        state = FSDP.optim_state_dict(net, opt)
        opt.load_state_dict(FSDP.optim_state_dict_to_load(net, opt, state))
        """,
        [
            "wrapped net by fsdp1",
            "optimizer built over net.parameters()",
            "collective optim_state_dict",
            "full optimizer state of opt taken",
            "restored opt through .load_state_dict",
        ],
    ),
    "the state dict helpers": (
        """
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict)
        net = fully_shard(Net())
        opt = torch.optim.SGD(net.parameters(), lr=1)
        a = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        m, o = get_state_dict(net, opt)
        set_state_dict(net, opt, model_state_dict=m, optim_state_dict=o)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(net, a, options=options)
        """,
        [
            "sharded net",
            "optimizer built over net.parameters()",
            "collective get_model_state_dict",
            "full state dict of net taken",
            "sharded state dict of net taken",
            "sharded optimizer state of opt taken",
            "restored net through torch.distributed.checkpoint.state_dict.set_state_dict",
            "restored opt through torch.distributed.checkpoint.state_dict.set_state_dict",
            "collective set_model_state_dict",
            "restored net through torch.distributed.checkpoint.state_dict.set_model_state_dict",
        ],
    ),
    "only the first rank has what was gathered and offloaded": (
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        net = fully_shard(Net())
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(net, options=options)
        if state:
            torch.save(state, "net.pt")
        """,
        [
            "sharded net",
            "collective get_model_state_dict",
            "full state dict of net taken",
            "saved state with save when state",
        ],
    ),
    "a planner of PyTorch does nothing to the dict that a load is given": (
        """
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        planner = _EmptyStateDictLoadPlanner()
        state = {}
        tell(planner)
        dcp.load(state, checkpoint_id="net", planner=planner, no_dist=True)
        """,
        ["planner escaped to builtins.tell", "loaded with load"],
    ),
    "a stateful object in a checkpoint": (
        """
        class App:
            def __init__(self, net):
                self.net = net
            def state_dict(self):
                return {"model": self.net.state_dict()}
            def load_state_dict(self, state):
                self.net.load_state_dict(state["model"])

        net = fully_shard(Net())
        dcp.load({"app": App(net)}, checkpoint_id="x")
        dcp.save({"net": net}, checkpoint_id="x")
        """,
        [
            "sharded net",
            "state dict of net taken",
            "collective load",
            "loaded with load into net.state_dict()",
            "restored net through .load_state_dict",
            "state dict of net taken",
            "collective save",
            "saved net.state_dict() with save",
        ],
    ),
    "an asynchronous save": (
        """
        net = Net()
        future = dcp.async_save({"net": net.state_dict()}, checkpoint_id="x")
        future.result()
        """,
        [
            "state dict of net taken",
            "collective async_save",
            "saved net.state_dict() with async_save",
            "awaited future",
        ],
    ),
    "files of one process": (
        """
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1)
        torch.save({"m": net.state_dict(), "o": opt.state_dict()}, "x.pt")
        net.load_state_dict(torch.load("x.pt")["m"])
        """,
        [
            "optimizer built over net.parameters()",
            "state dict of net taken",
            "optimizer state of opt taken",
            "saved net.state_dict() and opt.state_dict() with save",
            "loaded with load",
            "restored net through .load_state_dict",
        ],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected
