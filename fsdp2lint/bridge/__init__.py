"""``fsdp2lint migrate-checkpoint``: checkpoints from one form to another."""
