"""What several of these rules use."""
