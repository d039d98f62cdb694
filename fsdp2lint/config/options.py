"""What may be in a configuration file: its keys, their types, and what they mean."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fsdp2lint.config.meant import MEANT

Selectors = list[str]
Language = Literal["python", "markdown"]
Names = list[Annotated[str, Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]]
"""Dotted names of functions."""


class Knowledge(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, omit_defaults=True):
    """What the code of the project cannot tell: dotted names of functions, by what they do."""

    shards: Annotated[
        Names,
        Meta(description="Functions that shard the model passed to them, and return it."),
    ] = []
    optimizers: Annotated[
        Names,
        Meta(
            description="Functions that build an optimizer over the parameters or the model passed "
            "to them."
        ),
    ] = []
    rank_guards: Annotated[
        Names,
        Meta(description="Functions that are true on the first rank only."),
    ] = []
    collectives: Annotated[Names, Meta(description="Functions that every rank must call.")] = []
    models: Annotated[Names, Meta(description="Functions that build a model and return it.")] = []


class Options(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, omit_defaults=True):
    """The keys of a configuration file; one that is left out is UNSET."""

    extend: Annotated[
        str | UnsetType,
        Meta(description="Another configuration file to inherit keys from."),
    ] = UNSET
    select: Annotated[
        Selectors | UnsetType,
        Meta(description=MEANT["select"]),
    ] = UNSET
    extend_select: Annotated[Selectors | UnsetType, Meta(description=MEANT["extend-select"])] = (
        UNSET
    )
    ignore: Annotated[Selectors | UnsetType, Meta(description=MEANT["ignore"])] = UNSET
    extend_ignore: Annotated[
        Selectors | UnsetType,
        Meta(description="Rules to leave out in addition to those of an extended file."),
    ] = UNSET
    per_file_ignores: Annotated[
        dict[str, Selectors] | UnsetType,
        Meta(description=MEANT["per-file-ignores"]),
    ] = UNSET
    preview: Annotated[bool | UnsetType, Meta(description=MEANT["preview"])] = UNSET
    fixable: Annotated[
        Selectors | UnsetType,
        Meta(description=MEANT["fixable"]),
    ] = UNSET
    unfixable: Annotated[
        Selectors | UnsetType,
        Meta(description=MEANT["unfixable"]),
    ] = UNSET
    target_torch: Annotated[
        str | UnsetType,
        Meta(description=MEANT["target-torch"]),
    ] = UNSET
    exclude: Annotated[
        list[str] | UnsetType,
        Meta(description=MEANT["exclude"]),
    ] = UNSET
    extend_exclude: Annotated[
        list[str] | UnsetType,
        Meta(description=MEANT["extend-exclude"]),
    ] = UNSET
    extension: Annotated[
        dict[str, Language] | UnsetType,
        Meta(description=MEANT["extension"]),
    ] = UNSET
    respect_gitignore: Annotated[bool | UnsetType, Meta(description=MEANT["respect-gitignore"])] = (
        UNSET
    )
    force_exclude: Annotated[
        bool | UnsetType,
        Meta(description=MEANT["force-exclude"]),
    ] = UNSET
    fix: Annotated[bool | UnsetType, Meta(description=MEANT["fix"])] = UNSET
    unsafe_fixes: Annotated[
        bool | UnsetType,
        Meta(description=MEANT["unsafe-fixes"]),
    ] = UNSET
    show_fixes: Annotated[bool | UnsetType, Meta(description=MEANT["show-fixes"])] = UNSET
    min_severity: Annotated[
        Literal["error", "warning", "info"] | UnsetType,
        Meta(description=MEANT["min-severity"]),
    ] = UNSET
    output_format: Annotated[
        str | UnsetType,
        Meta(description=MEANT["output-format"]),
    ] = UNSET
    baseline: Annotated[
        str | UnsetType,
        Meta(description=MEANT["baseline"]),
    ] = UNSET
    cache_dir: Annotated[
        str | UnsetType,
        Meta(description=MEANT["cache-dir"]),
    ] = UNSET
    plugins: Annotated[
        list[str] | UnsetType,
        Meta(
            description="Rules from installed packages: names of entry points `fsdp2lint.rules`, or "
            "of modules; `*` for every entry point."
        ),
    ] = UNSET
    knowledge: Annotated[
        Knowledge | UnsetType,
        Meta(description="Functions of the project that shard, build an optimizer, …"),
    ] = UNSET


class Wrong(NamedTuple):
    """What does not exist, or holds something else than it may; ``path`` leads to it."""

    said: str
    path: tuple[str, ...]


def checked(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Wrong]]:
    """What is right in a table, and what is not: one entry that is wrong costs none of the others."""
    wrong: list[Wrong] = []
    kept: dict[str, Any] = {}
    for key, value in _known(given, Options, (), wrong):
        if key == "knowledge" and isinstance(value, Mapping):
            value = dict(_known(value, Knowledge, (key,), wrong))
        part = _right(value, partial(_entry, key), (key,), wrong)
        if part is not UNSET:
            kept[key] = part
    return kept, wrong


def _right(
    value: Any,
    whole: Callable[[Any], Any],
    path: tuple[str, ...],
    wrong: list[Wrong],
    number: str = "",
) -> Any:
    """What may be at a path, as the member with a number, of a value that is there; UNSET for nothing."""
    error = _error(whole(value)) or _nul(value)
    if error is None:
        return value
    if isinstance(value, list) and _error(whole([])) is None:
        members = (
            _right(one, lambda it: whole([it]), path, wrong, f"{number}[{n}]")
            for n, one in enumerate(value)
        )
        return [one for one in members if one is not UNSET]
    if isinstance(value, Mapping) and _error(whole({})) is None:
        entries = [
            (key, _right(one, _chain(whole, partial(_entry, key)), (*path, key), wrong))
            for key, one in value.items()
            if not _nul(key)
        ]
        if len(entries) < len(value):
            wrong.append(Wrong(f"`{_spelled(path)}{number}`: {_NUL}", path))
        return {key: one for key, one in entries if one is not UNSET}
    wrong.append(Wrong(f"`{_spelled(path)}{number}`: {error}", path))
    return UNSET


_NUL = "a path or a name cannot contain NUL"


def _nul(value: Any) -> str | None:
    """What is wrong with a value that no system call takes."""
    if isinstance(value, Mapping):
        return next((_NUL for pair in value.items() if any(map(_nul, pair))), None)
    if isinstance(value, list):
        return next((_NUL for one in value if _nul(one)), None)
    return _NUL if isinstance(value, str) and "\0" in value else None


def _entry(key: str, value: Any) -> dict[str, Any]:
    return {key: value}


def _chain(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: outer(inner(value))


def _error(given: Mapping[str, Any]) -> str | None:
    try:
        msgspec.convert(given, Options, strict=True)
    except msgspec.ValidationError as error:
        said = str(error).partition(" - at `$")[0]
        if "matching regex" in said:
            said = "expected a dotted name such as `package.module.function`"
        return said[0].lower() + said[1:]
    return None


def _spelled(path: tuple[str, ...]) -> str:
    """A path as it is said: entries of a table whose keys are free are in quotes."""
    key, *inner = path
    if not inner:
        return key
    return ".".join(path) if key == "knowledge" else f'{key}."{inner[0]}"'


def described() -> Iterator[tuple[str, str, str]]:
    """Each key with the words for its type and its meaning, in the order of the schema."""
    for struct, prefix in ((Options, ""), (Knowledge, "knowledge.")):
        hints = get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            hint = hints[field.name]
            meant = next(m for m in hint.__metadata__ if isinstance(m, Meta))
            kinds = [k for k in _alternatives(hint.__origin__) if k is not UnsetType]
            yield (
                prefix + field.encode_name,
                " or ".join(map(_words, kinds)),
                meant.description or "",
            )


def schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fsdp2lint",
        **msgspec.json.schema(Options),
    }


def _known(
    given: Mapping[str, Any],
    struct: type[msgspec.Struct],
    path: tuple[str, ...],
    wrong: list[Wrong],
) -> Iterator[tuple[str, Any]]:
    """The entries of a table whose keys exist."""
    names = [f.encode_name for f in msgspec.structs.fields(struct)]
    for key, value in given.items():
        if key in names:
            yield key, value
            continue
        close = difflib.get_close_matches(key.replace("_", "-"), names, n=1)
        hint = f", did you mean `{close[0]}`?" if close else ""
        wrong.append(Wrong(f"unknown key `{'.'.join((*path, key))}`{hint}", (*path, key)))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f'"{value}"' for value in inner)
    if origin is list:
        return "list of strings"
    if origin is dict:
        return "table of lists of strings" if get_origin(inner[1]) is list else "table of strings"
    return {str: "string", bool: "true or false"}.get(kind, "table")
