"""Whole states on the CPU of every rank, as FSDP1 gives them with ``offload_to_cpu`` and without ``rank0_only``.

``StateDictOptions`` has no such kind: what ``cpu_offload`` gathers goes to the first rank alone
(torch/distributed/checkpoint/state_dict.py, ``_maybe_full_or_cpu_state_dict``), and without it the whole model
would lie on every device. So the shards are taken, and each is gathered and brought to the CPU for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp2lint.api import Edit, Layout, Left, Source, Step

from .shared import Helpers, Naming

WHY = "on the CPU of every rank, one tensor after the other"


def _function(name: str, named: Naming) -> str:
    """``state`` may be whole already, where the run asks for the first rank alone."""
    return "\n".join(
        [
            f"def {name}(state):",
            '    """A copy of a state with whole tensors on the CPU of every rank, gathered one by one."""',
            f"    if isinstance(state, {named('torch.distributed.tensor.DTensor')}):",
            "        state = state.to(state.device_mesh.device_type).full_tensor()",
            "    if isinstance(state, dict):",
            f"        return {{key: {name}(value) for key, value in state.items()}}",
            f'    return state.to("cpu", copy=True) if {named("torch")}.is_tensor(state) else state',
        ]
    )


class Wholes:
    """The steps of a codemod: those of a file that need the function are one, which brings it along."""

    def __init__(self) -> None:
        self._helpers: dict[Source, Helpers] = {}
        self._asked: Source | None = None

    def name(self, source: Source, call: cst.CSTNode) -> str:
        """The name of the function, for the step that comes next."""
        new = Helpers.above(source, call)
        helpers = self._helpers.setdefault(source, new)
        starts = Layout.of(source).span
        if starts(new.place)[0] < starts(helpers.place)[0]:
            helpers.place = new.place
        self._asked = source
        return helpers.add("whole_on_cpu", _function)

    def together(self, found: Iterable[Step | Left]) -> Iterator[Step | Left]:
        """What the codemod yields, with the function where it is needed."""
        needing: dict[Source, list[Step]] = {}
        for one in found:
            source, self._asked = self._asked, None
            if source is not None and isinstance(one, Step):
                needing.setdefault(source, []).append(one)
            else:
                yield one
        for source, steps in needing.items():
            edits: list[Edit] = [edit for step in steps for edit in step.edits]
            edits += self._helpers[source].all_edits()
            yield Step(tuple(edits), tuple(one for step in steps for one in step.accounts))
