"""The public code that is checked: given as folders, or the wheels of PyPI, unpacked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

WHEELS = {
    "transformers": "transformers==5.23.0",
    "torchtitan": "torchtitan",
    "accelerate": "accelerate",
}
"""Many files of which few are relevant; few of which most are; something that TorchFix can do too."""


def trees(given: dict[str, Path], cache: Path) -> dict[str, Path]:
    """A folder for each name of :data:`WHEELS`: the one that was given, else the wheel's files."""
    return {name: given.get(name) or _unpacked(name, cache / name) for name in WHEELS}


def _unpacked(name: str, folder: Path) -> Path:
    if not folder.is_dir():
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        wheels = folder.parent / "wheels"
        subprocess.run([*download, "--dest", str(wheels), WHEELS[name]], check=True)
        (wheel,) = wheels.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder
