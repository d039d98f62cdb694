"""Which lines of a stack belong to the script: not PyTorch's, not Python's, not ours."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import lru_cache
from types import FrameType, TracebackType

from fsdp2lint.rehearse.outcome import Frame, Spot

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in _PATHS})
_PACKAGES = re.compile(r"[\\/](site|dist)-packages[\\/]")
SCRATCH = "fsdp2lint-"
"""How folders of ours begin, in which programs work."""
_WAITING = re.compile(r"[\\/]torch[\\/](distributed[\\/](?!elastic)|_ops\.py)")

_DUMPED = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_THREAD = re.compile(r"^(Current thread|Thread) 0x")


@lru_cache(maxsize=4096)
def own(file: str) -> bool:
    """Whether a file is the script's or one of its project."""
    if file.startswith(("<", _OURS)) or _PACKAGES.search(file):
        return False
    return not os.path.realpath(file).startswith(_LIBRARIES)


@lru_cache(maxsize=4096)
def _place(file: str) -> str:
    """Where a file is for the user: the folder that a script works in is one of links."""
    whole = os.path.abspath(file)
    return os.path.realpath(whole) if f"{os.sep}{SCRATCH}" in whole else whole


def here() -> Spot | None:
    """The innermost line of the script on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if own(frame.f_code.co_filename):
            return Spot(_place(frame.f_code.co_filename), frame.f_lineno)
        frame = frame.f_back
    return None


def called_by(*files: str, depth: int = 40) -> bool:
    """Whether code of a file with one of these endings is on the stack below the script's own line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and depth and not own(frame.f_code.co_filename):
        if frame.f_code.co_filename.replace(os.sep, "/").endswith(files):
            return True
        frame, depth = frame.f_back, depth - 1
    return False


def raised_at(traceback: TracebackType | None) -> list[Frame]:
    """The script's frames of a traceback, outermost first."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if own(code.co_filename):
            spot = Spot(_place(code.co_filename), traceback.tb_lineno)
            frames.append(Frame(spot, code.co_name))
        traceback = traceback.tb_next
    return frames


def main_thread(dump: str) -> list[Frame]:
    """All frames of the main thread in faulthandler's last dump, outermost first."""
    frames: list[Frame] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            frames = []  # the main thread stands last
        elif (match := _DUMPED.match(line)) is not None:
            frames.append(Frame(Spot(match["file"], int(match["line"])), match["function"]))
    return frames[::-1]


def stack_of(frame: FrameType | None) -> list[Frame]:
    """All frames of a thread, outermost first."""
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append(Frame(Spot(_place(code.co_filename), frame.f_lineno), code.co_name))
        frame = frame.f_back
    return frames[::-1]


def own_frames(frames: list[Frame]) -> list[Frame]:
    """Those that belong to the script."""
    return [frame for frame in frames if own(frame.at.file)]


def collective(frames: list[Frame]) -> str:
    """The function of ``torch.distributed`` that a stack waits in; empty when it is in none."""
    called: list[str] = []
    for frame in frames:
        if own(frame.at.file):
            called = []
        elif _WAITING.search(frame.at.file) and not frame.function.startswith(("_", "<")):
            called.append(frame.function)
    return next((name for name in reversed(called) if name not in _AROUND), "")


_AROUND = ("wrapper", "wait", "inner", "decorate_context")
"""What every collective goes through."""


def waits(frames: list[Frame]) -> bool:
    """Whether a stack ends inside ``torch.distributed``, below the script's last line."""
    for frame in reversed(frames):
        if own(frame.at.file):
            return False
        if _WAITING.search(frame.at.file):
            return True
    return False
