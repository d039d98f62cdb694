"""How a process of ours becomes a script's: its path, its environment, and the run as ``__main__``."""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import signal
import sys
import types
from pathlib import Path

from fsdp2lint.rehearse.outcome import Request


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (``prctl(2)``, Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def hide_ourselves() -> None:
    """Our own folder goes to the end of the path; child processes get the path that the user set."""
    package = str(Path(__file__).resolve().parents[2])
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != package] + [package]
    before = os.environ.pop("FSDP2LINT_PYTHONPATH", "")
    if before:
        os.environ["PYTHONPATH"] = before
    else:
        os.environ.pop("PYTHONPATH", None)


def add_folder(request: Request) -> None:
    """Put the script's folder, or the one that a module is imported from, first on the path."""
    if request.module:
        folder = request.root or os.getcwd()
    else:
        folder = os.path.dirname(os.path.abspath(request.target))
    sys.path.insert(0, folder)
    if request.patches and os.getcwd() != folder:
        sys.path.insert(1, os.getcwd())


class NoSuchPatch(Exception):
    """A function that is to be called first is not there."""


def call(patch: str) -> None:
    """Call a function named as ``module:function``.

    Raises:
        NoSuchPatch: there is no such module, or no such function in it.
    """
    module, _, name = patch.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise NoSuchPatch(f"--patch {patch}: {problem}") from problem
    function()


def run(request: Request) -> None:
    """Run the script or the module as ``__main__``, with its arguments."""
    if request.module:
        sys.argv = [request.target, *request.arguments]
        runpy.run_module(request.target, run_name="__main__", alter_sys=True)
        return
    script = os.path.abspath(request.target)
    sys.argv = [request.target, *request.arguments]
    body = types.ModuleType("__main__")
    body.__file__ = script
    sys.modules["__main__"] = body
    exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), body.__dict__)
