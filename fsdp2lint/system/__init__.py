"""The machine around the tool: files, folders, git, writes that happen whole or not at all, signals."""
