"""Reads from torch's wheels what each release offers, and writes ``history.json``.

    python -m fsdp2lint.torch_api.collect 2.6 2.7 … 2.15

pip downloads a wheel of each release (none is installed, nothing of torch is run) and griffe reads the
sources in it. Needs pip, an index that pip knows, and the extra ``[facts]``. A new release is one run with
one more number.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TypedDict

import click
import griffe

from fsdp2lint.torch_api import HISTORY

PACKAGES = (
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor",
    "torch.distributed.device_mesh",
    "torch.distributed._composable",
    "torch.distributed._tensor",
    "torch.distributed.algorithms._checkpoint",
    "torch.nn.utils.clip_grad",
)
"""What is read. The private ones among them are old homes of public names, or used as if they were public."""

PLATFORMS = ("macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_14_0_arm64")
"""The platforms with the smallest wheels; the Python sources are the same on all."""


class Offered(TypedDict, total=False):
    """A name in ``history.json``; ``parameters`` has the text of each signature by its first release."""

    since: str
    until: str
    parameters: dict[str, str]
    deprecated: str


class Found(TypedDict):
    """A name in one release; ``opaque`` is one whose definition is not in the sources, as in C++."""

    parameters: str | None
    deprecated: bool
    opaque: bool


@click.command(help=__doc__)
@click.argument("releases", nargs=-1, required=True)
def main(releases: tuple[str, ...]) -> None:
    """Collects the releases and writes the data file."""
    found: dict[str, dict[str, Found]] = {}
    for release in sorted(releases, key=_numbers):
        with tempfile.TemporaryDirectory() as folder:
            wheel = downloaded(release, Path(folder))
            click.echo(f"{release}: {wheel.name}", err=True)
            found[release] = offered(unpacked(wheel, Path(folder) / "sources"))
    HISTORY.write_text(text(found), encoding="utf-8")
    click.echo(f"wrote {HISTORY.name}: {len(found)} releases", err=True)


def downloaded(release: str, folder: Path) -> Path:
    """The wheel of the newest patch of a release, downloaded by pip.

    Raises:
        click.ClickException: pip does not find one; its words are in the message.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}"]
    command += [f"torch=={release}.*", "--only-binary=:all:", "--python-version=3.11"]
    command += [f"--platform={one}" for one in PLATFORMS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("torch-*.whl"))
    if done.returncode or not wheels:
        raise click.ClickException(f"torch {release}: {done.stderr.strip()}")
    return wheels[0]


def unpacked(wheel: Path, folder: Path) -> Path:
    """The Python sources of the packages that are read, below ``folder``."""
    wanted = [f"{name.replace('.', '/')}{end}" for name in PACKAGES for end in (".py", "/*.py")]
    with zipfile.ZipFile(wheel) as archive:
        members = [n for n in archive.namelist() if any(fnmatch(n, one) for one in wanted)]
        archive.extractall(folder, members)
    return folder


def offered(folder: Path) -> dict[str, Found]:
    """The public names of the packages below ``folder``, dotted, where users import them."""
    loader = griffe.GriffeLoader(search_paths=[folder], allow_inspection=False)
    found: dict[str, Found] = {}
    for package in PACKAGES:
        path = folder / package.replace(".", "/")
        if not (path.is_dir() or path.with_suffix(".py").exists()):
            continue  # a release without it
        root = loader.load(package, submodules=True)
        if isinstance(root, griffe.Module):
            found.update(_module(root))
    return found


def text(found: Mapping[str, Mapping[str, Found]]) -> str:
    """The data file: each name with its releases; a signature is at the first release that has it."""
    names: dict[str, Offered] = {}
    opaque = {name for offers in found.values() for name, one in offers.items() if one["opaque"]}
    for release, offers in found.items():
        for name, one in offers.items():
            if name.rpartition(".")[0] in opaque:
                continue  # what it has is not seen in every release
            known = names.setdefault(name, {"since": release, "until": release})
            known["until"] = release
            if one["deprecated"]:
                known.setdefault("deprecated", release)
            if one["parameters"] is not None:
                signatures = known.setdefault("parameters", {})
                if one["parameters"] != next(reversed(signatures.values()), None):
                    signatures[release] = one["parameters"]
    whole = {"releases": list(found), "names": dict(sorted(names.items()))}
    return json.dumps(whole, indent=1) + "\n"


def _module(module: griffe.Module) -> Iterator[tuple[str, Found]]:
    """The public names of a module and of the public modules in it."""
    for name, member in module.members.items():
        if isinstance(member, griffe.Module):
            if not name.startswith("_"):
                yield from _module(member)
        elif _offers(module, name, member):
            yield from _object(f"{module.path}.{name}", _target(member))


def _offers(module: griffe.Module, name: str, member: griffe.Object | griffe.Alias) -> bool:
    """Whether a name is for users: in ``__all__``, or without one defined here or gathered by the package."""
    if module.exports is not None:
        return name in module.exports
    if name.startswith("_"):
        return False
    if isinstance(member, griffe.Alias):
        return module.is_init_module and member.target_path.startswith(PACKAGES)
    return True


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """What a name stands for; None for what is made outside the packages, as ``Placement`` is in C++."""
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.GriffeError:
        return None


def _object(name: str, target: griffe.Object | None) -> Iterator[tuple[str, Found]]:
    if not isinstance(target, griffe.Class | griffe.Function):
        yield name, {"parameters": None, "deprecated": False, "opaque": target is None}
        return
    signature, deprecated = _parameters(target), _deprecated(target)
    yield name, {"parameters": signature, "deprecated": deprecated, "opaque": False}
    if isinstance(target, griffe.Class):
        for attribute, member in target.members.items():
            if isinstance(member, griffe.Function) and not attribute.startswith("_"):
                yield from _object(f"{name}.{attribute}", member)


def _parameters(target: griffe.Class | griffe.Function) -> str | None:
    """The names of the parameters, a variadic one with its stars; None when the class has no signature."""
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }
    try:
        own = list(target.parameters)
    except griffe.GriffeError:
        return None
    if isinstance(target, griffe.Class) and not own:
        return None
    names = [f"{stars.get(p.kind, '')}{p.name}" for p in own if p.kind is not None]
    return " ".join(names[1:] if names[:1] in (["self"], ["cls"]) else names)


def _deprecated(target: griffe.Class | griffe.Function) -> bool:
    return any(str(one.value).startswith("deprecated(") for one in target.decorators)


def _numbers(release: str) -> list[int]:
    try:
        return [int(part) for part in release.split(".")]
    except ValueError as error:
        raise click.BadParameter(f"`{release}` is not a release such as 2.8") from error


if __name__ == "__main__":
    main()
