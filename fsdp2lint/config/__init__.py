"""The configuration file of a project: where it is, what may be in it, what it comes to.

The nearest of ``.fsdp2lint.toml``, ``fsdp2lint.toml`` and a ``pyproject.toml`` with ``[tool.fsdp2lint]``
above a file is the one that counts for it; files further up are not read unless ``extend`` names them.
Nothing here imports more than the standard library until such a file was found.
"""
