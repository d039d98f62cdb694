"""fsdp2lint: a static linter and migration tool for PyTorch FSDP2."""

import os

__version__ = "0.2.0"

_here = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(
    os.path.join(_here, "rules")
):  # a checkout: rules/ and codemods/ lie beside us, not inside
    __path__.append(os.path.dirname(_here))
