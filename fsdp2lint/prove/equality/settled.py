"""What differs because a framework's settings were migrated, and not because the training is another: each with its reason.

Sources: transformers/trainer.py (5.23): ``_save`` writes the arguments of the training beside the weights, and
``floating_point_ops`` multiplies the tokens by ``num_parameters()``, which counts a flat parameter of FSDP1 by its shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdp2lint.frameworks.asked import bare
from fsdp2lint.frameworks.version2 import DROPPED

_ARGUMENTS = "training_args.bin"
_SECTIONS = ("fsdp_config", "fsdp_plugin_args")
_STATE = "trainer_state.json"
_COUNT = "total_flos"

_PADDING = 0.02
"""FSDP1 pads a flat parameter to a multiple of the ranks, so its shards hold a little more."""


def settings_of_version_1(
    file: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, str]:
    """The entries of the Trainer's saved arguments that say FSDP1 in BEFORE and FSDP2 in AFTER, each with what became of it.

    Only the version, and keys that version 2 does not have: another wrap class or offload is a difference.
    """
    if file.replace("\\", "/").rpartition("/")[2] != _ARGUMENTS:
        return {}
    found: dict[str, str] = {}
    for place in before:
        section, _, key = place.partition(".")
        if section not in _SECTIONS:
            continue
        if bare(key) == "version" and (before[place], after.get(place)) == (1, 2):
            found[place] = "1 becomes 2"
        elif place not in after and bare(key) in DROPPED:
            found[place] = DROPPED[bare(key)]
    return found


def counted_by_shard(
    file: str, entry: str, before: float, after: float, ranks: int, resumed: bool = False
) -> str:
    """Why a count of operations differs between FSDP1 and FSDP2; empty when another reason is possible.

    A run that goes on from a checkpoint of FSDP1 goes on from its count too.
    """
    if not file.endswith(_STATE) or entry.rpartition(".")[2] != _COUNT:
        return ""
    whole = before * ranks
    if not (before < after <= whole if resumed else after <= whole <= after * (1 + _PADDING)):
        return ""
    return (
        f"FSDP1 counts the parameters of one rank's shard, FSDP2 those of the model ({ranks} ranks)"
    )
