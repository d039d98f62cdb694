"""The command line: ``fsdp2lint check``, ``rule``, ``trace``."""

from fsdp2lint.cli.program import main

__all__ = ["main"]
