"""What the tool does when it is stopped, when the disk fails, and when its input is hostile."""
