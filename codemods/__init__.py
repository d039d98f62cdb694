"""What comes instead: one rewriting a file. Loaded whole; nobody imports one by name."""
