"""What several codemods use; imported by them alone."""
