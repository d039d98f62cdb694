"""Optimizers over the parameters of a sharded model: when they are built, what they hold, what they compute in."""
