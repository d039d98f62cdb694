"""Each parameter has a step counter of its own in the optimizer's state (FSDP313).

A full optimizer file of FSDP1 keeps one counter for all parameters of a unit, and ``torch.load`` keeps
the sharing; a shared one is counted up once for each parameter.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.outcome import Spot, Violation


class SharedSteps(Check):
    """Looks at the counters before each step."""

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Two parameters with one counter."""
        counters = [state.get("step") for state in optimizer.state.values()]
        places = Counter(c.data_ptr() for c in counters if hasattr(c, "data_ptr"))
        shared = sum(count for count in places.values() if count > 1)
        if shared:
            message = (
                f"{shared} parameters share `step` tensors in the state of "
                f"`{type(optimizer).__name__}`: each step counts them up several times"
            )
            self.say(Violation("FSDP313", message, at))
