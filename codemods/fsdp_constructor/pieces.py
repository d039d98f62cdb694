"""What comes in place of a constructor call, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Pieces:
    """The pieces that the arguments of a call come to; texts as they are at the call."""

    before: list[str] = field(default_factory=list)
    """Statements before the first sharding. ``{model}`` stands for the module's name."""
    shared: dict[str, str] = field(default_factory=dict)
    """Arguments of each ``fully_shard``."""
    spread: list[str] = field(default_factory=list)
    """Expressions of dictionaries with further arguments of each."""
    unmeshed: list[str] = field(default_factory=list)
    """Those of them that hold no mesh."""
    own: str = ""
    """The name among them of a dictionary that is copied for this call, once it has one."""
    conditional: list[tuple[str, str, str]] = field(default_factory=list)
    """Arguments of each under a condition: the test, the name, the value."""
    inner: dict[str, str] = field(default_factory=dict)
    """Arguments of those of submodules."""
    root: dict[str, str] = field(default_factory=dict)
    """Arguments of that of the model."""
    first: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    """Classes of modules that come first, each with its own arguments and a condition, if only some runs have them."""
    after: list[str] = field(default_factory=list)
    """Statements after the last sharding."""
    prepare: list[str] = field(default_factory=list)
    """Statements right before each sharding. ``{module}`` stands for what is sharded."""
    draws: bool = False
    """Whether values may be drawn there: then modules come in the order of FSDP1."""
    group: str = ""
    """What says the process group that is given, once it has a name."""
