"""``python -m fsdp2lint``."""

from fsdp2lint.cli import main

main()
