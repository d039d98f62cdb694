"""What works and costs time or memory."""
