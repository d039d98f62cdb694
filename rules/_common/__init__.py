"""What several rules use; imported by them alone."""
