"""Questions that several rules ask of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import libcst as cst

from fsdp2lint.api import (
    Assigned,
    Called,
    Class,
    Container,
    Either,
    Event,
    External,
    Function,
    Guard,
    Guards,
    Instance,
    Layout,
    Literal,
    MainRank,
    Module,
    Optimizer,
    Parameters,
    Part,
    Rank,
    Round,
    Sharded,
    Site,
    StateDict,
    StateDictTaken,
    SyncSwitched,
    Trace,
    Unknown,
    Value,
    Wrapping,
    excludes_fsdp2,
    exported,
    is_choice,
    lineage,
    of_world_size,
    once,
    options,
    parts_along,
    rank_dependent,
    root,
    scope_of,
    tests_in,
    unwrapped,
    wrappers_around,
)

from .order import returned_from

_ORDERINGS = ("<", "<=", ">", ">=", "%", "in")


@dataclass(frozen=True, slots=True)
class Shard:
    """One module to which one ``fully_shard`` call was applied, and what must hold then."""

    event: Sharded
    module: Value
    guards: Guards

    @property
    def order(self) -> int:
        """When."""
        return self.event.order

    @property
    def reason(self) -> tuple[Sharded, str]:
        """The sharding as what a finding points at."""
        return self.event, f"`{self.module.words()}` is sharded here"


def cases(event: Event, value: Value) -> Iterator[tuple[Guards, Value]]:
    """What ``value`` can be at ``event``, each with what must hold then."""
    if not isinstance(value, Either):
        yield event.guards, value
        return
    for guards, one in value.apart():
        both = event.guards.and_(guards)
        if not both.impossible:
            yield both, one


@once
def shards(trace: Trace) -> tuple[Shard, ...]:
    """Every module that ``fully_shard`` was applied to, in order."""
    return tuple(
        Shard(event, unwrapped(module), guards)
        for event in trace.of(Sharded)
        for handed in event.modules
        for guards, module in cases(event, handed)
    )


def shards_before(
    trace: Trace, event: Event, of: Callable[[Shard], bool] | None = None
) -> Iterator[Shard]:
    """The shardings that surely precede ``event`` on a path they share, latest first.

    None where the script has put other parameters in place of the shards. ``of`` says which of them are asked for: a
    large project shards so many modules that to compare the paths of all, two by two, takes minutes.
    """
    return _those_before(
        trace, event, filter(of, reversed(shards(trace))) if of else reversed(shards(trace))
    )


def _those_before(trace: Trace, event: Event, asked: Iterable[Shard]) -> Iterator[Shard]:
    if any(first <= event.order <= last for first, last in _exchanges(trace)):
        return iter(())
    return (
        s for s in asked if trace.precedes(s.event, event) and not returned_from(s.event, event)
    )


@once
def _exchanges(trace: Trace) -> tuple[tuple[int, int], ...]:
    """Where other parameters are in the modules: from which event on and until which.

    A context manager that gathers whole parameters puts them in with ``setattr(module, name, whole)`` and
    puts the shards back in with another ``setattr`` of the same function.
    """
    found = []
    unnamed = [one for one in trace.of(Assigned) if one.name == "…"]
    for put, back in pairwise(unnamed):
        source = put.at.source
        if source is back.at.source and put.at.node is not back.at.node:
            layout = Layout.of(source)
            home, other = (scope_of(layout.ancestors(one.at.node)) for one in (put, back))
            earlier = layout.span(put.at.node) < layout.span(back.at.node)
            if home is other and isinstance(home, cst.FunctionDef) and earlier:
                found.append((put.order, back.order))
    return tuple(found)


def shards_after(trace: Trace, event: Event) -> Iterator[Shard]:
    """The shardings that surely follow ``event`` on a path they share."""
    return (
        s
        for s in shards(trace)
        if trace.precedes(event, s.event) and not returned_from(event, s.event)
    )


def sharded(
    trace: Trace, event: Event, value: Value | None, *, itself: bool = False
) -> tuple[Shard, Value] | None:
    """The sharding that makes ``value`` a sharded module at ``event``, and the module meant.

    A module counts as sharded when ``fully_shard`` was applied to it or to a module around it;
    with ``itself`` only the first. What DDP or FSDP1 wraps is another matter and never counts.
    """
    if value is None or not shards(trace) or excludes_fsdp2(event.at.source, event.at.node):
        return None
    for guards, module in cases(event, value):
        inner = unwrapped(module)
        if wrapped_by(module, "ddp", "fsdp1") or known_unsharded(guards, inner):
            continue
        around = _shards_of(trace, (inner,) if itself else trace.around(inner))
        before = [
            s
            for s in _those_before(trace, event, around)
            if not _hung_since(trace, s, inner) and not leaves_out(trace, s, inner)
        ]
        near = [s for s in before if together(s.guards, guards)]
        if not near and _one_of(before, guards):
            near = before
        if near:
            return innermost(trace, near), inner
    return None


def _shards_of(trace: Trace, modules: Iterable[Value]) -> list[Shard]:
    """The shardings of some modules, latest first."""
    numbered = trace.derived(_numbered)
    found = [one for module in modules for one in numbered.get(module, ())]
    return [shard for _, shard in sorted(found, key=lambda one: -one[0])]


def _numbered(trace: Trace) -> dict[Value, list[tuple[int, Shard]]]:
    """All shardings by their modules, each with its place among all."""
    found: dict[Value, list[tuple[int, Shard]]] = {}
    for number, shard in enumerate(shards(trace)):
        found.setdefault(shard.module, []).append((number, shard))
    return found


def leaves_out(trace: Trace, shard: Shard, module: Value) -> bool:
    """Whether a sharding may leave a module inside its own as it is: ``ignored_params`` may hold its parameters."""
    given = shard.event.options.get("ignored_params")
    inner = unwrapped(module)
    if given is None or inner is shard.module or not trace.inside(inner, shard.module):
        return False
    for one in options(given):
        known = list(options(one.of)) if isinstance(one, Parameters) else []
        if not known and not isinstance(one, Literal):
            return True
        if any(not isinstance(of, Module) or trace.inside(inner, of) for of in known):
            return True
    return False


def _one_of(shards: Sequence[Shard], guards: Guards) -> bool:
    """Whether one of several shardings surely was done where ``guards`` hold, whichever way the script came there.

    None of them need be certain: a module that both sides of a test shard is a sharded one behind it.
    """
    none = [
        frozenset(~guard for clause in s.guards.since(guards) for guard in clause)
        for s in shards
        if all(len(clause) == 1 for clause in s.guards.since(guards))
    ]
    return len(none) > 1 and not guards.also(frozenset(none)).possible()


def innermost(trace: Trace, near: Sequence[Shard]) -> Shard:
    """The sharding of the innermost of some nested modules."""
    found = near[0]
    for shard in near[1:]:
        if trace.inside(shard.module, found.module):
            found = shard
    return found


_FSDP2 = "torch.distributed.fsdp.FSDPModule"
_METHODS = exported(_FSDP2, (99, 0))
_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.DataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
)
"""Classes of which no module is that `fully_shard` was applied to and that was not wrapped again."""
_ONLY_FSDP1 = ("no_sync", "clip_grad_norm_", "module", "_fsdp_wrapped_module", "summon_full_params")
_ONLY_FSDP2 = ("set_requires_gradient_sync", "unshard", "reshard", "set_is_last_backward")


def known_unsharded(guards: Guards, module: Value) -> bool:
    """Whether the script has asked here what kind of module it is, and it is not a sharded one."""
    for guard in guards:
        test = guard.test
        if not isinstance(test, Part) or not test.operation:
            continue
        if guard.taken and _another_one(test, module):
            return True
        if test.owner is module.part(".__class__") or test.owner is module.part(".__class__").part(
            ".__name__"
        ):
            return True
    facts = frozenset(
        fact.unit
        for clause in guards.clauses
        for guard in clause
        if isinstance(guard.test, Part) and (fact := _of_sharded(guard.test, module)) is not None
    )
    if facts and not guards.also(frozenset().union(*facts)).possible():
        return True
    return _is_none_around(guards, module)


def _of_sharded(test: Part, module: Value) -> Guard | None:
    """How a test comes out if ``module`` is a sharded one; None where it does not tell."""
    if unwrapped(test.owner) is module and asks_for_fsdp2(test):
        return Guard(test, True)
    if unwrapped(test.owner) is module and _asks_for_another(test):
        return Guard(test, False)
    is_none = test.operation == "is" and [getattr(v, "value", 0) for v in test.operands] == [None]
    member = test.owner if is_none or test.operation == "callable" else test
    if not isinstance(member, Part) or unwrapped(member.owner) is not module:
        return None
    name = member.key.removeprefix(".") if isinstance(member.key, str) else ""
    if name not in _ONLY_FSDP2 and name not in _ONLY_FSDP1:
        return None
    return Guard(test, (name in _ONLY_FSDP2) is not is_none)


def known_sharded(guards: Guards, module: Value) -> bool:
    """Whether the script has asked here whether a module is a sharded one, and it is."""
    return any(
        guard.taken
        and isinstance(guard.test, Part)
        and unwrapped(guard.test.owner) is unwrapped(module)
        and asks_for_fsdp2(guard.test)
        for guard in guards
    )


def _is_none_around(guards: Guards, module: Value) -> bool:
    """Whether a module is taken out of something by ``.module``, which is no sharded module here: DDP then."""
    around = (
        unwrapped(module.owner) if isinstance(module, Part) and module.key == ".module" else None
    )
    tests = {guard.test for clause in guards.clauses for guard in clause}
    return around is not None and any(
        isinstance(test, Part)
        and unwrapped(test.owner) is around
        and asks_for_fsdp2(test)
        and guards.excludes(Guards(frozenset((frozenset((Guard(test, True),)),))))
        for test in tests
    )


def _another_one(test: Part, module: Value) -> bool:
    """Whether a test says that a module is the same object as another one: ``if model is reference:``."""
    sides = [unwrapped(one) for one in test.made_of]
    return (
        test.operation in ("is", "==")
        and module in sides
        and not any(isinstance(v, Literal) for v in sides)
    )


def asks_for_fsdp2(test: Part) -> bool:
    """Whether a test of a module is true for those that ``fully_shard`` has changed, and no others."""
    how, what = test.operation, test.operands
    if how == "isinstance":
        return any(isinstance(c, External) and c.name == _FSDP2 for c in what)
    return how == "hasattr" and bool(what) and what[0] in _ONLY_FSDP2


def is_sharded_again(sharded: Sharded) -> bool:
    """Whether the script asks first whether a model is sharded: then this is about a part of one that is."""
    tests = (guard.test for clause in sharded.guards.clauses for guard in clause)
    return any(isinstance(test, Part) and asks_for_fsdp2(test) for test in tests)


def _asks_for_another(test: Part) -> bool:
    """Whether a test of a module is false for those that ``fully_shard`` has changed."""
    how, what = test.operation, test.operands
    if how == "isinstance":
        return all(isinstance(c, External) and _is_another_kind(c.name) for c in what)
    return how == "hasattr" and bool(what) and what[0] in _ONLY_FSDP1


def _is_another_kind(name: str) -> bool:
    """Whether a class of torch is no layer: the class of a sharded `nn.Linear` still inherits from `nn.Linear`."""
    home, _, last = name.rpartition(".")
    return name.startswith("torch.") and (home != "torch.nn" or last == "DataParallel")


def _hung_since(trace: Trace, shard: Shard, module: Value) -> bool:
    return module is not shard.module and hung_later(trace, shard.event, module)


def hung_later(trace: Trace, event: Event, module: Value) -> bool:
    """Whether ``module`` was made a part of another one only after ``event``."""
    hung = (a for a in trace.of(Assigned) if unwrapped(a.value) is module)
    return any(trace.precedes(event, assigned) for assigned in hung)


def wrapped_by(value: Value, *wrappers: str) -> bool:
    """Whether one of these wrappers is around ``value``."""
    return any(one.by in wrappers for one in wrappers_around(value))


def wrapped_before(
    trace: Trace, event: Event, module: Value, *wrappers: str, where: Guards | None = None
) -> bool:
    """Whether ``module`` may have been put into one of these wrappers before ``event``.

    ``where`` says what else holds: on the other way a script may wrap what it shards on this one.
    """
    return any(
        w.by in wrappers
        and trace.inside(module, w.module)
        and trace.precedes(w, event)
        and not (where is not None and w.guards.excludes(where))
        for w in trace.of(Wrapping)
    )


def together(one: Guards, other: Guards) -> bool:
    """Whether both can hold in one run, as far as the program says and settings are called.

    Two tests of one setting may exclude each other. Settings of different names are chosen apart, but for two that both
    say how parameters are held
    (``cfg.fsdp`` and ``cfg.ddp``) or both what is done (``args.train`` and ``args.sample``): those may exclude each other
    although nothing in the script says so. What the program fails without (an ``assert``, a test before a ``raise``) is
    nobody's choice.
    """
    if one.excludes(other):
        return False
    mine, others = _open(one, other), _open(other, one)
    if _any_inside(mine, others) or _any_inside(others, mine):
        return False
    return not (_subjects_of(mine) & _subjects_of(others))


def _open(guards: Guards, known: Guards) -> list[frozenset[Guard]]:
    """The clauses of ``guards`` that ask for what ``known`` do not ask for."""
    return [
        clause
        for clause in guards.clauses - known.clauses - guards.survived
        if not any(known.units.get(g.test) == g for g in clause)
    ]


def _any_inside(clauses: Sequence[frozenset[Guard]], others: Sequence[frozenset[Guard]]) -> bool:
    """Whether some clauses ask about a setting of which, or of a part of which, others ask."""
    asked = {setting for clause in clauses for setting in _settings(clause)}
    known = (setting for clause in others for setting in _settings(clause))
    return bool(asked) and any(
        one in asked for setting in known for one in (*parts_along(setting), root(setting))
    )


def _subjects_of(clauses: Sequence[frozenset[Guard]]) -> int:
    """Of what clauses ask the configuration: bits of :func:`_subjects`."""
    found = 0
    for clause in clauses:
        found |= _subjects(clause)
    return found


@lru_cache(maxsize=1000)
def _settings(clause: frozenset[Guard]) -> frozenset[Value]:
    """What a clause asks about, below what it asks: two tests of one setting may exclude each other.

    None where it can hold whatever is chosen.
    """
    if any(is_ordinary(g) or _asks_if_sharded(g) for g in clause):
        return frozenset()
    tests = {test for guard in clause for test in tests_in(guard.test)}
    if all(map(_free, tests)):
        return frozenset()
    return frozenset(
        next((part for part in parts_along(test) if not part.operation), root(test))
        for test in tests
    )


@lru_cache(maxsize=1000)
def _subjects(clause: frozenset[Guard]) -> int:
    """Of what a clause asks the configuration: 1 for how parameters are held, 2 for what is done, all bits where that
    does not show. None where it is of something else, or can hold whatever is chosen.
    """
    found = 0
    for guard in clause:
        if is_ordinary(guard) or _asks_if_sharded(guard) or all(map(_free, tests_in(guard.test))):
            return 0
        said = guard.test.words().lower()
        if said in _EXTRAORDINARY or _asks_for_kind(guard.test):
            return -1
        found |= (_STRATEGY.search(said) is not None) | 2 * (_TASK.search(said) is not None)
    return found


def _asks_for_kind(test: Value) -> bool:
    """Whether a test asks what a model, or what says how it is held, is."""
    if not isinstance(test, Part) or test.owner is None:
        return False
    if test.operation == "hasattr":
        return isinstance(unwrapped(test.owner), Module)
    return test.operation == "isinstance"


def _asks_if_sharded(guard: Guard) -> bool:
    """Whether this is true of each sharded module: ``hasattr(model, "set_requires_gradient_sync")``.

    So is that there is no wrapper around it: ``not hasattr(model, "module")``.
    """
    key = guard.test.key
    if not isinstance(key, tuple) or len(key) != 2:
        return False
    asked, of = key
    if asked == "hasattr":
        return of in _METHODS if guard.taken else of == "module"
    if asked != "isinstance" or not isinstance(of, External):
        return False
    return of.name == _FSDP2 if guard.taken else of.name in _WRAPPERS


def is_ordinary(guard: Guard) -> bool:
    """Whether this holds in every run that goes well: no exception was raised, and there are several ranks."""
    if guard.taken or not isinstance(guard.test, Unknown | External):
        return False
    return guard.test.words() in _EXTRAORDINARY


_EXTRAORDINARY = ("an exception was raised", "not distributed")


def _free(test: Value) -> bool:
    """Whether a test is no choice of the configuration.

    It is about a rank, a number, one round of a loop, what a list of the run holds, whether a value is plain data, which
    algorithm makes the steps, how a model is built, or something that every training does or leaves whatever holds its parameters, as clipping.
    """
    if is_choice(test) or rank_dependent(test) or _is_routine(test) or _is_import(test):
        return True
    if _is_one(test) or _names_algorithm(test) or _of_architecture(test):
        return True
    if isinstance(test, Container):  # whether there is anything in it
        return True
    return any(map(_asks_about_data, parts_along(test)))


def _asks_about_data(one: Part) -> bool:
    """Whether a test is about a round of a loop, about numbers or about what data is."""
    asked = one.operation
    if isinstance(one.key, Round) or is_next(one) or asked in _ORDERINGS:
        return True
    if asked in ("any", "all"):
        return isinstance(one.owner, Container)
    return asked == "isinstance" and all(map(_is_data, one.operands))


def is_next(value: Part) -> bool:
    """Whether a value is what an iterator gave next: another one each time."""
    return value.operation == "next"


_ROUTINE = re.compile(
    r"clip|grad_norm|in_bwd|in_backward|accum|wandb|tensorboard|profil|verbose|debug|eval|valid|warmup|sched|epoch"
    r"|interval|freq|every|seed|patience|progress|compil|checkpointing|recompute|tf32|(?<![a-z])(log|ema)(?![a-z])|logg"
    r"|muon|(?<![a-z])(adam|sgd|lion|8bit)|resum|restor|from_checkpoint"
)
_STRATEGY = re.compile(
    r"fsdp|ddp|shard|parallel|dist|mesh|world|rank|gpu|device|cuda|multi|single|mode(?!l)|strategy|(?<!attention_)(?<!attn_)backend|wrap|deepspeed"
    r"|zero|replic|local|launch|accelerat|engine|plugin|plain|whole"
)
_TASK = re.compile(
    r"train|test|eval|valid|infer|predict|generat|sampl|export|convert|merg|only|task|stage|phase|mode(?!l)|command|action|method"
)


def _is_routine(test: Value) -> bool:
    """Whether a setting says if training does something that goes with every way to hold parameters.

    It is asked for its truth or for None: what it is compared with may name a way.
    """
    if not isinstance(test, Part | External):
        return False
    asked: Value = test
    if test.operation == "is":
        asked = test.owner if isinstance(test.owner, Part) else test
    if asked.operation not in ("", "call"):
        return False
    said = asked.words().lower()
    return _ROUTINE.search(said) is not None and _STRATEGY.search(said) is None


def _is_one(test: Value) -> bool:
    """Whether a test asks if a number of ranks is 1, as ``world_size > 1`` does."""
    asked = _compared(test)
    return asked is not None and asked[1] in (0, 1) and of_world_size(asked[0])


def _names_algorithm(test: Value) -> bool:
    """Whether a setting is compared with the name of an optimizer or of a schedule."""
    asked = _compared(test)
    return asked is not None and isinstance(asked[1], str) and bool(_ALGORITHM.fullmatch(asked[1]))


def _of_architecture(test: Value) -> bool:
    """Whether a test asks how a model is built: ``model.config.tie_word_embeddings``."""
    asked = any(p.key == ".config" and isinstance(p.owner, Module) for p in parts_along(test))
    return asked and _STRATEGY.search(test.words().lower()) is None


_ALGORITHM = re.compile(
    r"(fused|torch|paged|decoupled|dist(ributed)?)?_?"
    r"(ada(m|grad|delta|factor|max)\w*|[nr]adam|sgd\w*|rmsprop|lamb|lars|lion\w*|muon\w*|dion|soap|sophia|shampoo"
    r"|cosine\w*|linear|constant|polynomial|wsd|one_?cycle)(_?(w|8_?bit|4_?bit|fp8|fused|bf16))*",
    re.IGNORECASE,
)


def _compared(test: Value) -> tuple[Value, object] | None:
    """What a test compares with a constant by ``==`` or ``!=``, and the constant."""
    if not isinstance(test, Part) or len(test.operands) != 1:
        return None
    (constant,) = test.operands
    if test.operation not in ("==", "!=") or not isinstance(constant, Literal):
        return None
    return test.owner, constant.value


def _is_import(test: Value) -> bool:
    """Whether a test asks if a class of torch is there at all: one of a table, or one that an import may not give."""
    asked = test
    if isinstance(test, Part) and test.operation == "is":
        other = test.operands[-1]
        with_none = isinstance(other, Literal) and other.value is None
        asked = test.owner if with_none and test.owner is not None else test
    return all(isinstance(one, External) and _TORCH_CLASS.match(one.name) for one in options(asked))


_TORCH_CLASS = re.compile(r"torch\.(\w+\.)*[A-Z]\w*$")


def _is_data(cls: object) -> bool:
    """Whether a class is one of plain data: a list, a dictionary, a text."""
    return isinstance(cls, External) and cls.name.startswith(("builtins.", "omegaconf."))


def overlap(trace: Trace, one: Value, other: Value) -> Value | None:
    """The inner one of two modules when one holds the other."""
    if trace.inside(one, other):
        return unwrapped(one)
    return unwrapped(other) if trace.inside(other, one) else None


def leftover(trace: Trace, module: Value, done: Sequence[Shard]) -> bool:
    """Whether ``module`` has parameters of its own beside the parts of it that are ``done``."""
    if not done:
        return True
    whole = {s.module for s in done}
    if any(isinstance(m, Part) and m.owner is module.part(".children()") for m in whole):
        return False
    children = [child for _, child in trace.memory.children(module)]
    if not children or not isinstance(module, Module):
        return True
    return any(unwrapped(child) not in whole for child in children)


def method_of(function: Function, module: Value) -> bool:
    """Whether ``function`` is a method of the module's class."""
    return isinstance(module, Instance) and any(c is function.home for c in lineage(module.cls))


DCP = "torch.distributed.checkpoint."

WITH_PARAMETERS = frozenset(
    "Linear Bilinear Embedding EmbeddingBag LayerNorm RMSNorm GroupNorm Conv1d Conv2d Conv3d "
    "ConvTranspose1d ConvTranspose2d ConvTranspose3d MultiheadAttention LSTM GRU RNN PReLU "
    "BatchNorm1d BatchNorm2d BatchNorm3d Transformer TransformerEncoder TransformerDecoder "
    "TransformerEncoderLayer TransformerDecoderLayer".split()
)
"""Classes of ``torch.nn`` that always have parameters (the norms when ``elementwise_affine`` is left alone)."""


def class_name(value: Value) -> str:
    """The dotted name of the class outside the project that ``value`` is an instance of, or nothing."""
    if isinstance(value, Instance) and isinstance(value.cls, External):
        return value.cls.name
    return ""


def parts_of(trace: Trace, module: Value) -> list[Value]:
    """The submodules that the script has given to a module."""
    held = [value for _, value in trace.memory.children(module)]
    return [unwrapped(one) for value in held for one in options(value)]


_LIBRARY_LISTS = (".layers", ".h", ".layer", ".block", ".blocks")


_OF_BLOCKS = re.compile(
    r"AutoModel|\w+(ForCausalLM|LMHeadModel)"
    r"|Auto\w+(ForMaskedLM|ForSeq2SeqLM|ForSequenceClassification|ForTokenClassification|ForQuestionAnswering)"
    r"|(Bert|DistilBert|Electra|Roberta|XLMRoberta|T5|MT5|Bart|MBart|Whisper|ViT|Llama|Mistral|Qwen2|Qwen3|GPT2)(Model|For[A-Z]\w+)"
)
"""Classes with embeddings beside their blocks, whatever they are asked for. Ten of the families were built with 5.23 and
looked at; MT5, MBart, XLM-R, Mistral and Qwen have the layout of the family that they are made from."""


def is_transformer(module: Value) -> bool:
    """Whether a module surely is a model of Transformers: embeddings, a list of many equal blocks, and more."""
    home, _, name = class_name(module).rpartition(".")
    if home.partition(".")[0] != "transformers":
        return False
    return _OF_BLOCKS.fullmatch(name) is not None


def is_block_of(module: Value, model: Value) -> bool:
    """Whether a module is an element of a list of blocks of a model of Transformers: one of `model.model.layers`."""
    if not isinstance(module, Part) or not isinstance(module.key, Round):
        return False
    holder = module.owner
    while isinstance(holder, Part) and ":" in str(holder.key):  # `layers[:2]`
        holder = holder.owner
    if not isinstance(holder, Part) or holder.key not in _LIBRARY_LISTS:
        return False
    seen: Value | None = holder
    while isinstance(seen, Part) and isinstance(seen.key, str):
        seen = seen.owner
    return seen is model


_LISTS_OF_BLOCKS = frozenset(
    ".model.layers .model.decoder.layers .model.encoder.layers .transformer.h .gpt_neox.layers .bert.encoder.layer "
    ".roberta.encoder.layer .electra.encoder.layer .distilbert.transformer.layer .encoder.block .decoder.block".split()
)
"""Where models of Transformers hold their blocks, each in a `ModuleList`."""


def path_below(module: Value) -> tuple[str, Value]:
    """The attributes that lead to a module, and the model in which they begin: `.model.layers`."""
    path, seen = "", module
    while isinstance(seen, Part) and isinstance(seen.key, str):
        path, seen = seen.key + path, seen.owner
    return path, seen


def is_list_of_blocks(module: Value) -> bool:
    """Whether a module is a list of the blocks of a model of Transformers: `model.model.layers`."""
    path, seen = path_below(module)
    return path in _LISTS_OF_BLOCKS and is_transformer(seen)


def has_parameters(trace: Trace, module: Value, depth: int = 6) -> bool:
    """Whether a module surely has parameters."""
    home, _, name = (class_name(module) or _layers_built(trace).get(module, "")).rpartition(".")
    if home == "torch.nn" and name in WITH_PARAMETERS:
        return True
    return depth > 0 and any(has_parameters(trace, c, depth - 1) for c in parts_of(trace, module))


@once
def _layers_built(trace: Trace) -> dict[Value, str]:
    """The objects of project classes that torch's own constructor of a layer builds (``super().__init__(8, 8)``), with
    the layer's name: only of classes that surely keep its parameters.
    """
    keeping: dict[Class, bool] = {}
    found: dict[Value, str] = {}
    for called in trace.of(Called):
        made = called.result
        if not (called.name.startswith("torch.nn.") and isinstance(made, Module)):
            continue
        own = [one for one in lineage(made.cls) if isinstance(one, Class) and _is_layer(one)]
        for one in own:
            if one not in keeping:
                keeping[one] = not _GIVEN_UP.search(one.scope.source.code(one.node))
        if own and all(keeping[one] for one in own):
            found[made] = called.name
    return found


def _is_layer(cls: Class) -> bool:
    """Whether a class inherits from a layer of torch: not a base beside it that is made for all modules."""
    return any(
        isinstance(one, External)
        and one.name.startswith("torch.nn.")
        and one.name != "torch.nn.Module"
        for one in lineage(cls)
    )


_GIVEN_UP = re.compile(
    r"\bdel self\.|\bdelattr\(|\b_parameters\b|register_(buffer|parameter)\(|\bsetattr\(|\belementwise_affine\b"
    r"|\bself\.(weight|bias) ?[:=]"
)
"""What a class writes that may do without the parameters of the layer that it inherits from: quantized weights, none at all."""


def state_shard(trace: Trace, event: Event, state: StateDict) -> Shard | None:
    """The sharding that came before a state dict was taken, of its model or its optimizer's.

    ``event`` is what happens to the state dict; both must be possible in one run.
    """
    taken: Event = next((e for e in trace.of(StateDictTaken) if e.state is state), event)
    if excludes_fsdp2(taken.at.source, taken.at.node):
        return None
    for guards, owner in cases(taken, state.of):
        if wrapped_by(owner, "ddp", "fsdp1"):
            continue
        models = [p.of for p in owner.over] if isinstance(owner, Optimizer) else [owner]
        for model in models:
            if known_unsharded(guards, unwrapped(model)):
                continue
            for shard in shards_before(trace, taken):
                if wrapped_before(trace, taken, model, "ddp", "fsdp1", where=shard.guards):
                    continue
                possible = together(shard.guards, guards) and together(shard.guards, event.guards)
                near = overlap(trace, unwrapped(model), shard.module) is not None
                if possible and near and not leaves_out(trace, shard, model):
                    return shard
    return None


def of_shards(state: StateDict) -> bool:
    """Whether the state dict of a sharded model surely holds shards: the functions can be asked for full ones."""
    return state.full is False or (state.full is None and state.via == ".state_dict")


def changed(trace: Trace, state: StateDict, event: Event) -> bool:
    """Whether the script, or code that cannot be followed, has had its hands in a state dict."""
    if trace.memory.fields.get(state):
        return True
    return any(e.order < event.order for e in trace.escapes(state))


def differs_by_rank(value: Value | None) -> bool:
    """Whether a value (a path) is made of the rank."""
    seen = value
    while seen is not None:
        if isinstance(seen, Rank | MainRank):
            return True
        if isinstance(seen, Part) and seen.operation:
            how, operands = seen.operation, seen.operands
            if how == "*" and any(isinstance(o, Literal) and o.value == 0 for o in operands):
                return False  # `rank * share`, where nothing is shared
            if any(differs_by_rank(o) for o in operands if isinstance(o, Value)):
                return True
        seen = seen.owner if isinstance(seen, Part) else None
    return False


def is_none(value: Value | None) -> bool:
    """Whether an argument was left out or is `None`."""
    return value is None or (isinstance(value, Literal) and value.value is None)


def use_of(site: Site) -> str:
    """What the script does with the value of a call: the kind of the node around it, ``Expr`` for nothing."""
    return type(Layout.of(site.source).parents.get(site.node)).__name__


def serves_both(trace: Trace, module: Value) -> bool:
    """Whether the script asks somewhere whether a module is FSDP2's, or switches its sync as such.

    Then a test for FSDP1 of the same module is one way of several, not a dead branch.
    """
    if any(trace.concerns(e, module) for e in trace.of(SyncSwitched)):
        return True
    for called in trace.calls("builtins.isinstance", "builtins.hasattr"):
        asked = options(called.arguments[0]) if called.arguments else ()
        if any(unwrapped(one) is unwrapped(module) for one in asked):
            classes = options(called.arguments[1]) if len(called.arguments) == 2 else ()
            if any(isinstance(one, External) and one.name == _FSDP2 for one in classes):
                return True
            if any(isinstance(v, Part) and asks_for_fsdp2(v) for v in options(called.result)):
                return True
    return False


def line_of(event: Event, reader: Event) -> str:
    """``line 13``, ``line 2 of cell 6``; ``line 13 of parallel.py`` for who reads of it in another file."""
    line = event.at.line_in_words
    if event.at.source is reader.at.source:
        return line
    return f"{line} of {event.at.source.path.replace(chr(92), '/').rpartition('/')[2]}"
