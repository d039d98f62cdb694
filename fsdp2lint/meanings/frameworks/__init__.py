"""Trainers and libraries that take a model over: one file for each.

They shard models, build optimizers and write checkpoints themselves. What a script hands to one of them goes
out of sight, unless what becomes of it is known: then it is told in the words of PyTorch.
"""
