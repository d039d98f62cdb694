"""Saving and loading sharded models and their optimizers."""
