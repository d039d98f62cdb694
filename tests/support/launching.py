"""What the fixtures say of the settings that their scripts are launched with."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fsdp2lint.frameworks.asked import Launch
from fsdp2lint.model.hints import Hints
from fsdp2lint.source.source import Source

LAUNCHED = re.compile(r"^# launched: (.+)$", re.MULTILINE)


def launched(sources: Sequence[Source]) -> Hints:
    """What ``# launched: fsdp_version 2, state_dict_type FULL_STATE_DICT`` says of the launch of a script."""
    found = []
    for source in sources:
        for said in LAUNCHED.findall(source.text):
            values = dict(pair.split() for pair in said.split(","))
            kind = values.get("state_dict_type", "")
            processes = int(number) if (number := values.pop("processes", "")) else None
            given = {
                "offload": values.pop("offload", "") == "true",
                "efficient_loading": values.pop("efficient_loading", "") == "true",
                "mixed_precision": values.get("mixed_precision", ""),
            }
            named = tuple(values.items())
            launch = Launch(
                int(values["fsdp_version"]), kind, named=named, processes=processes, **given
            )
            found.append((os.path.abspath(source.path), launch))
    return Hints(launched=tuple(found))
