"""The forward of a sharded model: how it is called, and what its modules and weights meet on the way."""
