"""How `fully_shard` is applied: to which modules, in which order, with which arguments."""
