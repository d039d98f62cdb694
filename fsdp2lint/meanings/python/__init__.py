"""What Python's own builtins, containers and strings do."""
