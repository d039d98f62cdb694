"""What the shapes of a script's tensors are on one rank of a run, where they are made and cut by resolved code."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fsdp2lint.api import Called, Literal, Mesh, Part, Trace, Value, rank_dependent

from .numbers import Fails, Numbers, Shape, picked, results

_SIZED = ("zeros", "ones", "empty", "rand", "randn", "full")
_NEW = (".new_zeros", ".new_ones", ".new_empty", ".new_full")
_SAME = (
    "torch.nn.Parameter",
    "torch.nn.parameter.Parameter",
    "torch.clone",
    *(f"torch.{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn")),
)
_KEEPING = frozenset(
    f".{name}()"
    for name in "abs bfloat16 clamp clamp_ clone contiguous cpu cuda detach double exp float half long neg "
    "normal_ pin_memory relu round sigmoid sqrt tanh to uniform_ zero_".split()
)
_CUTTING = ("chunk", "tensor_split", "split")
_RESHAPING = (".reshape", ".view")
_SLICE = re.compile(r"\[(-?\d*):(-?\d*)(?::(-?\d*))?\]")
_ROW = re.compile(r"\[-?\d+\]")


class Shapes:
    """The shapes of one run: on ``rank`` of ``world`` ranks, all of which form ``mesh``."""

    def __init__(self, trace: Trace, mesh: Mesh, rank: int, world: int) -> None:
        self.trace = trace
        self.numbers = Numbers(trace, mesh, rank, world, self.of)
        self.used: dict[Called, None] = {}
        """The calls that make the tensors that were asked for."""
        self._open: set[Value] = set()

    def of(self, value: Value | None) -> Shape | None:
        """The shape of a tensor; None when it is not known.

        Raises:
            Fails: making it raises on this rank.
        """
        if value is None or value in self._open:
            return None
        self._open.add(value)
        found = {self._made(one) for one in self.numbers.chosen(value)}
        self._open.discard(value)
        return found.pop() if len(found) == 1 else None

    def _made(self, value: Value) -> Shape | None:
        called = results(self.trace).get(value)
        if called is not None:
            self.used[called] = None
            return None if called.open else self._returned(called)
        if isinstance(value, Part):
            return self._taken(value)
        return None

    def _returned(self, called: Called) -> Shape | None:
        name = called.name
        home, _, last = name.rpartition(".")
        if home == "torch" and last in _SIZED:
            return self._sized(called, last)
        if name in _NEW:
            return self._whole(called.arguments, called.keywords.get("size"))
        if name in ("torch.arange", "builtins.range"):
            return self._counted(called)
        if name in _SAME:
            return self.of(called.argument(0, "data" if "arameter" in name else "input"))
        if called.receiver is not None and f"{name}()" in _KEEPING:
            return self.of(called.receiver)
        if name in _RESHAPING:
            return self._reshaped(called)
        return None

    # -- made from sizes or data ---------------------------------------------------------------------------

    def _sized(self, called: Called, last: str) -> Shape | None:
        given = called.keywords.get("size")
        return self._whole(called.arguments[:1] if last == "full" else called.arguments, given)

    def _whole(self, arguments: Sequence[Value], size: Value | None) -> Shape | None:
        """The sizes that are given one by one or as one sequence."""
        if size is not None:
            arguments = (size,)
        sequence = self.numbers.entries(arguments[0]) if arguments else None
        sizes = [self.numbers.whole(v) for v in (arguments[:] if sequence is None else sequence)]
        known = tuple(s for s in sizes if s is not None)
        if not sizes or len(known) < len(sizes):
            return None
        return known

    def _counted(self, called: Called) -> Shape | None:
        numbers = [self.numbers.of(v) for v in called.arguments]
        known = [n for n in numbers if n is not None]
        if not known or len(known) < len(numbers) or "end" in called.keywords:
            return None
        start, end, step = [(0, known[0], 1), (*known, 1), tuple(known)][min(len(known), 3) - 1]
        if step == 0:
            raise Fails
        return (max(0, math.ceil((end - start) / step)),)

    # -- cut out of others -----------------------------------------------------------------------------------

    def _taken(self, value: Part) -> Shape | None:
        """A slice of a tensor, one of its rows, or one of the pieces that it was cut into."""
        key = value.key
        if isinstance(key, tuple):
            if key[0] in _KEEPING:
                return self.of(value.owner)
            if key[0] == "[:]":
                return self._sliced(value.owner, [v for v in key[1:] if isinstance(v, Value)])
            if key[0] != "[]":
                return None
            index = self.numbers.whole(key[1])
            pieces = self._pieces(value.owner)
            if pieces is not None:
                return None if index is None else picked(pieces, index)
            if index is None or not rank_dependent(key[1]):
                return None
            whole = self.of(value.owner)
            if whole:
                picked(range(whole[0]), index)
            return whole[1:] if whole else None
        if not isinstance(key, str):
            return None
        if _ROW.fullmatch(key):
            pieces = self._pieces(value.owner)
            return None if pieces is None else picked(pieces, int(key[1:-1]))
        bounds = _SLICE.fullmatch(key)
        whole = self.of(value.owner) if bounds else None
        if not bounds or not whole:
            return None
        cut = slice(*(int(b) if b else None for b in bounds.groups()))
        return (len(range(whole[0])[cut]), *whole[1:])

    def _sliced(self, owner: Value, bounds: list[Value]) -> Shape | None:
        whole = self.of(owner)
        if not whole or len(bounds) % 3 or len(bounds) > 3 * len(whole):
            return None
        cuts = [self._cut(bounds[at : at + 3]) for at in range(0, len(bounds), 3)]
        stepping = len(cuts) > 1 and any(cut is not None and cut.step is not None for cut in cuts)
        sizes = [
            None if cut is None else len(range(size)[cut])
            for cut, size in zip(cuts, whole, strict=False)
        ]
        known = tuple(s for s in sizes if s is not None)
        if stepping or len(known) < len(sizes):  # an index among the slices could be meant
            return None
        return (*known, *whole[len(known) :])

    def _cut(self, bounds: list[Value]) -> slice | None:
        numbers = [self.numbers.whole(v) for v in bounds]
        for bound, number in zip(bounds, numbers, strict=True):
            if number is None and not (isinstance(bound, Literal) and bound.value is None):
                return None
        if numbers[2] is not None and numbers[2] <= 0:
            raise Fails
        return slice(*numbers)

    def _pieces(self, value: Value) -> list[Shape] | None:
        """The shapes of what ``chunk``, ``tensor_split`` or ``split`` returned."""
        called = results(self.trace).get(value)
        home, _, last = ("", "", "") if called is None else called.name.rpartition(".")
        if called is None or called.open or last not in _CUTTING or home not in ("", "torch"):
            return None
        given = (
            list(called.arguments)
            if called.receiver is None
            else [called.receiver, *called.arguments]
        )
        keywords = {
            "chunks",
            "sections",
            "indices_or_sections",
            "split_size",
            "split_size_or_sections",
        }
        given += [v for name, v in called.keywords.items() if name in keywords]
        dim = called.keywords.get("dim", given[2] if len(given) > 2 else None)
        along = 0 if dim is None else self.numbers.whole(dim)
        self.used[called] = None
        whole = self.of(given[0]) if len(given) > 1 else None
        if not whole or along is None or not -len(whole) <= along < len(whole):
            return None
        along %= len(whole)
        sizes = self._sections(last, whole[along], given[1])
        if sizes is None:
            return None
        return [(*whole[:along], size, *whole[along + 1 :]) for size in sizes]

    def _sections(self, how: str, size: int, asked: Value) -> list[int] | None:
        number = self.numbers.whole(asked)
        if number is None or number <= 0:
            listed = self.numbers.entries(asked) if how == "split" else None
            sizes = [self.numbers.whole(v) for v in listed or ()]
            known = [s for s in sizes if s is not None]
            return known if known and len(known) == len(sizes) else None
        if how == "tensor_split":
            return [size // number + (one < size % number) for one in range(number)]
        step = number if how == "split" else max(1, -(-size // number))
        return [min(step, size - start) for start in range(0, max(size, 1), step)]

    def _reshaped(self, called: Called) -> Shape | None:
        wanted = self._whole(called.arguments, called.keywords.get("shape"))
        if wanted is None or wanted.count(-1) == 0:
            return wanted
        whole = self.of(called.receiver)
        rest = math.prod(s for s in wanted if s != -1)
        if whole is None or wanted.count(-1) > 1 or not rest or math.prod(whole) % rest:
            return None
        return tuple(math.prod(whole) // rest if s == -1 else s for s in wanted)
