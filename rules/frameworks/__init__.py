"""Settings and calls of accelerate, the Trainer, and Lightning."""
