"""A process of its own that plans: ``python -m fsdp2lint.plan.rank ERRAND``."""
