"""Two training programs run with the same seeds and arguments, and whether they do the same.

Each works in a folder of its own (:mod:`fsdp2lint.rehearse.workfolder`); tensors are compared by another
process, so nothing here imports PyTorch.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

import msgspec

from fsdp2lint.plan.data import Model, Plan
from fsdp2lint.prove import ladder, written
from fsdp2lint.prove.equality import causes, files, steps
from fsdp2lint.prove.equality.pairs import pair
from fsdp2lint.prove.places import Place
from fsdp2lint.rehearse import workfolder
from fsdp2lint.rehearse.launch import Echo, Launch
from fsdp2lint.rehearse.outcome import Device, MadeUp, RankReport, Request
from fsdp2lint.rehearse.rehearse import Rehearsal, rehearse
from fsdp2lint.rehearse.results import UNITS, Checkpoint, Compared, Difference, Kind, Task
from fsdp2lint.rehearse.script import die_with_parent
from fsdp2lint.rehearse.warm import Forking

SEED = 0
PLAN = 2
"""The rung of the plan: where the groups are others, equal numbers on few ranks are chance."""

LOOSE = 1e-5
"""The tolerance where sums may be made in another order: more than two ranks, or clipped gradients."""

Announce = Callable[[str], None]
Side = Literal["BEFORE", "AFTER"]


class Options(msgspec.Struct, frozen=True):
    """How both programs are run and compared."""

    arguments: tuple[str, ...] = ()
    nproc: int = 2
    steps: int | None = None
    timeout: float = 300.0
    patches: tuple[str, ...] = ()
    device: Device = "cpu"
    rtol: float | None = None
    """None lets the runs decide: equal bit for bit where sums are made in the same order."""
    accept_missing: tuple[str, ...] = ()
    """What AFTER may lack: names of entries, of parts of a checkpoint, or of files, as patterns."""
    resume: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """Arguments with which each saves a checkpoint, and with which both go on from BEFORE's, then AFTER from its own."""
    made_up: MadeUp = MadeUp()


_ORDER = get_args(Kind)
"""What comes after what in a step and at the end."""


def _when(difference: Difference) -> tuple[float, float, int]:
    """When a difference shows: settings before the first step, final values at the end."""
    end = 0 if difference.kind in ("numerics", "setting") else math.inf
    step = end if difference.step is None else difference.step
    backward = math.inf if difference.backward is None else difference.backward
    return step, backward, _ORDER.index(difference.kind)


class Verification(msgspec.Struct):
    """What came of both runs."""

    before: Rehearsal
    after: Rehearsal | None = None
    """None when BEFORE failed already."""
    fault: Side | None = None
    """Whose run did not come to its end."""
    rtol: float = 0.0
    reason: str = ""
    """Why this tolerance."""
    compared: list[Compared] = []
    rungs: list[ladder.Rung] = []
    notes: list[str] = []
    plans: list[Plan] = []
    """Those of both, when they were planned too."""

    @property
    def differences(self) -> list[Difference]:
        """Everything that is not the same, in the order of the run: the first is where it began."""
        found = [one for compared in self.compared for one in compared.differences]
        return sorted(found, key=_when)

    @property
    def unread(self) -> int:
        """How many checkpoints of BEFORE could not be read, and so not be compared."""
        return sum(compared.unread for compared in self.compared)

    @property
    def unproven(self) -> str:
        """Why a run like this proves nothing; empty when it does, or shows a difference."""
        return (
            "" if self.differences else next((c.unproven for c in self.compared if c.unproven), "")
        )

    @property
    def idle(self) -> bool:
        """Whether both came to their end and there is nothing to compare: neither trains or saves."""
        return not self.fault and not self.differences and not any(c.count for c in self.compared)

    @property
    def exit_code(self) -> int:
        """0 equal, also in the plan if there is one, 1 different, 2 a run failed, or there was none to speak of."""
        if self.fault or self.unproven or (self.idle and not self.unread):
            return 2
        planned = all(one.state != "failed" for one in self.rungs if one.number == PLAN)
        return 0 if planned and not self.differences else 1


def verify(
    before: Place,
    after: Place,
    options: Options,
    *,
    echo: Echo = lambda _: None,
    announce: Announce = lambda _: None,
    rungs: Sequence[ladder.Rung] = (),
) -> Verification:
    """Run both and compare them.

    ``announce`` gets what begins, ``rungs`` is what is known already.

    Raises:
        CannotRun: PyTorch or a script is not there.
        KeyboardInterrupt: after every process was ended.
    """
    with Trial(before, options, echo=echo, announce=announce) as trial:
        verification = trial.against(after)
    verification.rungs = [*rungs, *verification.rungs]
    return verification


def compare_apart(task: Path, out: Path) -> None:
    """Let another process, which imports PyTorch, do a task of comparing tensors."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [sys.executable, "-m", "fsdp2lint.prove.equality.apart", str(task), str(out)],
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,  # Ctrl-C is for us, who end it
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
        check=True,
    )


class Trial:
    """One original and what it is compared with; the original runs once, its runs live as long.

    ``run`` starts the ranks, ``compare`` compares tensors; one process forks all of them if neither is given.
    """

    def __init__(
        self,
        before: Place,
        options: Options,
        *,
        echo: Echo = lambda _: None,
        announce: Announce = lambda _: None,
        run: Launch | None = None,
        compare: Callable[[Path, Path], None] | None = None,
    ) -> None:
        self._before, self._options = before, options
        self._echo, self._announce = echo, announce
        self._forking = Forking()
        self._launch, self._compare = run or self._forking.launch, compare or self._compared_apart
        self._place = tempfile.TemporaryDirectory(prefix="fsdp2lint-")
        self._scratch = Path(self._place.name).resolve()
        self._outside = workfolder.Outside(self._scratch / "outside")
        self._start = workfolder.Outside(self._scratch / "start")
        self._original: Rehearsal | None = None
        self._again: Rehearsal | None = None
        self._noise: steps.Noise | None = None
        self._kept: list[Checkpoint] = []
        self._notes: list[str] = []
        self._saves: dict[str, list[str]] = {}
        self._compared = 0
        self._seeds_apart = False

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._forking.end()
        self._place.cleanup()

    def against(self, after: Place) -> Verification:
        """Run another program and compare it with the original, which is run the first time.

        Raises:
            CannotRun: PyTorch or a script is not there.
            KeyboardInterrupt: after every process was ended.
        """
        if self._original is None:
            self._original = self._resumed() if self._options.resume else self._straight()
        if not self._original.completed:
            return self._with_rung(Verification(self._original, fault="BEFORE"))
        self._compared += 1
        name = f"after{self._compared}"
        self._start.restore()
        title = "AFTER, resumed" if self._options.resume else "AFTER"
        run = self._run(name, after, self._arguments, title, start=self._saved)
        result = self._judged(self._original, run, name)
        if self._options.resume and result.exit_code == 0:
            result = self._from_its_own(after, name, result)
        return self._with_rung(result)

    def _from_its_own(self, after: Place, name: str, crossed: Verification) -> Verification:
        """AFTER resumed from what AFTER saves, where it goes on from BEFORE's checkpoint as BEFORE does."""
        saving, own = f"{name}-saved", f"{name}-own"
        saved = self._save(saving, after, "AFTER, to save")
        if not saved.completed:
            note = "this is AFTER with the arguments to save: it goes on from BEFORE's checkpoint as BEFORE does"
            return Verification(crossed.before, saved, "AFTER", notes=[note])
        title = "AFTER, resumed from its own checkpoint"
        run = self._run(own, after, self._arguments, title, start=saving)
        known = [*self._carried("saved", "before"), *self._carried(saving, own)]
        result = self._judged(crossed.before, run, own, known)
        if result.exit_code:
            note = "this is AFTER resumed from its own checkpoint: from BEFORE's it goes on as BEFORE does"
            result.notes.insert(0, note)
            return result
        crossed.notes.append("AFTER goes on from its own checkpoint in the same way")
        return crossed

    def _carried(self, saving: str, resumed: str) -> list[str]:
        """Where the checkpoints of a run that saved lie in the folder of the run that goes on from them."""
        work = self._work(saving)
        saves = [path for path in self._saves[saving] if written.is_inside(path, work)]
        return [str(self._work(resumed) / os.path.relpath(path, work)) for path in saves]

    @property
    def _arguments(self) -> tuple[str, ...]:
        return self._options.resume[1] if self._options.resume else self._options.arguments

    @property
    def _saved(self) -> str:
        return "saved" if self._options.resume else ""

    def _straight(self) -> Rehearsal:
        original = self._run("before", self._before, self._arguments, "BEFORE")
        if _brings_weights_unseeded(original):
            self._seeds_apart = True
            shutil.rmtree(self._scratch / "before")
            shutil.rmtree(self._work("before"))
            title = "BEFORE again, with other random numbers on each rank"
            original = self._run("before", self._before, self._arguments, title)
        return self._keep(original)

    def _resumed(self) -> Rehearsal:
        """Let the original save, then go on from its checkpoint."""
        saved = self._save("saved", self._before, "BEFORE, to save")
        if not saved.completed:
            return saved
        if not self._saves["saved"]:
            self._notes.append("BEFORE wrote no checkpoint with the arguments to save")
        self._start.keep(self._outer(saved, "saved"))
        title = "BEFORE, resumed"
        return self._keep(self._run("before", self._before, self._arguments, title, start="saved"))

    def _save(self, name: str, place: Place, title: str) -> Rehearsal:
        """Run a program to its end with the arguments with which it saves."""
        saving = self._options.resume[0] if self._options.resume else ()
        unlimited = msgspec.structs.replace(self._options, steps=None)
        saved = self._run(name, place, saving, title, unlimited)
        self._saves[name] = written.paths(saved.run.ranks)
        return saved

    def _keep(self, original: Rehearsal) -> Rehearsal:
        """Copy what lies outside of the original's folder: the others may write there too."""
        self._outside.keep(self._outer(original, "before"))
        self._kept = self._checkpoints(original, "before")
        return original

    def _with_rung(self, verification: Verification) -> Verification:
        verification.rungs = [_ran(verification, self._options)]
        return verification

    def _run(
        self,
        name: str,
        place: Place,
        arguments: tuple[str, ...],
        title: str,
        options: Options | None = None,
        start: str = "",
        rounded: bool = False,
    ) -> Rehearsal:
        self._announce(f"running {title}: {place.name}")
        options = options or self._options
        work = workfolder.make(place.folder, self._work(name))
        if start:
            workfolder.carry(self._work(start), work)
        scratch = self._scratch / name
        scratch.mkdir()
        request = Request(
            place.target,
            str(scratch),
            place.module,
            (*place.arguments, *arguments),
            options.nproc,
            options.steps,
            options.timeout,
            options.patches,
            options.device,
            folder=str(work),
            root=str(place.folder),
            seed=SEED,
            seeds_apart=self._seeds_apart,
            gather=True,
            rounded=rounded,
            environment=place.environment,
            made_up=options.made_up,
        )
        return rehearse(request, self._echo, self._launch)

    def _work(self, name: str) -> Path:
        return self._scratch / f"{name}-work"

    def _judged(
        self, old: Rehearsal, new: Rehearsal, name: str, known: Sequence[str] = ()
    ) -> Verification:
        """What comes of two runs; ``known`` are the checkpoints that they began with."""
        if not new.completed:
            return Verification(old, new, "AFTER")
        result = self._with_comparison(old, new, name, known, {})
        if not _may_be_rounding(result.differences) or result.reason not in (_MANY, _GPUS, _NORMS):
            return result
        noise = self._measured_noise(old)
        if not noise:
            return result
        result = self._with_comparison(old, new, name, known, noise)
        told = ", ".join(f"{kind} {most[-1]:.2g}" for kind, most in noise.items())
        result.notes.append(
            "BEFORE ran once more with other last bits in its gradients, and what its own two runs differ by counts as "
            f"noise, {steps.BEYOND:g} times over: {told}"
        )
        return result

    def _with_comparison(
        self,
        old: Rehearsal,
        new: Rehearsal,
        name: str,
        known: Sequence[str],
        noise: steps.Noise,
    ) -> Verification:
        rtol, reason = _tolerance(self._options, (old, new))
        result = Verification(old, new, rtol=rtol, reason=reason)
        result.compared = steps.compare(old.run.ranks, new.run.ranks, rtol, noise)
        saved = self._checkpoints(new, name)
        values = steps.BEYOND * max((most[-1] for most in noise.values()), default=0.0)
        result.compared += self._tensors(
            self._task(old, new, name, saved, rtol, values if "value" in noise else 0.0)
        )
        result.compared += self._texts(old, new, name, max(rtol, values), known)
        result.compared.append(self._writers(old, new, name))
        result.compared = [_accepted(one, self._options.accept_missing) for one in result.compared]
        self._explain(result, old, new, name)
        notes = _notes(self._kept, saved, (old, new), resumed=bool(self._options.resume))
        result.notes = [*self._notes, *notes]
        return result

    def _explain(self, result: Verification, old: Rehearsal, new: Rehearsal, name: str) -> None:
        """Say of the first difference what explains it."""
        if not result.differences:
            return
        first = result.differences[0]
        before, after = (
            causes.Side(run.run.ranks, _sharded(self._scratch / folder / UNITS))
            for run, folder in ((old, "before"), (new, name))
        )
        for compared in result.compared:
            compared.differences = [
                causes.explained(one, before, after, result.rtol) if one is first else one
                for one in compared.differences
            ]

    def _task(
        self,
        old: Rehearsal,
        new: Rehearsal,
        name: str,
        saved: list[Checkpoint],
        rtol: float,
        noise: float = 0.0,
    ) -> Task:
        finals = (str(self._scratch / "before" / "final"), str(self._scratch / name / "final"))
        reach = max(_reach(old), _reach(new))
        return Task(finals, pair(self._kept, saved), rtol, noise, reach)

    def _measured_noise(self, old: Rehearsal) -> steps.Noise:
        """How far BEFORE comes from itself where its gradients are rounded otherwise: by kind and step."""
        if self._noise is None and self._outer(old, "before"):
            self._noise = {}  # it would write over what AFTER wrote there
        if self._noise is None:
            self._start.restore()
            rounded = self._run(
                "rounded",
                self._before,
                self._arguments,
                "BEFORE again, rounded otherwise",
                start=self._saved,
                rounded=True,
            )
            self._noise = {}
            if rounded.completed:
                self._noise = steps.noise(old.run.ranks, rounded.run.ranks)
                task = self._task(
                    old, rounded, "rounded", self._checkpoints(rounded, "rounded"), LOOSE
                )
                apart = max((one.relative for one in self._tensors(task) if one.count), default=0.0)
                self._noise["value"] = [apart]
        return self._noise

    def _tensors(self, task: Task) -> list[Compared]:
        self._announce("comparing final values and checkpoints")
        asked, out = self._scratch / "task.json", self._scratch / "compared.json"
        asked.write_bytes(msgspec.json.encode(task))
        self._compare(asked, out)
        return msgspec.json.decode(out.read_bytes(), type=list[Compared])

    def _compared_apart(self, task: Path, out: Path) -> None:
        if not self._forking.compare(task, out):
            compare_apart(task, out)

    def _checkpoints(self, run: Rehearsal, name: str) -> list[Checkpoint]:
        kept = self._outside.kept if name == "before" else {}
        return written.checkpoints(
            run.run.ranks, self._work(name), lambda path: str(kept.get(path, path))
        )

    def _texts(
        self, old: Rehearsal, new: Rehearsal, name: str, rtol: float, known: Sequence[str]
    ) -> list[Compared]:
        """What both print and write; where it differs, BEFORE runs again: only what its own runs share counts."""
        found = self._compared_texts(old, new, name, rtol, frozenset(), known)
        if not any(not lost.missing for one in found for lost in one.differences):
            return found
        if self._again is None:
            self._start.restore()
            title = "BEFORE again, for what no two runs print alike"
            self._again = self._run(
                "again", self._before, self._arguments, title, start=self._saved
            )
        if not self._again.completed:
            return found
        noise = files.noise(files.printed(*self._both(old, self._again, "again")), rtol)
        mine = [*written.paths(old.run.ranks), *written.paths(self._again.run.ranks)]
        noise |= files.noise(files.written(self._works("again"), mine), rtol)
        return self._compared_texts(old, new, name, rtol, noise, known)

    def _compared_texts(
        self,
        old: Rehearsal,
        new: Rehearsal,
        name: str,
        rtol: float,
        noise: files.Noise,
        known: Sequence[str],
    ) -> list[Compared]:
        known = [*known, *(path for run in (old, new) for path in written.paths(run.run.ranks))]
        return [
            files.compare_printed(files.printed(*self._both(old, new, name)), rtol, noise),
            files.compare_files(
                self._works(name), known, rtol, noise, len(old.run.ranks), bool(self._saved)
            ),
        ]

    def _writers(self, old: Rehearsal, new: Rehearsal, name: str) -> Compared:
        """Whether a file that one rank writes in BEFORE is written by several in AFTER, each over the others'."""
        compared = Compared("writers of files")
        before = written.writers(old.run.ranks, self._work("before"))
        after = written.writers(new.run.ranks, self._work(name))
        for file in before.keys() & after.keys():
            compared.count += 1
            compared.identical += before[file] == after[file]
            if len(before[file]) == 1 < len(after[file]):
                ranks = " and ".join(map(str, sorted(after[file])))
                message = f"`{file}` is written by rank {min(before[file])} in BEFORE and by ranks {ranks} in AFTER"
                compared.differences.append(Difference("file", message, name=file))
        return compared

    def _works(self, name: str) -> tuple[Path, Path]:
        return self._work("before"), self._work(name)

    def _both(
        self, old: Rehearsal, new: Rehearsal, name: str
    ) -> tuple[tuple[Path, Path], tuple[list[RankReport], list[RankReport]]]:
        folders = self._scratch / "before", self._scratch / name
        return folders, (old.run.ranks, new.run.ranks)

    def _outer(self, run: Rehearsal, name: str) -> list[str]:
        """The checkpoints of a run that lie outside of its working folder."""
        work = self._work(name)
        return [path for path in written.paths(run.run.ranks) if not written.is_inside(path, work)]


_FROM_ROUNDING: tuple[Kind, ...] = (
    *("loss", "gradient", "clipping", "norm", "evaluation"),
    *("value", "optimizer", "checkpoint", "printed", "file"),
)
"""What rounding can change; which data come, settings and what is there at all it can not."""

_NEAR = 0.01
"""Nothing begins by rounding that begins so far apart."""


def _may_be_rounding(differences: Sequence[Difference]) -> bool:
    """Whether all that differs could have grown out of sums that were rounded otherwise."""
    numbers = [one.relative for one in differences if one.kind not in ("printed", "file")]
    return (
        bool(numbers)
        and all(one.kind in _FROM_ROUNDING and not one.missing for one in differences)
        and numbers[0] is not None
        and numbers[0] <= _NEAR
    )


def _sharded(file: Path) -> tuple[Model, ...]:
    """How the models of a run are sharded; empty where nothing was noted."""
    return msgspec.json.decode(file.read_bytes(), type=tuple[Model, ...]) if file.is_file() else ()


def _accepted(compared: Compared, names: Sequence[str]) -> Compared:
    """A comparison without the losses that the user accepts by name."""
    lost = [one for one in compared.differences if one.missing and _is_named(one.name, names)]
    for one in lost:
        compared.differences.remove(one)
        compared.notes.append(f"accepted by --accept-missing: {one.message}")
    return compared


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a name, or one of the parts that it is made of."""
    parts = [name, *re.split(r"[./:]\s*", name)]
    return any(fnmatchcase(part, pattern) for pattern in patterns for part in parts)


def _notes(
    before: list[Checkpoint],
    after: list[Checkpoint],
    runs: tuple[Rehearsal, Rehearsal],
    *,
    resumed: bool,
) -> Iterator[str]:
    if any(os.path.isabs(one.name) for one in before):
        yield "checkpoints go to an absolute path: AFTER found there what BEFORE had left"
    apart = any(run.request.seeds_apart for run in runs)
    if not apart and not any(rank.seeded for run in runs for rank in run.run.ranks):
        yield (
            "neither program seeds PyTorch, so all ranks were given one seed: whether AFTER brings the "
            "weights of rank 0 to all ranks was not tried"
        )
    stepped = [step for step in runs[0].run.ranks[0].steps if step.rates]
    if stepped and not any(rate for step in stepped for rate in step.rates):
        yield "every learning rate was 0: what an optimizer does to the parameters was not compared"
    if not before and not after:
        stopped = any(rank.how == "stopped" for run in runs for rank in run.run.ranks)
        why = ": what comes after the last step was not run (--steps)" if stopped else ""
        yield f"no checkpoint was written{' after the resumption' if resumed else ''}{why}"


def _brings_weights_unseeded(run: Rehearsal) -> bool:
    """Whether only other random numbers on each rank show that the weights of rank 0 come to all."""
    ranks = run.run.ranks
    return run.completed and all(rank.synced and not rank.seeded for rank in ranks)


_MANY = "more than two ranks may add in another order"
_GPUS = "GPUs may add in another order"
_NORMS = "FSDP1 and FSDP2 add up clipped norms in another order"


def _tolerance(options: Options, runs: tuple[Rehearsal, Rehearsal]) -> tuple[float, str]:
    if options.rtol is not None:
        return options.rtol, "as asked"
    if options.nproc > 2:
        return LOOSE, _MANY
    if options.device == "cuda":
        return LOOSE, _GPUS
    if any(rank.clipped for run in runs for rank in run.run.ranks):
        return LOOSE, _NORMS
    return 0.0, "exact"


def _reach(run: Rehearsal) -> float:
    return sum(max(step.rates, default=0.0) for step in run.run.ranks[0].steps)


def _ran(verification: Verification, options: Options) -> ladder.Rung:
    number = 4 if options.device == "cuda" else 3
    if verification.fault:
        return ladder.rung(number, False, f"{verification.fault} did not run to its end")
    if verification.idle:
        return ladder.rung(number, None, "neither program made an optimizer step")
    differences = verification.differences
    return ladder.rung(number, not differences, differences[0].message if differences else "")
