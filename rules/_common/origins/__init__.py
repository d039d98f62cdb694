"""What a value is computed from, and what of that differs from rank to rank.

A value that was handed to a collective before is the same on all ranks, or may be: it has no origins any more. So has
one that was handed to code that cannot be followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp2lint.api import (
    WHOLE,
    Backward,
    Called,
    Class,
    Collective,
    Container,
    Either,
    Escaped,
    Event,
    Exited,
    External,
    Forward,
    Guard,
    Guards,
    Instance,
    Literal,
    Logic,
    Module,
    Not,
    Parameters,
    Part,
    Rank,
    Returned,
    Round,
    Stepped,
    Trace,
    Unknown,
    Value,
    is_choice,
    lineage,
    of_world_size,
    once,
    rank_dependent,
    root,
    unwrapped,
)

from ..ranks import decides, without_group
from ..shared import class_name, sharded, shards
from .local_files import local_files

_REDUCING = (
    ".all_reduce",
    ".reduce",
    ".gather",
    ".gather_for_metrics",
    ".all_gather",
    ".broadcast",
    ".full_tensor",
    ".redistribute",
    ".pmean",
)
_GIVING = (".full_tensor", ".redistribute")
"""Those that leave the tensor that they are called on as it is."""
_ASKING_DISTRIBUTED = ("get_rank", "get_world_size", "is_initialized", "is_available")
_ASKING_ALONE = (
    "torch.distributed.get_world_size",
    "torch.distributed.is_available",
    "torch.distributed.is_initialized",
    "not distributed",
)
_FOLLOWED = ("torch.", "math.", "numpy.", "builtins.")
_METHODS = frozenset(
    f".{name}"
    for name in "abs add add_ all any bool clamp clone contiguous copy cpu cuda detach div div_ double eq exp "
    "float ge gt half int isfinite isinf isnan isreal item le log lt max maximum mean min minimum mul mul_ ne neg "
    "norm numpy pow prod reshape round sqrt square squeeze std sub sub_ sum to to_local tolist type_as unsqueeze view "
    "append nan_to_num sigmoid softmax argmax logical_not logical_or logical_and get values "
    "amax amin argmin argsort bfloat16 ceil chunk cumsum diff expand floor flatten index_select int log_softmax "
    "logsumexp masked_fill masked_select median movedim nanmean nonzero permute repeat rsqrt sort "
    "split t tanh timestamp topk total_seconds transpose trunc unbind unflatten unfold unique var where".split()
)
"""Methods of tensors and containers that give what is computed from their receiver and their arguments."""
_ABOUT_FORM = frozenset(
    "isinstance hasattr type len id callable is_tensor numel size dim ndim nelement element_size get_device "
    "is_floating_point issubclass".split()
)
"""What is asked about the form of a value, not about its contents."""
_FORMS = frozenset(
    ".shape .ndim .device .dtype .requires_grad .grad_fn .is_cuda .itemsize .layout .training .placements .device_mesh "
    ".size() .numel() .nelement() .dim() .stride() .element_size() .ndimension() .get_device() .is_floating_point()".split()
)
_IN_PLACE = (
    ".add_",
    ".sub_",
    ".mul_",
    ".div_",
    ".copy_",
    ".append",
    ".extend",
    ".update",
    ".fill_",
)
_VIEWS = (".detach()", ".data", ".view()", ".reshape()", ".squeeze()", ".unsqueeze()")
_MOST = 400
"""So many values are looked at: loops that add up grow without end."""
_LOADERS = ("DataLoader", "StatefulDataLoader")
_CLOCKS = (
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.process_time",
    "time.time",
    "time.time_ns",
    "timeit.default_timer",
)
_SEEDING = ("random.seed", "numpy.random.seed")
_SEEDED_BY_OTHERS = ("set_seed", "seed_everything", "manual_seed_all", "enable_determinism")


@dataclass(frozen=True, slots=True)
class Origin:
    """Something that differs from rank to rank: its ``kind`` is ``loss``, ``data``, ``clock``, ``chance``, ``disk``
    or ``port``.
    """

    value: Value
    kind: str


class _Origins:
    """The edges from values to what they are made of."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.made: dict[Value, Called] = {}
        self.returned: dict[Value, list[Returned]] = {}
        self.shared: dict[Value, int] = {}
        self.grown: dict[Value, list[tuple[int, Value]]] = {}
        self._known_alone: dict[Guards, bool] = {}
        for called in trace.of(Called):
            if called.result is not called.receiver:  # `x.to(device)` stands for `x`
                self.made.setdefault(called.result, called)
            if is_collective(called) and called.name not in _GIVING:
                for given in (called.receiver, *called.arguments, *called.keywords.values()):
                    self._share(given, called.order)
            elif called.name in _IN_PLACE and called.receiver is not None:
                grown = self.grown.setdefault(called.receiver, [])
                grown += [(called.order, one) for one in called.arguments]
        for returned in trace.of(Returned):
            for result in _alternatives(returned.result):
                self.returned.setdefault(result, []).append(returned)
        self.escaped: dict[Value, int] = {}
        for escaped in trace.of(Escaped):
            self.escaped.setdefault(escaped.value, escaped.order)

    def _share(self, value: Value | None, order: int) -> None:
        for one in _alternatives(value):
            self.shared.setdefault(one, order)
            for viewed in _viewed(one):
                self.shared.setdefault(viewed, order)
            for _, entry in self.trace.memory.entries(one):
                self.shared.setdefault(entry, order)

    def of(
        self, value: Value, until: int, beyond: bool, wide: bool = True, numbers: bool = True
    ) -> Iterator[Value]:
        """A value and all that it is computed from before ``until``, as far as that was not shared by the ranks.

        ``beyond`` the outputs of modules are their inputs; ``wide`` asks too for the tests that chose among several
        values, and for what divides them; without ``numbers`` what was summed up to a single one is no origin.
        """
        todo, seen = deque([value]), set[Value]()
        tests = {value}
        while todo and len(seen) < _MOST:
            one = todo.popleft()  # what is near first: tests lead through the whole configuration
            if one in seen:
                continue
            seen.add(one)
            if min(self.shared.get(one, until), self.escaped.get(one, until)) < until:
                continue
            called = self.made.get(one)
            if called is not None and is_collective(called):
                continue
            yield one
            if called is not None and not numbers and _gives_a_number(called):
                continue
            if one in self.returned and not beyond:
                continue
            if isinstance(one, Container) and one in tests:
                todo += _listed(self.trace, one)
                continue  # whether there is anything in it does not depend on what that is
            below = self._below(one, called, wide)
            tests |= _tested_in(one, below, one in tests)
            todo += below
            if called is not None and called.name.startswith("torch."):  # `counts[0] += …`
                todo += [entry for _, entry in self.trace.memory.entries(one)]
            todo += [v for order, v in self.grown.get(one, ()) if order < until]

    def _below(self, value: Value, called: Called | None, wide: bool) -> list[Value]:
        """What a value is made of directly."""
        if isinstance(value, Either):  # a flag or a counter says what decided it
            shown = [(guards, one) for guards, one in value.options if not self._alone(guards)]
            asked = [g.test for guards, _ in shown for g in guards if self._explains(g)]
            return [*(one for _, one in shown), *(asked if wide else ())]
        if isinstance(value, Not):
            return [value.test]
        if isinstance(value, Logic):
            return list(value.operands)
        if isinstance(value, Container):
            return [one for _, one in self.trace.memory.entries(value)]
        if value in self.returned:
            return [one for returned in self.returned[value] for one in returned.given]
        if called is not None:
            given = self._given(called)
            if isinstance(value, Part) and isinstance(value.key, Round) and value.owner is not None:
                given.append(value.owner)  # `next(batches)` of a generator that walks a loader
            return given
        if not isinstance(value, Part):
            return []
        if isinstance(value.key, str):
            return [] if is_form(value) or value.owner is None else [value.owner]
        how, operands = value.operation, value.operands
        name = str(how).strip(".()")
        if is_choice(value) or how in ("is", "is not", "call") or name in _ABOUT_FORM:
            return []
        owner = [] if value.owner is None else [value.owner]
        if how in ("/", "//") and not wide:
            return owner
        return owner + [one for one in operands if isinstance(one, Value)]

    def _alone(self, guards: Guards) -> bool:
        """Whether a value is one of a run of one process, which never makes the group that the others make."""
        known = self._known_alone.get(guards)
        if known is None:
            known = _of_one_process(guards) or without_group(self.trace, guards)
            self._known_alone[guards] = known
        return known

    def _explains(self, guard: Guard) -> bool:
        """Whether a value differs between ranks because of a test.

        Where a rank leaves out a backward, all that is counted behind it differs too: the departure is what is wrong.
        So does the number of the step behind a resume that only some machines make.
        """
        if is_choice(guard.test) or guard.test in local_files(self.trace):
            return False
        return guard.test not in _leaving_out(self.trace)

    @staticmethod
    def _given(called: Called) -> list[Value]:
        if called.name.rpartition(".")[2] in _ABOUT_FORM:
            return []
        if not (called.name in _METHODS or called.name.startswith(_FOLLOWED)):
            return []
        given = [called.receiver, *called.arguments, *called.keywords.values()]
        return [one for one in given if one is not None]


@once
def _leaving_out(trace: Trace) -> frozenset[Value]:
    """The tests by which a path is left before a backward, a step or a forward that the other side comes to."""
    left: dict[Guard, int] = {}
    for exited in trace.of(Exited):
        if exited.how in ("return", "break", "continue"):
            for guard in exited.guards:
                left.setdefault(~guard, exited.order)
    events: list[Event] = [*trace.of(Backward), *trace.of(Stepped), *trace.of(Forward)]
    return frozenset(
        guard.test
        for event in events
        for guard in event.guards
        if left.get(guard, event.order) < event.order
    )


_FUNCTIONS = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")
_NO_FUNCTIONS = ("torch.load", "torch.compile", "torch.vmap")


def is_form(value: Value) -> bool:
    """Whether a value is what a tensor says of its form: `weight.shape`, `weight.size()`, DeepSpeed's `ds_shape`."""
    key = value.operation or value.key
    return isinstance(key, str) and (key in _FORMS or key.endswith("_shape"))


def is_function(name: str) -> bool:
    """Whether a name is that of a function of torch that gives a new tensor and changes none."""
    home, _, last = name.rpartition(".")
    return home in _FUNCTIONS and name not in _NO_FUNCTIONS and last.islower() and last[-1] != "_"


def only_computes(called: Called) -> bool:
    """Whether a call computes something new and writes into nothing that it is given."""
    if "out" in called.keywords:
        return False
    return is_function(called.name) or (called.name in _METHODS and not called.name.endswith("_"))


def is_collective(called: Called) -> bool:
    """Whether a call may make what it is given, or what it returns, the same on all ranks."""
    if called.name.startswith(("torch.distributed.", "accelerate.")):
        return called.name.rpartition(".")[2] not in _ASKING_DISTRIBUTED
    return called.name in _REDUCING


def _of_one_process(guards: Guards) -> bool:
    """Whether a value depends on how many processes there are: alone, a rank has no others to differ from."""
    for guard in guards:
        asked = root(guard.test)
        if isinstance(asked, External) and asked.name in _ASKING_ALONE:
            return True
    return False


def _viewed(value: Value) -> Iterator[Value]:
    """The tensors whose memory a tensor shows: what is written into it is written into them."""
    while isinstance(value, Part) and value.owner is not None:
        how = value.operation or value.key
        if how not in _VIEWS:
            return
        value = value.owner
        yield value


def _alternatives(value: Value | None) -> list[Value]:
    if isinstance(value, Either):
        return [value, *(one for _, one in value.options)]
    return [] if value is None else [value]


@once
def _origins(trace: Trace) -> _Origins:
    return _Origins(trace)


def origins(trace: Trace, value: Value, until: int, *, beyond: bool = True) -> Iterator[Value]:
    """A value and all that it is computed from before ``until`` without having been shared by the ranks.

    Not ``beyond`` the outputs of modules when that is not wanted.
    """
    return _origins(trace).of(value, until, beyond)


def may_be_gradients(trace: Trace, collective: Collective) -> bool:
    """Whether a collective may communicate gradients or parameters, not the loss or another number of the step."""
    if collective.about is None:
        return True
    if _is_copy(trace, collective.about):
        return False
    known = _origins(trace)
    returned = known.returned
    about, until = collective.about, collective.order
    for one in known.of(about, until, beyond=False, wide=False, numbers=False):
        if isinstance(one, Parameters) or (isinstance(one, Part) and one.key in (".grad", ".data")):
            return True
        if isinstance(one, Unknown) and one not in returned and not _is_a_number(known, one):
            return True
    return False


def _is_a_number(known: _Origins, value: Value) -> bool:
    called = known.made.get(value)
    return called is not None and _gives_a_number(called)


def _gives_a_number(called: Called) -> bool:
    """Whether a tensor is summed up to one number: ``mask.sum()``, ``torch.mean(loss)``."""
    home, _, last = called.name.rpartition(".")
    if last not in _TO_A_NUMBER or called.open or called.keywords.keys() - {"dtype"}:
        return False
    return home in ("", "torch") and len(called.arguments) == (1 if home else 0)


_TO_A_NUMBER = frozenset(
    "sum nansum mean nanmean median nanmedian max min amax amin prod std var any all count_nonzero item numel".split()
)
_MOVING = (".cuda()", ".to()", ".cpu()", ".float()", ".double()")


def _is_copy(trace: Trace, value: Value) -> bool:
    """Whether a tensor was made of numbers by ``torch.tensor``: nothing else holds its memory."""
    while isinstance(value, Part) and value.owner is not None:
        how = value.operation or value.key
        if how not in _MOVING:
            break
        value = value.owner
    made = _origins(trace).made.get(value)
    return made is not None and made.name == "torch.tensor"


def _listed(trace: Trace, container: Container) -> list[Value]:
    """What a list was made of, one by one: `sorted(glob.glob(pattern))` is empty when that is."""
    held = [one for _, one in trace.memory.entries(container)]
    return [
        one.owner
        for one in held
        if isinstance(one, Part) and isinstance(one.key, Round) and one.owner is not None
    ]


def _tested_in(value: Value, below: Iterable[Value], is_test: bool) -> set[Value]:
    """What is asked for nothing but its truth, of all that a value is made of: it is a test, or was chosen by one."""
    if isinstance(value, Either):
        chosen = {one for _, one in value.options} if is_test else set()
        return chosen | {g.test for guards, _ in value.options for g in guards}
    whole = is_test and isinstance(value, Part) and value.key == (WHOLE,)
    return set(below) if whole or isinstance(value, Not | Logic) else set()


def differing(trace: Trace, test: Value, until: int, *kinds: str) -> Origin | None:
    """The first thing of these kinds that a test is about and that differs from rank to rank; None if there is none."""
    for one in origins(trace, test, until):
        kind = _kind(trace, one)
        if kind in kinds:
            return Origin(one, kind)
    return None


OWN = {
    "loss": "the model's output on its own data",
    "clock": "its own clock",
    "chance": "its own random numbers",
    "data": "its own data",
    "disk": "the files of its own machine",
    "rank": "a flag that only some ranks set",
}
"""What a rank asks, by the kind of an origin."""


def differing_guard(
    trace: Trace, guards: Iterable[Guard], until: int, *more: str
) -> tuple[Guard, str] | None:
    """The first test that each rank asks something of its own, and what; None if there is none.

    Asked for are losses, clocks, random numbers and data, and what is named besides.
    """
    for guard in guards:
        if guard.site is None or is_choice(guard.test) or rank_dependent(guard.test):
            continue
        if written(guard).startswith(("isinstance(", "not isinstance(")):
            continue  # whatever its argument was chosen by: all ranks have an object of the same class
        found = differing(trace, guard.test, until, "loss", "clock", "chance", *more)
        if found is not None:
            return guard, OWN[found.kind]
        if _reads_flag_of_rank(trace, guard.test, until):
            return guard, OWN["rank"]
        if _asks_for_missing_data(trace, guard.test, until) or _reads_own_share(
            trace, guard.test, until
        ):
            return guard, OWN["data"]
    return None


def written(guard: Guard) -> str:
    """A test as the script writes it."""
    return "" if guard.site is None else " ".join(guard.site.source.code(guard.site.node).split())


def _asks_for_missing_data(trace: Trace, test: Value, until: int) -> bool:
    """Whether a test asks if a batch of a loader has something: ``batch.get("images") is None``."""
    while isinstance(test, Not):
        test = test.test
    if test.operation not in ("is", "is not") or test.owner is None:
        return False
    called = _origins(trace).made.get(test.owner)
    if called is None or called.name != ".get" or called.receiver is None:
        return False
    return differing(trace, called.receiver, until, "data") is not None


def _reads_own_share(trace: Trace, test: Value, until: int) -> bool:
    """Whether a test reads values of a batch that a loader gives this rank only: `(labels != -100).sum() == 0`."""
    asked = list(origins(trace, test, until))
    if not any(isinstance(one, Part) and one.key in _READ for one in asked):
        return False
    return any(_kind(trace, one) == "data" and one in _of_one_rank(trace) for one in asked)


def _reads_flag_of_rank(trace: Trace, test: Value, until: int) -> bool:
    """Whether a test reads a tensor of a flag that only some ranks set, and that nobody has sent to the others."""
    asked = list(_origins(trace).of(test, until, beyond=False, wide=False))
    return any(map(_is_flag_of_rank, asked)) and any(
        called.name in _MAKING for one in asked for called in trace.giving(one)
    )


_MAKING = ("torch.tensor", "torch.as_tensor", "torch.BoolTensor", "torch.IntTensor")


def _is_flag_of_rank(value: Value) -> bool:
    """``stop = rank == 0 and done``, or False that becomes True on one rank."""
    if isinstance(value, Logic):
        return value.operator == "and" and any(map(decides, value.operands))
    if not isinstance(value, Either):
        return False
    given = [(guards, one.value) for guards, one in value.options if isinstance(one, Literal)]
    said = {flag for _, flag in given}
    if len(given) < len(value.options) or said not in ({True, False}, {0, 1}):
        return False
    return any(flag and any(decides(g.test) for g in guards) for guards, flag in given)


_READ = tuple((f".{name}()",) for name in "all any count_nonzero item max mean min sum".split())


@once
def _of_one_rank(trace: Trace) -> frozenset[Value]:
    """The loaders that walk the share of their rank: they are given a `DistributedSampler`, or a data set that is given
    which of how many ranks this is.
    """
    samplers = {c.result for c in trace.calls(*SAMPLERS)}
    return frozenset(
        called.result
        for called in trace.of(Called)
        if called.name.rpartition(".")[2] in _LOADERS
        and (
            any(one in samplers for v in called.keywords.values() for one in _alternatives(v))
            or _is_given_rank_and_size(trace, called.argument(0, "dataset"))
        )
    )


def _is_given_rank_and_size(trace: Trace, data: Value | None, depth: int = 4) -> bool:
    """Whether a data set, or one of those that it is made of, was given a rank and the number of ranks, and asks for it."""
    for one in _alternatives(data) if depth else []:
        if isinstance(one, Literal | External):
            continue
        made = _origins(trace).made.get(one)
        given = [] if made is None else [made.receiver, *made.arguments, *made.keywords.values()]
        held = [entry for _, entry in trace.memory.entries(one)]
        asked = [entry for key, entry in trace.memory.entries(one) if _reads(one, str(key))]
        for values in (asked, given):
            if any(isinstance(v, Rank) for v in values) and any(map(_is_world_size, values)):
                return True
        if any(_is_given_rank_and_size(trace, v, depth - 1) for v in (*held, *given)):
            return True
    return False


def _reads(value: Value, attribute: str) -> bool:
    """Whether a class of the project does more with an attribute than keep it."""
    return isinstance(value, Instance) and any(
        cls.scope.source.code(cls.node).count(f"self{attribute}") > 1
        for cls in lineage(value.cls)
        if isinstance(cls, Class)
    )


def _is_world_size(value: Value | None) -> bool:
    return value is not None and any(of_world_size(v) for v in _alternatives(value))


SAMPLERS = (
    "torch.utils.data.distributed.DistributedSampler",
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler",
)
"""Those of torchdata take the same arguments and split the data alike (they derive from torch's)."""


def _kind(trace: Trace, value: Value) -> str:
    """How a value differs from rank to rank; nothing when it does not, for all that is known."""
    if value in _outputs(trace):
        return "loss" if _is_of_rank(trace, value) else ""
    if value in _weighed_losses(trace):
        return "loss"
    if _is_loader(value):
        return "data"
    if value in local_files(trace):
        return "disk"
    called = _origins(trace).made.get(value)
    if called is None:
        return ""
    if called.name in _CLOCKS:
        return "clock"
    if called.name == ".getsockname":
        return "port"
    if called.name.startswith(("random.", "numpy.random.")) and not _seeded(trace):
        return "chance"
    return ""


@once
def _outputs(trace: Trace) -> frozenset[Value]:
    """What sharded models have computed from the data of their rank."""
    results = {
        result
        for returned in trace.of(Returned)
        if _computes_by_shards(trace, returned)
        for result in _alternatives(returned.result)
    }
    held = {
        one
        for result in results
        if isinstance(result, Container)
        for _, entry in trace.memory.entries(result)
        for one in _alternatives(entry)
    }
    return frozenset(results | (held & _losses(trace)))


def is_of_shards(trace: Trace, backward: Backward) -> bool:
    """Whether a backward goes through a sharded model: its loss is what one has computed, or was made of that."""
    todo, seen = _alternatives(backward.of), set[Value]()
    while todo and len(seen) < _MOST_STEPS:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in _computed(trace):
            return True
        if isinstance(one, Part) and one.owner is not None:
            todo += _alternatives(one.owner)
        for called in trace.giving(one):
            for given in (called.receiver, *called.arguments, *called.keywords.values()):
                todo += [] if given is None else _alternatives(given)
    return False


_MOST_STEPS = 60
"""So many values are looked at on the way from a loss to what a model has computed."""


@once
def _computed(trace: Trace) -> frozenset[Value]:
    """What the calls of sharded models gave."""
    return frozenset(
        result
        for returned in trace.of(Returned)
        if _computes_by_shards(trace, returned)
        for result in _alternatives(returned.result)
        if not isinstance(result, Literal | Container)
    )


def _computes_by_shards(trace: Trace, returned: Returned) -> bool:
    """Whether a module is sharded, or a module of the project is not but has submodules that are."""
    if sharded(trace, returned, returned.module) is not None:
        return True
    module = unwrapped(returned.module)
    return isinstance(module, Module) and any(
        shard.order < returned.order and trace.inside(shard.module, module)
        for shard in shards(trace)
    )


@once
def _losses(trace: Trace) -> frozenset[Value]:
    """What a backward begins with, and what that is a part or a mean of: no flag or counter beside it."""
    return frozenset(one for backward in trace.of(Backward) for one in _loss_of(backward))


def _loss_of(backward: Backward) -> set[Value]:
    found: set[Value] = set()
    todo = _alternatives(backward.of)
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        if isinstance(one, Part) and (one.operation == "/" or one.operation.endswith("()")):
            todo += _alternatives(one.owner)  # of a product either side may be the number
    return found


@once
def _weighed_losses(trace: Trace) -> frozenset[Value]:
    """The losses that data of this rank weighs or masks after code that cannot be followed had the outputs.

    Whatever that code made of the outputs, the ranks differ again: `(per_token(out) * batch["mask"]).sum()`.
    """
    handed = {
        called.result
        for called in trace.of(Called)
        if not _is_followed(called)
        and any(
            one in _outputs(trace)
            for given in (*called.arguments, *called.keywords.values())
            for one in _alternatives(given)
        )
    }
    found: set[Value] = set()
    for backward in trace.of(Backward) if handed else ():
        for loss in _loss_of(backward):
            made_of = set(_origins(trace).of(loss, backward.order, beyond=True, wide=False))
            if not handed.isdisjoint(made_of) and any(map(_is_loader, made_of)):
                found.add(loss)
    return frozenset(found)


def _is_loader(value: Value) -> bool:
    return class_name(value).rpartition(".")[2] in _LOADERS


def _is_followed(called: Called) -> bool:
    """Whether it is known what a call computes, or that ranks meet in it."""
    return called.name in _METHODS or called.name.startswith(_FOLLOWED) or is_collective(called)


def _is_of_rank(trace: Trace, output: Value) -> bool:
    """Whether an output was computed from data of this rank, for all that is known: a loader's, or what is trained on."""
    return output in _trained_on(trace) or any(
        _is_loader(one)
        for returned in _origins(trace).returned.get(output, ())
        for given in returned.given
        for one in origins(trace, given, returned.order)
    )


@once
def _trained_on(trace: Trace) -> frozenset[Value]:
    """All that the losses are computed from."""
    return frozenset(
        one
        for backward in trace.of(Backward)
        for one in origins(trace, backward.of, backward.order)
    )


@once
def _seeded(trace: Trace) -> bool:
    """Whether the random numbers of Python and numpy may be the same on all ranks."""
    if next(trace.calls(*_SEEDING), None) is not None:
        return True
    return next(trace.calls_named(lambda name: name.endswith(_SEEDED_BY_OTHERS)), None) is not None
