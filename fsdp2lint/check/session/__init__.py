"""A run as the user asks for it: paths and options in, files grouped by their configuration, one report out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fsdp2lint.check import runner
from fsdp2lint.check.context import Means
from fsdp2lint.check.report import Report, merged
from fsdp2lint.check.runner import Batch, Mended
from fsdp2lint.config import resolve
from fsdp2lint.config.files import INLINE, Config, Configs, Fault, inline, without
from fsdp2lint.config.settings import BadSetting, Settings
from fsdp2lint.system.discover import discover, is_python
from fsdp2lint.system.files import SETTINGS, TEXTS
from fsdp2lint.system.plain import one_line

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.config.target import Targets
    from fsdp2lint.frameworks.launches import Launches
    from fsdp2lint.source.prefilter import Content
    from fsdp2lint.system.files import Files


class Session:
    """``paths`` under the options ``given`` on the command line (names of the configuration's keys).

    ``inline`` is ``KEY=VALUE`` in the words of the configuration, ``listed`` the files to look at when they
    were found in another way than by walking (by git).
    """

    def __init__(
        self,
        paths: Sequence[str],
        given: Mapping[str, Any] | None = None,
        config_file: str | None = None,
        isolated: bool = False,
        inline: Sequence[str] = (),
        means: Means | None = None,
        listed: Sequence[str] | None = None,
    ) -> None:
        self.paths = paths
        self.given = given or {}
        self.config_file = config_file
        self.isolated = isolated
        self.inline = inline
        self.means = means or Means()
        self.listed = listed
        self.unread: list[OSError] = []
        """Of the folders below the paths that could not be read."""
        self._noted: list[Fault] = []
        self._whole = False
        """Whether all files are looked at, not one text of an editor: then the launches around them count."""

    def using(self, means: Means) -> Session:
        """The same, done in another way."""
        rest = (self.config_file, self.isolated, self.inline)
        other = Session(self.paths, self.given, *rest, means, self.listed)
        other._configs, other._noted = self._configs, self._noted
        return other

    @property
    def main(self) -> Config:
        """The configuration that counts for the run as a whole: that of the first path."""
        return self.config_of(self.folder)

    @property
    def faults(self) -> list[Fault]:
        """What files of settings say that means nothing, as far as they were read; the run goes on without it."""
        return list(dict.fromkeys((*self._configs.faults(), *self._noted)))

    def note(self, fault: Fault) -> None:
        """One more of them.

        Raises:
            BadSetting: it was said on the command line.
        """
        if fault.at == INLINE:
            raise BadSetting(str(fault))
        self._noted.append(fault)

    @property
    def folder(self) -> str:
        """The folder of the first path."""
        first = self.paths[0] if self.paths else "."
        return first if os.path.isdir(first) else os.path.dirname(first) or "."

    @cached_property
    def files(self) -> list[str]:
        """The files to look at.

        Raises:
            NoSuchPath: a path does not exist.
        """
        inside = self._exclusion_in
        if self.listed is None:
            found = discover(self.paths, inside("."), inside, self.unread)
        else:
            found = [
                path
                for path in self.listed
                if not inside(os.path.dirname(path) or ".").covers_named(path)
            ]
        return [
            path
            for path in found
            if not path.endswith(TEXTS) or self._is_named(path) or self._asks(path)
        ]

    def beside_files(self) -> list[Diagnostic]:
        """A finding for each of the :attr:`faults`, and for each folder that could not be read."""
        if not self.faults and not self.unread:
            return []
        from fsdp2lint.catalogue.toolrules import UNANALYSABLE, WRONG_SETTING
        from fsdp2lint.check.diagnostics import Diagnostic, Place
        from fsdp2lint.source.source import Range, Source

        found = []
        for (file, line), said in self.faults:
            at = Range(max(line, 1), 1, max(line, 1), 1)
            # without its text: the file may be a link to one that nobody else is to read
            found.append(Diagnostic(WRONG_SETTING, said, Place(Source(file, ""), at)))
        for error in self.unread:
            place = Place(Source(str(error.filename), ""), Range(1, 1, 1, 1))
            said = f"this folder could not be read: {error.strerror}"
            found.append(Diagnostic(UNANALYSABLE, said, place))
        return found

    def about_unread(self) -> Iterator[str]:
        """A line about the folders that could not be read, if there are any: silence would look like approval."""
        if self.unread:
            first, count = self.unread[0], len(self.unread)
            more = "" if count == 1 else f", nor {count - 1} more"
            yield one_line(
                f"{first.filename}: this folder could not be read: {first.strerror}{more}"
            )

    def _is_named(self, path: str) -> bool:
        return path in map(os.path.normpath, self.paths)

    def _asks(self, path: str) -> bool:
        """Whether a file of settings or commands asks for FSDP."""
        try:
            raw = self.means.files(digests=False).read(os.path.abspath(path))
        except OSError:
            return False
        from fsdp2lint.frameworks.document import may_ask

        if not may_ask(raw, path):
            return False
        from fsdp2lint.frameworks.text import asks
        from fsdp2lint.source.reading import decode
        from fsdp2lint.source.source import Unreadable

        try:
            return asks(decode(raw, path))
        except Unreadable:
            return False

    @property
    def covered(self) -> list[str]:
        """The folders below which every file was passed."""
        folders = self.paths if self.listed is None else ()
        return [os.path.abspath(path) for path in folders if os.path.isdir(path)]

    def unsure(self, wanted: Iterable[str]) -> frozenset[str]:
        """Those of the files (absolute) into which runs lead that begin in files that were not passed."""
        from fsdp2lint.check.outside import unsure

        passed = set(map(os.path.abspath, self.files))
        return unsure(wanted, passed, self.covered, self.means.files(digests=False))

    def looks_at(self, path: str) -> bool:
        """Whether a file is of a kind that is looked for in folders, or is one of the paths itself."""
        if path in map(os.path.normpath, self.paths):
            return True
        return path.endswith(self._exclusion_in(os.path.dirname(path) or ".").suffixes)

    def option(self, key: str, default: Any = None) -> Any:
        """The value of a key that counts for the whole run."""
        return resolve.value(key, self.main, self.given, default)

    def config_of(self, folder: str) -> Config:
        """The configuration of a folder, with what was said on the command line in its words."""
        config = self._configs.of(folder)
        for text in self.inline:
            config = inline(text, config)
        return config

    def groups(self) -> Iterator[tuple[Config, list[str]]]:
        """The files by the configuration that counts for them."""
        groups: dict[str | None, tuple[Config, list[str]]] = {}
        by_folder: dict[str, Config] = {}
        for path in self.files:
            folder = os.path.dirname(path)
            config = by_folder.get(folder)
            if config is None:
                config = by_folder[folder] = self.config_of(folder or ".")
            groups.setdefault(config.file, (config, []))[1].append(path)
        yield from groups.values()

    def settings(self, config: Config) -> Settings:
        """The settings of a group, the torch release left open when nobody names it."""
        return self._sound(config)[1]

    def _sound(self, config: Config) -> tuple[Config, Settings]:
        """A configuration without the entries that mean nothing, and the settings of it."""
        while True:
            try:
                settings = resolve.settings(config, self.given)
                settings.target  # noqa: B018  a wrong one is found here
                break
            except BadSetting as error:
                config = self._without(config, error)
        if self._whole and self.launches is not None:
            hints = settings.hints._replace(launched=self.launches.scripts)
            settings = settings._replace(hints=hints)
        return config, settings

    def _without(self, config: Config, error: BadSetting) -> Config:
        """A configuration without what an error is about.

        Raises:
            BadSetting: the command line said it.
        """
        key, fault = resolve.blamed(error, config, self.given)
        self._configs.leave_out(config.file, key, error.about, fault)
        return without(config, key, error.about, fault)

    def chosen(self, config: Config, settings: Settings) -> tuple[Rule, ...]:
        """The rules that run under the settings of a configuration."""
        from fsdp2lint.catalogue import knowledge

        while True:
            try:
                return settings.chosen(knowledge.rules(settings.plugins))
            except BadSetting as error:
                config, sound = self._sound(self._without(config, error))
                settings = sound._replace(target_torch=settings.target_torch)

    @cached_property
    def launches(self) -> Launches | None:
        """How settings or commands around the scripts launch them with FSDP; None where nothing does."""
        files = self.means.files(digests=False)
        settings = [path for path in self.files if path.endswith(SETTINGS)]
        scripts = [path for path in self.files if path.endswith(".py")]
        if not settings and not self._may_be_launched(scripts, files):
            return None
        from fsdp2lint.frameworks.launches import launched

        return launched(scripts, settings, self.covered, files)

    def _may_be_launched(self, scripts: Sequence[str], files: Files) -> bool:
        """Whether one script was passed, with what accelerate shards, or folders in which a command asks for FSDP."""
        if self.covered:
            from fsdp2lint.frameworks import commands

            return bool(scripts) and commands.may_ask(commands.below(self.covered), files)
        if len(scripts) != 1:
            return False
        try:
            raw = files.read(os.path.abspath(scripts[0]))
        except OSError:
            return False
        return b"Accelerator(" in raw or b"Trainer" in raw

    def aimed(self, settings: Settings, folder: str) -> Settings:
        """The settings with the torch release that the project around a folder asks for."""
        return resolve.aimed(settings, folder, self._targets)

    def check(self) -> Report:
        """What is wrong in the files.

        Raises:
            BadSetting: a selector or a version on the command line is wrong.
            NoSuchPath: a path does not exist.
        """
        return self._seen(merged(mended.report for mended in self._each(fix=False, unsafe=False)))

    def mend(self, *, unsafe: bool) -> Mended:
        """The same, with the fixes made in memory.

        Raises:
            BadSetting: a selector or a version on the command line is wrong.
            NoSuchPath: a path does not exist.
        """
        mended = _together(list(self._each(fix=True, unsafe=unsafe)))
        return mended._replace(report=self._seen(mended.report))

    def of_text(self, raw: bytes, path: str, *, fix: bool, unsafe: bool) -> Mended:
        """The same for one text that would be at ``path``."""
        folder = os.path.dirname(path) or "."
        exclusion = self._exclusion_in(folder)
        if exclusion.force and exclusion.covers_named(path):
            return Mended(Report())
        config = self.config_of(folder)
        if self.is_document(path):
            every = list(self._document(config, path, raw, fix=fix, unsafe=unsafe))
            return _together(every)
        instead = {**self.means.instead, os.path.abspath(path): raw}
        there = self.using(self.means._replace(instead=instead))
        hints = self.settings(config).hints.marks
        batch = Batch.of_text(raw, path, hints)._replace(covered=self.covered)
        return there._one(config, batch, fix=fix, unsafe=unsafe)

    def is_document(self, path: str) -> bool:
        """Whether a file is a document with blocks of Python in it."""
        config = self.config_of(os.path.dirname(path) or ".")
        return path.endswith(resolve.documents(config, self.given))

    def _each(self, *, fix: bool, unsafe: bool) -> Iterator[Mended]:
        self._whole = True
        named = {os.path.normpath(path) for path in self.paths if os.path.isfile(path)}
        named.update(self.listed or ())
        for config, found in self.groups():
            ends = resolve.documents(config, self.given)
            unchecked = [path for path in found if path in named and not self._is_read(path, ends)]
            files = [path for path in found if path not in unchecked] if unchecked else found
            documents = [path for path in files if path.endswith(ends)]
            python = [path for path in files if path not in documents] if documents else files
            mine = [path for path in python if path in named]
            hints = self.settings(config).hints.marks
            batch = Batch.of_files(python, mine, self.means, hints)._replace(covered=self.covered)
            yield self._one(config, batch, fix=fix, unsafe=unsafe)
            for path, raw in self.means.sift(documents):
                yield from self._document(config, path, raw, fix=fix, unsafe=unsafe)
            yield Mended(Report(files=len(documents), unchecked=unchecked))
        if self.launches is not None and self.launches.alone:
            yield Mended(Report(alone=[self._shown(path) for path in self.launches.alone]))

    def _shown(self, path: str) -> str:
        """An absolute path as it was passed, or from the current folder."""
        passed = next((one for one in self.files if os.path.abspath(one) == path), None)
        return one_line(passed or os.path.relpath(path))

    def _seen(self, report: Report) -> Report:
        """The report without what was found elsewhere in files that are left out on purpose."""
        if not report.elsewhere:
            return report
        below = tuple(os.path.join(folder, "") for folder in self.covered)

        def left_out(path: str) -> bool:
            inside = os.path.abspath(path).startswith(below)
            return inside or self._exclusion_in(os.path.dirname(path) or ".").covers_named(path)

        elsewhere = [d for d in report.elsewhere if not left_out(d.place.source.path)]
        return report.but(elsewhere=elsewhere)

    def _is_read(self, path: str, documents: tuple[str, ...]) -> bool:
        """Whether a file that the user named is Python or a document."""
        if path.endswith(TEXTS):
            return self._asks(path)
        suffixes = self._exclusion_in(os.path.dirname(path) or ".").suffixes
        if path.endswith((*suffixes, *documents)):
            return True
        try:
            return is_python(path, self.means.files(digests=False).read(os.path.abspath(path)))
        except OSError:
            return True  # the error is reported

    def _document(
        self, config: Config, path: str, raw: Content, *, fix: bool, unsafe: bool
    ) -> Iterator[Mended]:
        """The blocks of a document; one that cannot be read or decoded is reported as a file of Python is."""
        from fsdp2lint.check.session.snippets import checked
        from fsdp2lint.source.reading import decode
        from fsdp2lint.source.source import Unreadable

        def run(batch: Batch) -> Mended:
            return self._one(config, batch, fix=fix, unsafe=unsafe)

        try:
            source = decode(raw, path) if isinstance(raw, bytes) else None
        except Unreadable:
            source = None
        if source is None:
            yield run(Batch([path], [(path, raw)]))
        else:
            yield from checked(source, run)

    def _one(self, config: Config, batch: Batch, *, fix: bool, unsafe: bool) -> Mended:
        """The files of a configuration; nothing is fixed under one that is wrong: it may have forbidden it."""
        means = self.means._replace(aim=self.aimed)
        try:
            while True:
                config, settings = self._sound(config)
                try:
                    if fix and not config.faults:
                        return runner.mend(batch, settings, means, unsafe=unsafe)
                    return Mended(runner.check(batch, settings, means))
                except BadSetting as error:
                    config = self._without(config, error)
        finally:
            if self.means.progress is not None:
                self.means.progress("")

    @cached_property
    def _configs(self) -> Configs:
        return Configs(self.config_file, isolated=self.isolated)

    @cached_property
    def _targets(self) -> Targets:
        from fsdp2lint.config.target import Targets

        return Targets()

    def _exclusion_in(self, folder: str) -> Any:
        exclusion = resolve.exclusion(self.config_of(folder), self.given)
        if self.listed is not None:
            exclusion.force = True
        return exclusion


def _together(every: Sequence[Mended]) -> Mended:
    changed = [pair for mended in every for pair in mended.changed]
    diff = "".join(mended.diff for mended in every)
    return Mended(merged([mended.report for mended in every]), changed, diff)
