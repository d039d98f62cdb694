"""How fast fsdp2lint is, beside ruff, TorchFix and grep on the same files: ``python -m benchmarks``.

No test runs any of it: time is measured on a machine that is left alone, not in CI.
"""
