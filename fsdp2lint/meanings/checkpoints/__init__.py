"""What is saved and loaded: checkpoints, files, state dicts."""
