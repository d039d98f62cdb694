"""Ranks, process groups and meshes."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, happenings

SCRIPTS: Scripts = {
    "rank guards in their spellings": (
        """
        from accelerate import Accelerator
        accelerator = Accelerator()
        if dist.get_rank() == 0: dist.barrier()
        if int(os.environ["RANK"]) != 0: dist.barrier()
        if os.environ.get("LOCAL_RANK") == 0: dist.barrier()
        if not accelerator.is_main_process: dist.barrier()
        """,
        [
            "collective barrier when rank == 0",
            "collective barrier when not (rank == 0)",
            "collective barrier when local rank == 0",
            "collective barrier when not (rank == 0)",
        ],
    ),
    "collectives of all ranks and of some": (
        """
        pair = dist.new_group([0, 1])
        x = torch.ones(1)
        dist.all_reduce(x)
        dist.all_reduce(x, group=pair)
        dist.all_reduce(x, dist.ReduceOp.SUM, pair)
        dist.broadcast(x, 0, dist.group.WORLD)
        dcp.save({"x": x}, checkpoint_id="x", process_group=pair)
        """,
        [
            "collective new_group",
            "collective all_reduce",
            "collective broadcast",
            "saved a dict with save",
        ],
    ),
    "whether the group is there": (
        """
        dist.init_process_group("nccl")
        if dist.is_initialized(): dist.barrier()
        dist.destroy_process_group()
        if dist.is_initialized(): dist.barrier()
        """,
        [
            "process group started on nccl",
            "collective barrier",
            "process group destroyed",
        ],
    ),
    "functions started in processes": (
        """
        import torch.multiprocessing as mp
        def work(rank, size):
            if rank == 0: dist.barrier()
        mp.spawn(work, args=(2,), nprocs=2)
        for i in range(2):
            p = mp.Process(target=work, args=(i, 2))
            p.start()
        """,
        ["collective barrier when rank == 0"] * 3,
    ),
    "meshes": (
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        if mesh["dp"].get_local_rank() == 0: dist.barrier()
        """,
        [
            "collective init_device_mesh",
            "collective barrier when dp rank == 0",
        ],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_leaves_these_events(name: str) -> None:
    script, expected = SCRIPTS[name]
    assert happenings(script) == expected
