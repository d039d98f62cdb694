"""``fsdp2lint check``: from files to a report."""
