"""All ranks enter the same collectives in the same order (FSDP401, FSDP402).

What shows when they do not: ranks that wait, or that a collective failed for, while others are at
another line or have left. Which of the two rules it is, the script's text tells: a conditional way out
of the function before the waiting line (402), or a condition around it (401).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp2lint.rehearse.outcome import Frame, RankReport, Spot, Violation

GUARDED, LEFT = "FSDP401", "FSDP402"

_STUCK = ("hung", "lost")
_WAYS_OUT = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


def across(ranks: Sequence[RankReport]) -> Iterator[Violation]:
    """The line at which a rank waits for others that do not come."""
    stuck = [rank for rank in ranks if rank.how in _STUCK and rank.frames]
    if not stuck or any(rank.how in ("raised", "died") for rank in ranks):
        return  # whoever failed is why the others wait
    gone = [rank for rank in ranks if rank.how == "ended"]
    if gone:
        message = f"{_ranks(stuck)} waits here, but {_ranks(gone)} has left the script"
        yield Violation(_code(stuck[0], LEFT), message, _innermost(stuck[0]))
        return
    if any(rank.how == "busy" for rank in ranks):
        return  # the time was over; who works may be on the way
    tracked = [rank for rank in ranks if rank.frames and rank.how != "stopped"]
    paths = Counter(_path(rank) for rank in tracked)
    if len(paths) < 2:
        return  # at the same line: the order of collectives is not what differs
    waiting = [rank for rank in stuck if rank.how == "lost" or rank.waits_in]
    alone = min(waiting or stuck, key=lambda rank: (_code(rank, LEFT) != GUARDED, rank.rank))
    others = [rank for rank in tracked if _path(rank) != _path(alone)]
    because = tuple((_innermost(rank), f"rank {rank.rank} is here") for rank in others)
    message = f"rank {alone.rank} waits here for a collective that {_ranks(others)} does not enter"
    yield Violation(_code(alone, GUARDED), message, _innermost(alone), because)


def _code(rank: RankReport, otherwise: str) -> str:
    for frame in reversed(rank.frames):
        code = _code_at(frame)
        if code:
            return code
    return otherwise


def _code_at(frame: Frame) -> str:
    """What the function around a line says about who reaches it; empty when nothing."""
    try:
        tree = ast.parse(Path(frame.at.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    scopes = [node for node in ast.walk(tree) if isinstance(node, _SCOPES) and _holds(node, frame)]
    body = scopes[-1] if scopes else tree
    conditions = [node for node in ast.walk(body) if isinstance(node, ast.If)]
    for condition in conditions:
        if not _holds(condition, frame) and condition.lineno < frame.at.line:
            if any(isinstance(inner, _WAYS_OUT) for inner in ast.walk(condition)):
                return LEFT
    return GUARDED if any(_holds(condition, frame) for condition in conditions) else ""


def _holds(node: ast.AST, frame: Frame) -> bool:
    if isinstance(node, ast.Module):
        return frame.function == "<module>"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != frame.function:
        return False
    if isinstance(node, ast.If) and _is_main_guard(node):
        return False
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
    return first <= frame.at.line <= last


def _is_main_guard(node: ast.If) -> bool:
    return "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}


def _path(rank: RankReport) -> tuple[Spot, ...]:
    return tuple(frame.at for frame in rank.frames)


def _innermost(rank: RankReport) -> Spot:
    return rank.frames[-1].at


def _ranks(ranks: Sequence[RankReport]) -> str:
    numbers = [str(rank.rank) for rank in ranks]
    return f"rank {' and '.join(numbers)}" if len(numbers) < 3 else f"ranks {', '.join(numbers)}"
