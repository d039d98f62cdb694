"""Trainers and libraries that take a model over: one file for each.

They shard models, build optimizers and write checkpoints themselves. What a script hands to one of them goes
to unresolved code, unless what becomes of it is known: then it is recorded in the words of PyTorch.
"""
