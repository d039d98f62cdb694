"""What is wrong: one rule a file, its page in its docstring. Loaded whole; nobody imports one by name."""
