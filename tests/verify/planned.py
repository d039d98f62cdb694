"""Plans scripts in forks of one process that has imported PyTorch: seconds less for each.

``python -m tests.verify.planned FOLDER WORLD:NAME=SCRIPT...`` plans each script for so many ranks, in its
own folder ``NAME``, and leaves ``NAME/answer.json`` there.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import msgspec

from fsdp2lint.verify.outcome import Request
from fsdp2lint.verify.plan.errand import Errand, environment


def main(folder: Path, wanted: list[str]) -> None:
    """Plan one script after the other."""
    import torch.distributed._tools.fake_collectives
    import torch.distributed.checkpoint
    import torch.distributed.fsdp  # noqa: F401

    for each in wanted:
        world, _, rest = each.partition(":")
        name, _, script = rest.partition("=")
        fork_plan(folder / name, int(world), Request(script, ""))


def fork_plan(scratch: Path, world: int, request: Request, per_node: int = 8) -> None:
    """Plan in a process of its own, as ``plan`` does, and wait for it."""
    scratch.mkdir()
    errand = scratch / "errand.json"
    errand.write_bytes(msgspec.json.encode(Errand(request, world, hollow=True)))
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.environ.update(environment(world, per_node))
        os.chdir(scratch)
        sys.argv = ["rank", str(errand)]
        from fsdp2lint.verify.plan import rank

        rank.main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
