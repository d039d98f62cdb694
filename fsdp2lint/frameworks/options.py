"""Commands that ask for FSDP by their options, as text: in shell, Slurm and Make files.

Sources: accelerate/commands/launch.py and accelerate/utils/launch.py (1.15), transformers/training_args.py (4.57 and 5.23),
lightning/pytorch/cli.py (2.6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fsdp2lint.frameworks.asked import asks_by_words, words_of
from fsdp2lint.frameworks.document import Node

_COMMAND = re.compile(r"^(?![ \t]*#)[^\n]*?(?:\\\r?\n[^\n]*?)*$", re.MULTILINE)
_COMMENT = re.compile(r"[ \t]#")
_LAUNCHER = re.compile(r"\baccelerate[ \t-]launch\b")
_STARTS = re.compile(r"\b(?:accelerate[ \t-]launch|torchrun|python[\d.]*|srun)\b")
_OPTION = re.compile(
    r"""(?:[ \t]|\\\r?\n)+--(?P<name>(?:use[_-])?fsdp(?:[_-]\w+)*|trainer\.strategy(?:\.class_path)?)(?=[\s=]|\Z)"""
    r"""(?:(?:=|(?:[ \t]|\\\r?\n)+)(?!-)(?P<value>"[^"]*"|'[^']*'|[^\s\\;&|"']+))?"""
)
_FILES = re.compile(r"--(?:config[_-]file|fsdp[_-]config)\b")
_OF_THE_TRAINER = re.compile(
    r"--(?:per_device_train_batch_size|num_train_epochs|model_name_or_path)\b"
)
_STRATEGY = re.compile(r"(?:fsdp\w*|(?:[\w.]*\.)?FSDPStrategy)\Z")
GONE = "fsdp_transformer_layer_cls_to_wrap"
"""An option of the Trainer that transformers 5.0 has no more; before, its FSDP is FSDP1."""


@dataclass(frozen=True)
class Option(Node):
    """An option of a command: the span from its dashes to the end of its value."""

    name: str
    value: str
    before: int
    """Where the blanks before it begin."""


@dataclass(frozen=True)
class AskingCommand:
    """A command whose options ask for FSDP, and name no file that says how."""

    framework: Literal["accelerate", "the Trainer", "Lightning"]
    asking: Option
    options: dict[str, Option]

    @property
    def version(self) -> int | None:
        """1 or 2; None where a variable or the default of the framework's release decides."""
        if self.framework == "Lightning":
            return 1
        if self.framework == "the Trainer":
            return 1 if GONE in self.options else None
        said = self.options.get("fsdp_version")
        if said is None:
            return 1
        return int(said.value) if said.value in ("1", "2") else None


def asking_commands(text: str) -> Iterator[AskingCommand]:
    """The commands of a file that ask for FSDP by their options."""
    for command in _COMMAND.finditer(text):
        said = _COMMENT.split(command[0], maxsplit=1)[0]
        if (
            not ("fsdp" in said or "FSDP" in said)
            or _FILES.search(said)
            or not _STARTS.search(said)
        ):
            continue
        options = {one.name: one for one in _options(said, command.start())}
        strategy = options.get("trainer.strategy") or options.get("trainer.strategy.class_path")
        if "use_fsdp" in options and _LAUNCHER.search(said):
            yield AskingCommand("accelerate", options["use_fsdp"], options)
        elif "fsdp" in options and "use_fsdp" not in options:
            words = options["fsdp"]
            own = "auto_wrap" in words_of(words.value) or _OF_THE_TRAINER.search(said)
            if own and asks_by_words(words.value):
                yield AskingCommand("the Trainer", words, options)
        elif strategy is not None and _STRATEGY.fullmatch(strategy.value):
            yield AskingCommand("Lightning", strategy, options)


def _options(said: str, start: int) -> Iterator[Option]:
    for found in _OPTION.finditer(said):
        name = found["name"].replace("-", "_")
        value = "" if name == "use_fsdp" else found["value"] or ""
        end = found.end("name") if name == "use_fsdp" else found.end()
        before, at = start + found.start(), start + found.start("name") - 2
        yield Option(at, start + end, name, value.strip("\"'"), before)
