"""What this machine lacks, made up on request (``--fake``): trackers, data sets, tokenizers, pretrained weights.

Only what is missing is replaced. What is there but has no network, as ``from_pretrained``, is tried first.
Everything that was made up is counted and reported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence

from fsdp2lint.rehearse.fakes.imports import Finder, is_mentioned
from fsdp2lint.rehearse.fakes.nothing import Hollow
from fsdp2lint.rehearse.outcome import MadeUp
from fsdp2lint.rehearse.standin.afterwards import after
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

TRACKERS = frozenset(
    "wandb mlflow tensorboard tensorboardX comet_ml neptune clearml aim swanlab trackio dllogger dvclive "
    "visdom matplotlib seaborn plotly setproctitle GPUtil pynvml py3nvml nvidia_smi codecarbon slack_sdk boto3 modal".split()
)
"""Packages that only report or draw: whatever is done with them does nothing."""

MADE_UP = {
    "datasets": "fsdp2lint.rehearse.fakes.data_sets",
    "nlp": "fsdp2lint.rehearse.fakes.data_sets",  # its former name
    "torchvision": "fsdp2lint.rehearse.fakes.images",
    "tiktoken": "fsdp2lint.rehearse.fakes.texts",
    "evaluate": "fsdp2lint.rehearse.fakes.nothing",
}
"""Packages that give data, and the module that makes it up."""


def make_up(wanted: MadeUp, replaced: dict[str, int], folder: str) -> None:
    """Make up what is wanted from here on, and count it; files that are made up lie in ``folder``."""
    if wanted.missing:
        install(replaced, wanted.modules, folder, full_size=wanted.full_size)
    if wanted.small:
        from fsdp2lint.rehearse.fakes import small

        small.install(Counted(replaced), after)


def install(
    replaced: dict[str, int],
    more: Sequence[str] = (),
    folder: str = "",
    *,
    full_size: bool = False,
) -> None:
    """Make up what is missing from here on, and count it; ``more`` are packages that do nothing.

    Files that are made up lie in ``folder``; without one, none is. ``full_size`` is about pretrained models.
    """
    counted = Counted(replaced)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("WANDB_MODE", "disabled")
    if (
        importlib.util.find_spec("tensorboard") is None
    ):  # PyTorch's part of it imports more than that
        sys.modules["torch.utils.tensorboard"] = Hollow("torch.utils.tensorboard")
    from fsdp2lint.rehearse.fakes.kernels import KERNELS, declare_operators

    always = TRACKERS | set(MADE_UP) | set(more)
    sys.meta_path.append(Finder(counted, MADE_UP | KERNELS, always, TRACKERS - set(more)))
    if importlib.util.find_spec("xformers") is None:
        declare_operators()
    from fsdp2lint.rehearse.fakes import (
        arrays,
        diffusing,
        downloads,
        files,
        images,
        pretrained,
        slurm,
        transformers_lacks,
    )

    wrap(importlib.metadata, "version", _versions)
    arrays.install(counted)
    downloads.install(counted)
    slurm.install(counted)
    if folder:
        files.install(counted, folder)
    after("pandas", lambda: files.install_pandas(counted))
    after("PIL.Image", lambda: files.install_pictures(counted))
    after("requests", lambda: downloads.install_requests(counted))
    after("transformers", lambda: pretrained.install(counted, full_size=full_size))
    after("transformers", lambda: transformers_lacks.install(counted))
    after("diffusers", lambda: diffusing.install(counted))
    after("timm", lambda: images.install_timm(counted))
    if importlib.util.find_spec("torchvision") is not None:
        after(
            "torchvision",
            lambda: images.install(counted),
            first=lambda: images.allow_import(counted),
        )
    if importlib.util.find_spec("datasets") is not None:
        from fsdp2lint.rehearse.fakes import data_sets, trainers

        after("datasets", lambda: data_sets.install(counted))
        trainers.install(after)


def _versions(known: Function) -> Function:
    """Libraries that report to a tracker ask first which release of it is installed."""

    def version(distribution_name: str) -> str:
        try:
            return str(known(distribution_name))
        except importlib.metadata.PackageNotFoundError:
            name = distribution_name.replace("-", "_")
            if name not in TRACKERS or not is_mentioned(name):  # it would be imported, and missing
                raise
            return "99.0"

    return version
