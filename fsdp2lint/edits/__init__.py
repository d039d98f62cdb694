"""How text changes: edits on syntax nodes and on lines of text."""
