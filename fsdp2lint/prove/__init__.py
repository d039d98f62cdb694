"""``fsdp2lint verify``: two programs, and whether they do the same."""
