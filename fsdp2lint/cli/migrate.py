"""``fsdp2lint migrate``: a repository from FSDP1 to FSDP2 and distributed checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.options import COLOR, CONFIGURATION, DISCOVERY, TARGET, Given, several
from fsdp2lint.cli.output import coloured, on_terminal, save
from fsdp2lint.cli.sessions import configured, refuse_wrong, said_to_be_wrong
from fsdp2lint.config.settings import BadSetting, unknown
from fsdp2lint.system.discover import NoSuchPath
from fsdp2lint.system.journal import NotWritten, Switch
from fsdp2lint.system.plain import lines, no_command, one_line

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Codemod
    from fsdp2lint.check.session import Session
    from fsdp2lint.config.settings import Settings
    from fsdp2lint.migrate.commits import Commit
    from fsdp2lint.migrate.engine import Migration, Stage
    from fsdp2lint.migrate.files import Chosen
    from fsdp2lint.migrate.show import Applied
    from fsdp2lint.migrate.units import Stuck
    from fsdp2lint.torch_api import Release


@click.command("migrate", short_help="Rewrite FSDP1 to FSDP2 and distributed checkpoints.")
@click.argument("paths", nargs=-1, metavar="[FILES|DIRS]...")
@click.option("--write", is_flag=True, help="Apply the changes: to all files or to none.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file would change.")
@click.option("-i", "--interactive", is_flag=True, help="Show each codemod's changes and ask.")
@click.option("--create-commits", is_flag=True, help="Apply, with one git commit per model.")
@click.option("--allow-dirty", is_flag=True, help="Write even if git has uncommitted changes.")
@click.option(
    "--allow-no-git", is_flag=True, help="Write files outside git without a backup of them."
)
@click.option(
    "--verify",
    metavar="'SCRIPT ARGS'",
    help="Run this program of the folder before and after on CPU ranks; write only if they agree. Options of `verify`, "
    "such as `--fake`, may come before the script.",
)
@several("--only", "Only these codemods.")
@several("--skip", "Not these codemods.")
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Keep the code of FSDP1 beside that of FSDP2, behind a setting: `FSDP_VERSION=1` in the environment trains "
    "as before. Without this option, a later run takes it out.",
)
@click.option(
    "--checkpoints",
    type=click.Choice(["dcp", "full"]),
    help="Save distributed checkpoints and read old files too, or keep writing single files.  [default: dcp; full "
    "with `--side-by-side`, so that both read them]",
)
@click.option("--async-save", is_flag=True, help="Save in the background, each save awaited.")
@click.option(
    "--launch",
    type=click.Choice(["torchrun", "keep"]),
    default="keep",
    show_default=True,
    help="Convert `mp.spawn` programs to torchrun, or leave them alone.",
)
@TARGET
@click.option(
    "-f",
    "--output-format",
    "formats",
    multiple=True,
    metavar="F[=FILE]",
    help="text, markdown, json, html; several go to files.",
)
@DISCOVERY
@CONFIGURATION
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="No diff, only the ledger.")
def command(paths: tuple[str, ...], **given: Any) -> int:
    """Rewrite FSDP1 in FILES and below DIRS to FSDP2 and distributed checkpoints.

    Prints a diff and the ledger: what becomes of every use of FSDP1. Nothing is written without
    `--write`; files outside git are copied to a backup folder first. Exit code: 0 when nothing is
    left for manual migration, 1 when something is, or a `TODO(fsdp2lint)` of an earlier run is still
    in the code (with `--check`, when a file would change), 2 when the run itself failed.
    """
    _choose_checkpoints(given)
    codemods = _codemods(given)
    targets = _targets(given["formats"])
    session = configured(paths or (".",), given)
    settings = _settings(session)
    chosen = _chosen(session)
    if given["write"] or given["create_commits"]:
        refuse_wrong(session)
        _refuse_dirty(chosen, given)
    migration = _migrate(chosen, codemods, settings, given)
    for line in session.about_unread():
        click.echo(line, err=True)
    for problem in chosen.problems:
        click.echo(one_line(f"{problem.path}: not migrated, {problem.why}"), err=True)
    proving = given["verify"] and migration.changed
    code = _proved(migration, paths or (".",), given["verify"]) if proving else 0
    commits = _commits(migration, chosen, codemods, settings, given) if not code else []
    proof = _PROOFS[min(code, 2)] if proving else ""
    applied = _applied(migration, commits, session, given, proof, code)
    applied = replace(applied, unread=len(chosen.problems))
    _save(migration, targets, applied)  # what the reports say of the files is true by now
    _print(migration, targets, given, applied)
    return 2 if said_to_be_wrong(session) else code or _exit_code(migration, chosen, given)


_PROOFS = (
    "`verify` ran the program before and after the migration: they agree.",
    "`verify` ran the program before and after the migration: they differ, so nothing was written.",
    "`verify` could not run the program before and after the migration, so nothing was written.",
)
"""What ``--verify`` found, by the exit code of ``verify``."""


def _applied(
    migration: Migration,
    commits: Sequence[Commit],
    session: Session,
    given: Given,
    proof: str,
    code: int,
) -> Applied:
    """Write or commit what was asked for, unless ``--verify`` failed with ``code``."""
    from fsdp2lint.check.fixing import prepare
    from fsdp2lint.migrate.show import Applied

    if code or not migration.changed or not (given["write"] or given["create_commits"]):
        return Applied(proof=proof)
    from fsdp2lint.system.git import GitProblem

    try:
        with Switch() as switch:
            prepare(switch, migration.changed, named=session.paths)
            backup = "" if given["allow_no_git"] else _back_up(switch, migration)
            if given["create_commits"]:
                _commit(switch, migration, commits)
    except (NotWritten, GitProblem) as error:
        raise click.ClickException(str(error)) from error
    return Applied(written=True, backup=backup, proof=proof)


def _back_up(switch: Switch, migration: Migration) -> str:
    """Copy the files that no git repository holds; the folder of the copies, if there are any."""
    from fsdp2lint.migrate.backup import back_up
    from fsdp2lint.system.git import root_of

    files = [old.path for old, _ in migration.changed]
    folders = {os.path.dirname(os.path.abspath(file)) for file in files}
    outside = {folder for folder in folders if root_of(folder) is None}
    alone = [file for file in files if os.path.dirname(os.path.abspath(file)) in outside]
    try:
        return back_up(switch, alone) if alone else ""
    except (OSError, NotWritten) as error:
        raise click.ClickException(
            f"no backup could be made ({error}) and the files are in no git repository:"
            " nothing was written; `--allow-no-git` writes without a backup"
        ) from error


def _commits(
    migration: Migration,
    chosen: Chosen,
    codemods: Sequence[Codemod],
    settings: Settings,
    given: Given,
) -> list[Commit]:
    """What each commit is to hold; nothing where none was asked for."""
    if not given["create_commits"] or not migration.changed:
        return []
    from fsdp2lint.migrate.commits import commits

    def without(staying: Collection[Stuck]) -> Migration:
        return _migrate(chosen, codemods, settings, given, staying)

    apart = migration.models if migration.ledger.complete and not given["interactive"] else ()
    keeps = given["launch"] == "keep"
    return list(commits(migration, apart, without, settings_first=keeps))


def _commit(switch: Switch, migration: Migration, commits: Sequence[Commit]) -> None:
    """Make the commits; the branch, the index and the files change together."""
    from fsdp2lint.migrate.show import message
    from fsdp2lint.system import git
    from fsdp2lint.system.journal import Ref

    root = git.root_of(migration.changed[0][0].path) or "."
    stages = [
        ({new.path: new.encode(new.text) for _, new in one.changed}, message(one))
        for one in commits
        if one.changed
    ]
    made = git.commits(root, stages)
    switch.put(made.index_file, made.raw, lock=f"{made.index_file}.lock")
    switch.move_branch(Ref(root, made.branch, made.old, made.new))


def _choose_checkpoints(given: Given) -> None:
    beside, said = given["side_by_side"], given["checkpoints"]
    if beside and given["launch"] == "torchrun":
        raise click.UsageError(
            "--side-by-side keeps how programs start, which both ways need: leave out `--launch torchrun`"
        )
    if beside and said == "dcp":
        raise click.UsageError(
            "--side-by-side keeps the checkpoints that both ways read: leave out `--checkpoints dcp`"
        )
    given["checkpoints"] = said or ("full" if beside else "dcp")


def _codemods(given: Given) -> Sequence[Codemod]:
    from fsdp2lint.catalogue import knowledge

    known = {one.name: one for one in knowledge.codemods()}
    for name in (*given["only"], *given["skip"]):
        if name not in known:
            raise click.UsageError(
                f"{unknown('codemod', name, tuple(known))} (known: {', '.join(known)})"
            )
    only = given["only"] or tuple(known)
    return [one for name, one in known.items() if name in only and name not in given["skip"]]


def _targets(formats: tuple[str, ...]) -> list[tuple[str, str | None]]:
    from fsdp2lint.migrate.show import FORMATS

    targets: list[tuple[str, str | None]] = []
    for text in formats or ("text",):
        name, _, file = text.partition("=")
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise click.UsageError(f"{unknown('output format', name, FORMATS)} (known: {known})")
        targets.append((name, file or None))
    if sum(file is None for _, file in targets) > 1:
        raise click.UsageError("two reports go to standard output: give all but one a file")
    return targets


def _settings(session: Session) -> Settings:
    """What the configuration of the first path, the options and the dependencies come to."""
    try:
        return session.aimed(session.settings(session.main), session.folder)
    except BadSetting as error:
        raise click.ClickException(str(error)) from error


def _chosen(session: Session) -> Chosen:
    from fsdp2lint.config import resolve
    from fsdp2lint.migrate.files import choose, launch_files

    exclusion = resolve.exclusion(session.main, session.given)
    try:
        return choose(session.files, launch_files(session.paths, exclusion))
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error


def _refuse_dirty(chosen: Chosen, given: Given) -> None:
    from fsdp2lint.system.git import GitProblem, root_of, uncommitted

    try:
        roots = {root_of(source.path) for source in (*chosen.sources, *chosen.texts)} - {None}
        if given["create_commits"] and len(roots) != 1:
            raise click.ClickException("--create-commits needs all files in one git repository")
        if given["allow_dirty"] and not given["create_commits"]:
            return
        dirty = [(root, line) for root in roots for line in uncommitted(root or "")]
    except GitProblem as error:
        raise click.ClickException(str(error)) from error
    if dirty:
        root, first = dirty[0]
        more = " …" if any(one == root for one, _ in dirty[1:]) else ""
        raise click.ClickException(
            f"{root} has uncommitted changes ({first.strip()}{more}): commit them first"
            + ("" if given["create_commits"] else ", or give --allow-dirty")
        )


def _migrate(
    chosen: Chosen,
    codemods: Sequence[Codemod],
    settings: Settings,
    given: Given,
    staying: Collection[Stuck] = (),
) -> Migration:
    from fsdp2lint.ask.program import Options
    from fsdp2lint.migrate.engine import migrate
    from fsdp2lint.migrate.sides import both_ways, fsdp2_sides, is_side_by_side

    options = Options(
        checkpoints=given["checkpoints"],
        async_save=given["async_save"],
        launch=given["launch"],
        target_torch=_release(settings),
        limits=settings.limits,
    )
    whole = not given["only"] and not given["skip"]
    both = next(filter(is_side_by_side, chosen.sources), None)
    if both is not None and (given["interactive"] or not whole):
        raise click.ClickException(
            f"{both.path} holds FSDP1 beside FSDP2: `--interactive`, `--only` and `--skip` would take all of FSDP1 out"
        )
    sources = fsdp2_sides(chosen.sources)
    with _Progress(len(codemods)) as progress:
        made = migrate(
            sources,
            codemods,
            chosen.roots,
            options,
            whole=whole,
            progress=progress.step,
            accept=_Asking(given).accept if given["interactive"] else None,
            texts=chosen.texts,
            hints=settings.hints,
            staying=staying,
        )
    return both_ways(made, chosen.sources, keep=given["side_by_side"])


def _release(settings: Settings) -> Release:
    try:
        return settings.release
    except BadSetting as error:
        raise click.ClickException(str(error)) from error


class _Asking:
    """Shows what a codemod changes and asks whether it should."""

    def __init__(self, given: Given) -> None:
        self.colour = coloured(given["color"])
        self.all = False

    def accept(self, stage: Stage) -> bool:
        from fsdp2lint.check.fixing import diff

        if self.all:
            return True
        for old, new in stage.changed:
            sys.stdout.write(_painted(diff(old, new.text), self.colour))
        answer = click.prompt(
            f"Apply {stage.codemod}?",
            type=click.Choice(["y", "n", "a", "q"]),
            default="y",
            err=True,
        )
        if answer == "q":
            raise click.Abort
        self.all = answer == "a"
        return answer != "n"


class _Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, codemods: int) -> None:
        self._total = codemods + 1
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        if on_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, name: str) -> None:
        """One more codemod begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=name, advance=1)


def _save(
    migration: Migration, targets: Sequence[tuple[str, str | None]], applied: Applied
) -> None:
    from fsdp2lint.migrate.show import render

    for kind, file in targets:
        if file is not None:
            save(file, render(migration, kind, applied=applied))


def _print(
    migration: Migration,
    targets: Sequence[tuple[str, str | None]],
    given: Given,
    applied: Applied,
) -> None:
    from fsdp2lint.check.fixing import diff
    from fsdp2lint.migrate.show import render

    for kind in (kind for kind, file in targets if file is None):
        if kind == "text" and not given["quiet"] and not given["interactive"]:
            for old, new in migration.changed:
                sys.stdout.write(_painted(diff(old, new.text), coloured(given["color"])) + "\n")
        columns = get_terminal_size().columns if sys.stdout.isatty() else 0
        sys.stdout.write(render(migration, kind, columns, applied))


def _painted(text: str, colour: bool) -> str:
    text = no_command(lines(text))
    if not colour:
        return text
    shades = {"+": "green", "-": "red", "@": "cyan"}
    painted = (
        click.style(line, fg=shades[line[0]]) if line[:1] in shades else line
        for line in text.splitlines(keepends=True)
    )
    return "".join(painted)


def _proved(migration: Migration, paths: tuple[str, ...], command: str) -> int:
    from fsdp2lint.migrate.show import render
    from fsdp2lint.prove.migration import NoProof, prove

    if len(paths) > 1 or not os.path.isdir(paths[0]):
        raise click.UsageError("--verify needs one folder to migrate, the one that is run")
    sys.stdout.flush()
    try:
        return prove(command, paths[0], migration.changed, render(migration, "json"))
    except NoProof as error:
        raise click.ClickException(str(error)) from error


def _exit_code(migration: Migration, chosen: Chosen, given: Given) -> int:
    if migration.failures:
        return 2
    if given["check"] and migration.changed:
        return 1
    left = migration.ledger.manual or migration.todos or migration.remaining or chosen.problems
    return int(bool(left) or not migration.ledger.complete)
