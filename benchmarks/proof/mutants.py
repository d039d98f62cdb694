"""Single changes planted in migrated programs, and how many of the harmful ones `verify` tells.

    python benchmarks/proof/mutants.py [PROGRAM …] [--operator NAME] [--each N] [--every N] [--json FILE]

Every program of `fixtures/projects` that has a `run.toml` is BEFORE and AFTER; a mutant is AFTER with one change by
one named operator, in a statement that the run reaches. The first N places of each operator in each program are used. A
mutant that computes the same is no miss: the ones called equal are listed, for a person to judge. A mutant is named rightly
when the first difference is of a kind that its operator makes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fsdp2lint.prove.compare import Options, Trial, Verification  # noqa: E402
from fsdp2lint.prove.equality import apart  # noqa: E402
from fsdp2lint.prove.places import Place, find  # noqa: E402
from tests.verify.reaching import FOLDER  # noqa: E402
from tests.verify.scenes import Ranks, forking  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = ROOT / "fixtures" / "projects"
ALONE = ROOT / "fixtures" / "verify" / "everything.py"
GOES_ON = ROOT / "fixtures" / "verify" / "goes_on.py"


@dataclass(frozen=True)
class Change:
    """One place of a text and what comes there instead."""

    line: int
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """A changed program and what became of it."""

    program: str
    operator: str
    harmful: bool
    place: str
    outcome: str
    """``different``, ``equal``, ``fails`` (it does not run to its end) or ``unproven``."""
    told: str = ""
    kind: str = ""
    """Of the first difference."""

    @property
    def is_named(self) -> bool:
        """Whether the first difference is of a kind that the operator makes."""
        return self.kind in NAMED.get(self.operator, ())


class Text:
    """A module and the places of its nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.nodes = list(ast.walk(ast.parse(text)))
        self._lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def change(self, node: ast.expr | ast.stmt | ast.keyword, new: str) -> Change:
        """``new`` in the place of a node."""
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Change(node.lineno, start, end, new)

    def lines(self, line: int) -> range:
        """The lines of the statement that a line is in; of one with a body those before it."""
        around = [
            node
            for node in self.nodes
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        inner = max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
        body = getattr(inner, "body", None)
        return range(inner.lineno, body[0].lineno if body else (inner.end_lineno or 0) + 1)

    def of(self, node: ast.AST) -> str:
        """The source of a node."""
        return ast.get_source_segment(self.text, node) or ""

    def changed(self, change: Change) -> str:
        """The text with a change."""
        raw = self.text.encode()
        return (raw[: change.start] + change.new.encode() + raw[change.end :]).decode()


Operator = Callable[[Text], Iterator[Change]]


def _called(node: ast.AST) -> str:
    """The last name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def without(*names: str, receiver: str = "") -> Operator:
    """Statements that only call one of these functions are gone."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if isinstance(node, ast.Expr) and _called(node.value) in names:
                if receiver in text.of(node).partition("(")[0].lower():
                    yield text.change(node, "pass")

    return found


def keyword(name: str, new: str) -> Operator:
    """A keyword argument gets another value, made of the old one."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if isinstance(node, ast.keyword) and node.arg == name:
                yield text.change(node.value, new.format(text.of(node.value)))

    return found


def argument(call: str, new: str) -> Operator:
    """The first argument of a call is another."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if isinstance(node, ast.Call) and _called(node) == call and node.args:
                yield text.change(node.args[0], new.format(text.of(node.args[0])))

    return found


def saved_key(text: Text) -> Iterator[Change]:
    """A dictionary that is saved lacks an entry."""
    for call in text.nodes:
        if _called(call) in ("save", "async_save", "write", "dump"):
            for node in ast.walk(call):
                if isinstance(node, ast.Dict) and len(node.keys) > 1:
                    for place in range(len(node.keys)):
                        pairs = zip(node.keys, node.values, strict=True)
                        kept = [pair for n, pair in enumerate(pairs) if n != place]
                        entries = (
                            f"{text.of(k)}: {text.of(v)}" if k else f"**{text.of(v)}"
                            for k, v in kept
                        )
                        yield text.change(node, "{" + ", ".join(entries) + "}")


def unscaled_loss(text: Text) -> Iterator[Change]:
    """A loss is not divided by the number of micro-batches."""
    for node in text.nodes:
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and "loss" in text.of(node.left)
        ):
            yield text.change(node, text.of(node.left))


def precision(text: Text) -> Iterator[Change]:
    """A policy computes in another precision."""
    for node in text.nodes:
        if isinstance(node, ast.keyword) and node.arg in ("param_dtype", "reduce_dtype"):
            yield text.change(node.value, "torch.float16")


def other_rank(text: Text) -> Iterator[Change]:
    """What rank 0 alone does, nobody does."""
    for node in text.nodes:
        if (
            isinstance(node, ast.Compare)
            and "rank" in text.of(node.left)
            and text.of(node).endswith("== 0")
        ):
            yield text.change(node, f"{text.of(node.left)} == 99")


def fewer_rounds(text: Text) -> Iterator[Change]:
    """A loop over numbers makes one round less."""
    for node in text.nodes:
        if isinstance(node, ast.For) and _called(node.iter) == "range":
            assert isinstance(node.iter, ast.Call)
            last = node.iter.args[-1]
            yield text.change(last, f"({text.of(last)}) - 1")


def before_each(statement: str, *calls: str) -> Operator:
    """Another statement stands before one that calls a function."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if isinstance(node, ast.Expr) and _called(node.value) in calls:
                yield text.change(node, f"{statement}; {text.of(node)}")

    return found


def more_entries(text: Text) -> Iterator[Change]:
    """A dictionary that is saved has one entry more."""
    for call in text.nodes:
        if _called(call) == "save":
            for node in ast.walk(call):
                if isinstance(node, ast.Dict) and node.keys:
                    yield text.change(
                        node, text.of(node)[:-1].rstrip().rstrip(",") + ', "extra": 2}'
                    )


def other_order(text: Text) -> Iterator[Change]:
    """A dictionary has its entries in another order; not where they build modules, which draw random numbers in turn."""
    for node in text.nodes:
        if isinstance(node, ast.Dict) and len(node.keys) > 1 and all(node.keys):
            called = [_called(one) for value in node.values for one in ast.walk(value)]
            if any(name and name[:1].isupper() for name in called):
                continue
            pairs = list(zip(node.keys, node.values, strict=True))[::-1]
            yield text.change(
                node, "{" + ", ".join(f"{text.of(k)}: {text.of(v)}" for k, v in pairs if k) + "}"
            )


def argument_at(call: str, place: int, new: str) -> Operator:
    """A later argument of a call is another."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if _called(node) == call and isinstance(node, ast.Call) and len(node.args) > place:
                yield text.change(node.args[place], new.format(text.of(node.args[place])))

    return found


def both(*operators: Operator) -> Operator:
    """The places of several operators."""

    def found(text: Text) -> Iterator[Change]:
        for operator in operators:
            yield from operator(text)

    return found


def receiver(call: str, new: str) -> Operator:
    """What a method is called on is another, made of the old one."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if _called(node) == call and isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                    yield text.change(node.func.value, new.format(text.of(node.func.value)))

    return found


def attribute(old: str, new: str) -> Operator:
    """A name with dots is another."""

    def found(text: Text) -> Iterator[Change]:
        for node in text.nodes:
            if isinstance(node, ast.Attribute) and text.of(node).endswith(old):
                yield text.change(node, text.of(node).removesuffix(old) + new)

    return found


def same_share(text: Text) -> Iterator[Change]:
    """Every rank takes the share of rank 0."""
    for node in text.nodes:
        if isinstance(node, ast.Slice) and node.step is not None and node.lower is not None:
            if "rank" in text.of(node.lower).lower():
                yield text.change(node.lower, "0")
        if isinstance(node, ast.keyword) and node.arg == "rank":
            yield text.change(node.value, "0")


def restored_number(text: Text) -> Iterator[Change]:
    """A count that a checkpoint holds begins anew."""
    for node in text.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for value in values:
                if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                    if any(word in str(value.slice.value) for word in _COUNTS):
                        yield text.change(value, "0")


_COUNTS = ("step", "epoch", "update", "round", "pass", "position", "seen", "week", "begin")


def frozen(text: Text) -> Iterator[Change]:
    """What should not be trained is."""
    for node in text.nodes:
        if _called(node) == "requires_grad_" and isinstance(node, ast.Call) and node.args:
            yield text.change(node.args[0], "True")
        if isinstance(node, ast.Assign) and text.of(node.targets[0]).endswith(".requires_grad"):
            yield text.change(node.value, "True")


def logged(text: Text) -> Iterator[Change]:
    """A number is printed or written that is not the one computed."""
    for call in text.nodes:
        if _called(call) in ("print", "info", "dumps", "dump", "log", "write"):
            for node in ast.walk(call):
                if _called(node) == "item" and isinstance(node, ast.Call):
                    yield text.change(node, f"(2 * {text.of(node)})")


def not_averaged(text: Text) -> Iterator[Change]:
    """A sum over ranks is not divided by their number."""
    for node in text.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if "world" in text.of(node.right).lower():
                yield text.change(node, text.of(node.left))
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            if "world" in text.of(node.value).lower():
                yield text.change(node, "pass")


def group_lost(text: Text) -> Iterator[Change]:
    """A group of an optimizer lost its own setting."""
    for node in text.nodes:
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            if "params" in keys and len(keys) == len(node.keys) > 1:
                for place, key in enumerate(keys):
                    if key != "params":
                        pairs = zip(node.keys, node.values, strict=True)
                        kept = [pair for n, pair in enumerate(pairs) if n != place]
                        entries = ", ".join(f"{text.of(k)}: {text.of(v)}" for k, v in kept if k)
                        yield text.change(node, "{" + entries + "}")


def written_entry(text: Text) -> Iterator[Change]:
    """A word or a truth in a dictionary is another."""
    for node in text.nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key and text.of(key).strip("\"'") == "reshard_after_forward":
                    continue  # memory, which no run shows: one of the harmless operators
                if isinstance(value, ast.Constant) and isinstance(value.value, str | bool) and key:
                    new = not value.value if isinstance(value.value, bool) else f"not {value.value}"
                    yield text.change(value, repr(new))


def moved_boundary(text: Text) -> Iterator[Change]:
    """Something that is done every so many steps is done at others."""
    for node in text.nodes:
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.BinOp)
            and isinstance(node.left.op, ast.Mod)
        ):
            yield text.change(
                node.left, f"({text.of(node.left.left)} + 1) % {text.of(node.left.right)}"
            )


HARMFUL: dict[str, Operator] = {
    "gradients are not reset": without("zero_grad"),
    "gradients are not clipped": without("clip_grad_norm_"),
    "schedule is not stepped": without("step", receiver="sched"),
    "no evaluation mode": without("eval"),
    "no training mode": without("train"),
    "epoch of the sampler is not set": without("set_epoch"),
    "a reduction is gone": without("all_reduce", "broadcast"),
    "average is not updated": both(
        *(
            without("update", "update_parameters", "lerp_", "add_", receiver=name)
            for name in ("ema", "mean", "average")
        )
    ),
    "average moves otherwise": both(argument_at("lerp_", 1, "0.5"), argument_at("mul_", 0, "0.5")),
    "other limit of the norm": both(
        argument_at("clip_grad_norm_", 1, "1000 * ({})"), keyword("max_norm", "1000 * ({})")
    ),
    "loss is twice as large": receiver("backward", "(2 * {})"),
    "every rank has the data of rank 0": same_share,
    "last batch": keyword("drop_last", "not ({})"),
    "other size of batches": keyword("batch_size", "max(1, ({}) // 2)"),
    "other smoothing": keyword("label_smoothing", "0.5 + ({}) / 4"),
    "other small number": keyword("eps", "1e-3"),
    "a sum is a largest": both(
        attribute("ReduceOp.SUM", "ReduceOp.MAX"), attribute("ReduceOp.AVG", "ReduceOp.SUM")
    ),
    "a sum is not averaged": not_averaged,
    "a group lost its setting": group_lost,
    "what is frozen is trained": frozen,
    "another number is logged": logged,
    "another word is written": written_entry,
    "done at other steps": moved_boundary,
    "gradients are not reduced": argument("set_requires_gradient_sync", "False"),
    "other precision of matmul": argument("set_float32_matmul_precision", '"medium"'),
    "other schedule": both(
        argument_at("CosineAnnealingLR", 1, "2 * ({})"),
        argument_at("StepLR", 1, "2 * ({})"),
        keyword("T_max", "2 * ({})"),
    ),
    "other learning rate": keyword("lr", "2 * ({})"),
    "other weight decay": keyword("weight_decay", "0.5 + ({})"),
    "other momentum": keyword("betas", "(0.5, 0.5)"),
    "other momentum of SGD": keyword("momentum", "0.5 * ({})"),
    "other dropout": keyword("dropout", "0.5"),
    "no shuffling": keyword("shuffle", "not ({})"),
    "other seed": argument("manual_seed", "1 + ({})"),
    "loss is not divided": unscaled_loss,
    "an entry is not saved": saved_key,
    "other precision": precision,
    "nobody writes": other_rank,
    "one round less": fewer_rounds,
    "optimizer is not restored": both(
        without("load_state_dict", receiver="optim"),
        without("set_optimizer_state_dict"),
        keyword("optim_state_dict", "{}.__class__()"),
    ),
    "schedule is not restored": without("load_state_dict", receiver="sched"),
    "scaler is not restored": without("load_state_dict", receiver="scal"),
    "weights are not restored": both(
        without("load_state_dict", receiver="model"), without("set_model_state_dict")
    ),
    "average is not restored": both(
        *(without("copy_", "load_state_dict", receiver=name) for name in ("ema", "mean", "average"))
    ),
    "random numbers are not restored": without("set_rng_state", "setstate"),
    "count is not restored": restored_number,
}

_GRADIENTS = ("gradient", "clipping", "norm")
_SEEN = ("evaluation", "printed", "file", "checkpoint", "steps")
NAMED: dict[str, tuple[str, ...]] = {
    "gradients are not reset": _GRADIENTS,
    "gradients are not clipped": ("clipping",),
    "schedule is not stepped": ("rate", "companion"),
    "no evaluation mode": ("evaluation",),
    "no training mode": ("data",),
    "epoch of the sampler is not set": ("data",),
    "a reduction is gone": (*_SEEN, *_GRADIENTS, "loss"),
    "average is not updated": ("evaluation", "value", "checkpoint", "printed"),
    "average moves otherwise": ("evaluation", "value", "checkpoint", "printed"),
    "other limit of the norm": ("clipping",),
    "loss is twice as large": ("loss",),
    "every rank has the data of rank 0": ("data",),
    "last batch": ("data", "steps", "companion"),
    "other size of batches": ("data", "evaluation"),
    "other smoothing": ("loss",),
    "other small number": ("setting", "loss"),
    "a sum is a largest": (*_SEEN, *_GRADIENTS, "loss"),
    "a sum is not averaged": (*_SEEN, *_GRADIENTS, "loss"),
    "a group lost its setting": ("setting", "rate"),
    "what is frozen is trained": ("setting", "gradient"),
    "another number is logged": ("printed", "file"),
    "another word is written": ("file", "checkpoint", "printed"),
    "done at other steps": (*_SEEN, *_GRADIENTS, "data", "rate"),
    "gradients are not reduced": _GRADIENTS,
    "other precision of matmul": ("numerics",),
    "other schedule": ("rate", "companion"),
    "other learning rate": ("rate", "setting"),
    "other weight decay": ("setting",),
    "other momentum": ("setting",),
    "other momentum of SGD": ("setting",),
    "other dropout": ("loss",),
    "no shuffling": ("data", "companion"),
    "other seed": ("data", "loss", "evaluation"),
    "loss is not divided": ("loss",),
    "an entry is not saved": ("checkpoint", "file"),
    "other precision": ("loss", *_GRADIENTS, "evaluation"),
    "nobody writes": ("printed", "file", "checkpoint"),
    "one round less": (*_SEEN, *_GRADIENTS, "data", "loss"),
    "optimizer is not restored": ("setting", "optimizer"),
    "schedule is not restored": ("rate", "companion"),
    "scaler is not restored": ("companion", "printed", "loss", *_GRADIENTS),
    "weights are not restored": ("loss", "evaluation"),
    "average is not restored": ("evaluation", "value", "checkpoint", "printed"),
    "random numbers are not restored": ("data", "loss"),
    "count is not restored": (*_SEEN, "data", "rate", "companion"),
}
"""What the first difference may be of for each harmful operator."""

HARMLESS: dict[str, Operator] = {
    "a barrier more": before_each("__import__('torch').distributed.barrier()", "step"),
    "memory is freed": before_each("__import__('gc').collect()", "backward"),
    "a word is printed": before_each("print('going on')", "backward", "step"),
    "an entry more is saved": more_entries,
    "other order of entries": other_order,
    "one tensor after the other": keyword("lr", "{}, foreach=False"),
    "freed or kept after forward": keyword("reshard_after_forward", "not ({})"),
    "a number is detached": receiver("item", "{}.detach()"),
    "pinned memory": keyword("pin_memory", "not ({})"),
    "gradients are set to nothing": both(
        *(before_each("__import__('time').sleep(0.01)", name) for name in ("zero_grad", "save"))
    ),
    "parameters in a list": argument("clip_grad_norm_", "list({})"),
    "a longer time to wait": argument(
        "init_process_group", "{}, timeout=__import__('datetime').timedelta(60)"
    ),
}


LIMIT = 120.0
PATCHES = ("tests.verify.reaching:record",)
SAVING = ("an entry is not saved", "an entry more is saved", "other order of entries")
"""Operators that show only in a run that saves; other runs are longer."""

RESUMING = (
    "optimizer is not restored",
    "schedule is not restored",
    "scaler is not restored",
    "weights are not restored",
    "average is not restored",
    "random numbers are not restored",
    "count is not restored",
)
"""Operators that show only in a run that goes on from a checkpoint."""


def programs(names: list[str]) -> Iterator[tuple[str, Place, Path, Options, list[str]]]:
    """Name, BEFORE, the folder of AFTER, how both are run, and the operators for such a run."""
    every = [*HARMFUL, *HARMLESS]
    for file in sorted(PROJECTS.glob("*/run.toml")):
        plan = tomllib.loads(file.read_text("utf-8"))
        if not names or file.parent.name in names:
            place = find(str(file.parent / "before"), entry=plan["entry"])
            alike = plan.get("alike", [])
            straight, save, go_on = (
                [*arguments, *alike]
                for arguments in (plan["args"], plan["resume"]["save"], plan["resume"]["continue"])
            )
            yield from runs(
                file.parent.name, place, file.parent / "after", straight, save, go_on, plan
            )
    if not names or "everything" in names:
        options = Options(timeout=LIMIT, patches=PATCHES)
        yield (
            "everything",
            find(str(ALONE)),
            ALONE,
            options,
            [n for n in every if n not in RESUMING],
        )
    if not names or "goes_on" in names:
        save, go_on = ["--steps", "3", "--keep"], ["--go-on", "--keep"]
        plan = {"nproc": 2, "rtol": None}
        yield from runs("goes_on", find(str(GOES_ON)), GOES_ON, ["--keep"], save, go_on, plan)


def runs(
    name: str,
    before: Place,
    after: Path,
    straight: list[str],
    save: list[str],
    go_on: list[str],
    plan: dict[str, Any],
) -> Iterator[tuple[str, Place, Path, Options, list[str]]]:
    """A program in one stretch, up to where it saves, and resumed."""
    kinds = (SAVING, save, None), (RESUMING, go_on, (tuple(save), tuple(go_on)))
    special = [operator for operators, *_ in kinds for operator in operators]
    rest = [operator for operator in (*HARMFUL, *HARMLESS) if operator not in special]
    for operators, arguments, resume in ((rest, straight, None), *kinds):
        options = Options(
            tuple(arguments),
            plan["nproc"],
            timeout=LIMIT,
            rtol=None if plan.get("alike") else plan["rtol"],
            resume=resume,
            patches=PATCHES,
        )
        yield name, before, after, options, list(operators)


def mutants(
    after: Path, operators: dict[str, Operator], each: int, reached: set[str]
) -> Iterator[tuple[str, str, Path, str]]:
    """Operator, place, file and its changed text, for the first places of each operator that a run reaches."""
    files = sorted(after.resolve().rglob("*.py")) if after.is_dir() else [after.resolve()]
    for name, operator in operators.items():
        left = each
        for file in files:
            text = Text(file.read_text("utf-8"))
            for change in operator(text):
                if not left:
                    break
                if reached.isdisjoint(f"{file}:{line}" for line in text.lines(change.line)):
                    continue
                left -= 1
                changed = text.changed(change)
                if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text.text)):
                    left += 1  # it was like that
                    continue
                yield name, f"{file.name}:{change.line}", file, changed


def outcome(verification: Verification) -> tuple[str, str, str]:
    """What `verify` says of a mutant, its first words, and what they are about."""
    if verification.fault:
        run = verification.after or verification.before
        return (
            "fails",
            next((rank.error for rank in run.run.ranks if rank.error), run.run.verdict),
            "",
        )
    if verification.differences:
        first = verification.differences[0]
        return "different", first.message, first.kind
    return ("unproven", verification.unproven, "") if verification.unproven else ("equal", "", "")


@contextmanager
def noting() -> Iterator[set[str]]:
    """The lines that runs inside of it reach, as ``file:line``, when it is left."""
    folder, seen = Path(os.environ[FOLDER]), set[str]()
    (folder / "on").touch()
    yield seen
    (folder / "on").unlink()
    for file in folder.glob("*.lines"):
        seen.update(file.read_text("utf-8").splitlines())
        file.unlink()


def measure(
    ranks: Ranks, names: list[str], operators: list[str], each: int, stride: int
) -> Iterator[Mutant]:
    """Every mutant of the chosen programs with its outcome, or each one of so many."""
    passed = 0
    for program, before, after, options, shown in programs(names):
        with (
            Trial(before, options, run=ranks.launch, compare=apart.main) as runs,
            tempfile.TemporaryDirectory() as folder,
        ):
            entry = Path(before.target).name if after.is_dir() else None
            with noting() as reached:
                control = runs.against(find(str(after), entry=entry))
            if control.exit_code:
                print(f"{program}: left out, for AFTER as it is: {outcome(control)}")
                continue
            for harmful, every in ((True, HARMFUL), (False, HARMLESS)):
                chosen = {n: every[n] for n in shown if n in every and n in (operators or shown)}
                found = mutants(after, chosen, each, reached)
                for number, (name, place, file, text) in enumerate(found):
                    passed += 1
                    if passed % stride:
                        continue
                    copy = Path(folder, f"{harmful}{number}")
                    if after.is_dir():
                        shutil.copytree(after, copy)
                        (copy / file.relative_to(after.resolve())).write_text(text, "utf-8")
                    else:
                        copy = copy.with_suffix(".py")
                        copy.write_text(text, "utf-8")
                    verification = runs.against(find(str(copy), entry=entry))
                    yield Mutant(program, name, harmful, place, *outcome(verification))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="run each one of so many only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    started, found = time.monotonic(), []
    os.chdir(tempfile.mkdtemp(prefix="mutants-"))
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="reached-")
    with forking() as ranks:
        chosen = options.programs, options.operator, options.each, options.every
        for one in measure(ranks, *chosen):
            found.append(one)
            print(
                f"{one.program:20} {one.operator:34} {one.place:22} {one.outcome:10} "
                f"{'as' if one.harmful and one.kind and not one.is_named else '':2} {one.told[:90]}",
                flush=True,
            )
            if time.monotonic() - started > options.seconds:
                break
    table(found)
    if options.json:
        options.json.write_text(json.dumps([vars(one) for one in found], indent=1) + "\n", "utf-8")


def table(found: list[Mutant]) -> None:
    """By operator: how many were told, and the sums."""
    print()
    for harmful in (True, False):
        ours = [one for one in found if one.harmful == harmful]
        for name in dict.fromkeys(one.operator for one in ours):
            same = [one for one in ours if one.operator == name]
            counts = Counter(one.outcome for one in same)
            named = sum(one.is_named for one in same)
            became = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            print(f"{name:34} {became}" + f", {named} named rightly" * harmful)
        ran = [one for one in ours if one.outcome != "fails"]
        told = sum(one.outcome != "equal" for one in ran)
        print(
            f"{'harmful' if harmful else 'harmless'}: {told} of {len(ran)} that ran are called different"
        )
        if harmful:
            shown = [one for one in ran if one.kind]
            print(f"named rightly: {sum(one.is_named for one in shown)} of {len(shown)}")
        print()


if __name__ == "__main__":
    main()
