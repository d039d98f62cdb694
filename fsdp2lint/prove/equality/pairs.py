"""Which checkpoints of two runs belong together."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp2lint.rehearse.results import Checkpoint


def pair(
    before: Sequence[Checkpoint], after: Sequence[Checkpoint]
) -> list[tuple[list[Checkpoint], list[Checkpoint]]]:
    """Which checkpoints to compare: those of one name, else all those of one step together.

    One script may write two files where the other writes one folder; what was written after the same
    optimizer step belongs together. One side of a pair is empty where nothing was written.
    """
    pairs: list[tuple[list[Checkpoint], list[Checkpoint]]] = []
    names = {checkpoint.name: checkpoint for checkpoint in after}
    left = []
    for checkpoint in before:
        partner = names.get(checkpoint.name)
        if partner is not None and partner.step == checkpoint.step:
            pairs.append(([checkpoint], [names.pop(checkpoint.name)]))
        else:
            left.append(checkpoint)
    steps = dict.fromkeys(one.step for one in (*left, *names.values()))
    for step in sorted(steps):
        old = [one for one in left if one.step == step]
        new = [one for one in names.values() if one.step == step]
        pairs.append((old, new))
    return sorted(pairs, key=lambda both: (both[0] or both[1])[0].step)
