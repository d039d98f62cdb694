"""A file as the tool sees it: which are worth reading, their trees, the programs inside documents."""
