"""Files that belong together: what an import names, and who imports whom."""
