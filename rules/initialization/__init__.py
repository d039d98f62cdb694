"""How the weights and buffers of a sharded model come to their first values."""
