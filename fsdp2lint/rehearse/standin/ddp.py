"""DistributedDataParallel without the device numbers that it refuses for modules on CPU."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap


def install(counted: Counted) -> None:
    """Drop ``device_ids`` and ``output_device``."""

    def build(init: Function) -> Function:
        def initialised(
            self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any
        ) -> None:
            if device_ids is not None or output_device is not None:
                counted.note("DDP(device_ids=…)")
            init(self, module, **kwargs)

        return initialised

    wrap(DistributedDataParallel, "__init__", build)
