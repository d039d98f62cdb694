"""fsdp2lint: a static linter and migration tool for PyTorch FSDP2."""

from pathlib import Path

__version__ = "0.1.0"

_here = Path(__file__).parent
if not (_here / "rules").is_dir():  # a checkout: rules/ and codemods/ lie beside us, not inside
    __path__.append(str(_here.parent))
