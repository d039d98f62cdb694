"""Which packages are installed; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup

KNOWLEDGE = ("rules", "codemods")
"""Folders at the top of the checkout that are installed inside the package."""

setup(
    packages=[
        *find_packages(include=["fsdp2lint*"]),
        *(f"fsdp2lint.{name}" for top in KNOWLEDGE for name in find_packages(include=[f"{top}*"])),
    ],
    package_dir={f"fsdp2lint.{top}": top for top in KNOWLEDGE},
)
