"""The checkpoints that a rank writes, noted as it writes them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Saved
from fsdp2lint.rehearse.stacks import called_by
from fsdp2lint.rehearse.workfolder import loosen

_DCP = ("torch/distributed/checkpoint/filesystem.py", "torch/distributed/checkpoint/planner.py")

STORES = "stores"
"""The folder of the working folder that stands for object stores."""

Kind = Literal["torch", "dcp", "safetensors"]


class Saves:
    """The checkpoints that this rank has written, each with the number of steps before it."""

    def __init__(self, saved: list[Saved], steps: Callable[[], int], folder: str) -> None:
        self._saved, self._steps, self._folder = saved, steps, folder
        self._started: dict[str, int] = {}
        """Asynchronous saves by path: how many steps had been made when each began."""

    def install(self) -> None:
        """Listen to ``torch.save``, to DCP's file writer, to safetensors where it is installed, and to renames."""
        os.rename, os.replace = self._rename(os.rename), self._rename(os.replace)
        accessor: Any = getattr(
            pathlib, "_NormalAccessor", None
        )  # paths of Python 3.10 have their own
        if accessor is not None:
            accessor.rename, accessor.replace = map(staticmethod, (os.rename, os.replace))
        torch.save = self._torch_save(torch.save)
        finish: Any = FileSystemWriter.finish
        FileSystemWriter.finish = self._finish(finish)  # type: ignore[method-assign]
        replace_everywhere(async_save, self._async_save)
        if self._folder and importlib.util.find_spec("fsspec") is not None:
            self._keep_stores_here()
        if importlib.util.find_spec("safetensors") is not None:
            module: Any = importlib.import_module("safetensors.torch")
            module.save_file = self._save_file(module.save_file)

    def _keep_stores_here(self) -> None:
        """What is saved in an object store lands in the working folder, and is loaded from there: no run writes over the real one."""
        try:
            stores: Any = importlib.import_module("torch.distributed.checkpoint._fsspec_filesystem")
        except ImportError:  # a release that keeps it elsewhere
            return
        folder = self._folder

        def kept_here(original: Any, *, reads: bool) -> Any:
            @functools.wraps(original)
            def given(self: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
                path = kwargs.pop("checkpoint_id", path)
                copy = _place_of(path, folder)
                if copy and (os.path.exists(copy) or not reads):
                    path = copy
                return original(self, path, *args, **kwargs)

            return given

        for kind, reads in ((stores.FsspecWriter, False), (stores.FsspecReader, True)):
            kind.__init__ = kept_here(kind.__init__, reads=reads)
            kind.reset = kept_here(kind.reset, reads=reads)

    def _note(self, path: object, kind: Kind, step: int | None = None) -> None:
        if isinstance(path, str | os.PathLike):
            full = os.path.abspath(os.fspath(path))
            step = self._steps() if step is None else step
            self._saved[:] = [saved for saved in self._saved if saved.path != full]
            self._saved.append(Saved(full, step, kind))

    def _rename(self, rename: Any) -> Any:
        """A file that was saved under another name first, or in a folder, so that no half of it is ever seen."""

        def renamed(src: Any, dst: Any, **kwargs: Any) -> None:
            rename(src, dst, **kwargs)
            old, new = (os.path.abspath(os.fsdecode(path)) for path in (src, dst))
            moved = [
                one for one in self._saved if one.path == old or one.path.startswith(old + os.sep)
            ]
            for one in moved:
                self._saved.remove(one)
                self._note(new + one.path[len(old) :], one.kind, one.step)

        return renamed

    def _torch_save(self, save: Any) -> Any:
        def saved(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                # written from C++, unseen by the audit hook
                loosen(self._folder, os.fspath(f), keep=False)
            save(obj, f, *args, **kwargs)
            if not called_by(*_DCP):
                self._note(
                    f if isinstance(f, str | os.PathLike) else getattr(f, "name", None), "torch"
                )

        return saved

    def _save_file(self, save: Any) -> Any:
        def saved(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
            loosen(self._folder, os.fspath(filename), keep=False)  # written from Rust, as unseen
            save(tensors, filename, *args, **kwargs)
            self._note(filename, "safetensors")

        return saved

    def _finish(self, finish: Any) -> Any:
        def finished(writer: Any, *args: Any, **kwargs: Any) -> None:
            finish(writer, *args, **kwargs)
            begun = self._started.get(os.path.abspath(os.fspath(writer.path)))
            self._note(writer.path, "dcp", begun)

        return finished

    def _async_save(self, save: Any) -> Any:
        def saved(*args: Any, **kwargs: Any) -> Any:
            path = kwargs.get("checkpoint_id") or getattr(
                kwargs.get("storage_writer"), "path", None
            )
            if isinstance(path, str | os.PathLike):
                self._started[os.path.abspath(os.fspath(path))] = self._steps()
            future = save(*args, **kwargs)
            self._note(path, "dcp")  # here too: another process may write it
            return future

        return saved


def _place_of(path: object, folder: str) -> str:
    """Where a URL lies in a working folder, or on this machine; empty for plain paths."""
    scheme, separator, rest = path.partition("://") if isinstance(path, str) else ("", "", "")
    if not separator:
        return ""
    return rest if scheme == "file" else os.path.join(folder, STORES, scheme, rest.lstrip("/"))
