"""Gradients of a sharded model: synchronisation, clipping, norms, and counts."""
