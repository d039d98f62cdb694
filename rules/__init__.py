"""What is wrong: one rule a file, its page in its docstring, in a folder by family. Loaded whole; nobody imports one by name."""
