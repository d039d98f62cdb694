"""Files that each machine has for itself: what a script finds there, the ranks of other machines may not."""

from __future__ import annotations

from fsdp2lint.api import Called, Either, Literal, Part, Trace, Value, once, options

_ASKED = (
    *(f"os.path.{name}" for name in ("exists", "isfile", "isdir", "getmtime", "getsize")),
    "os.listdir",
    "os.scandir",
    "glob.glob",
)
_ASKED_OF_A_PATH = (".exists", ".is_file", ".is_dir", ".glob", ".iterdir")
_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
_VARIABLES = ("os.environ['TMPDIR']", "os.environ['SLURM_TMPDIR']")
_JOINING = ("os.path.join", "os.path.expandvars", "os.fspath", "pathlib.Path", "builtins.str")
_TEMPORARY = ("tempfile.gettempdir", "tempfile.mkdtemp")


@once
def local_files(trace: Trace) -> frozenset[Value]:
    """What calls find in folders that surely are this machine's own."""
    asked = [(called.result, called.argument(0, "path")) for called in trace.calls(*_ASKED)]
    asked += [(called.result, called.receiver) for called in trace.calls(*_ASKED_OF_A_PATH)]
    return frozenset(found for found, path in asked if path is not None and _lies(trace, path))


@once
def _made(trace: Trace) -> dict[Value, Called]:
    return {c.result: c for c in trace.calls(*_JOINING, *_TEMPORARY)}


def _lies(trace: Trace, path: Value) -> bool:
    """Whether a path surely lies in a folder of this machine."""
    if isinstance(path, Either):
        return all(_lies(trace, one) for one in options(path))
    if isinstance(path, Literal):
        return _begins(str(path.value))
    called = _made(trace).get(path)
    if called is not None and called.name in _TEMPORARY:
        return not (called.keywords or called.arguments)  # `mkdtemp(dir=…)` lies anywhere
    if called is not None:
        return bool(called.arguments) and _lies(trace, called.arguments[0])
    if not isinstance(path, Part) or path.words() in _VARIABLES:
        return isinstance(path, Part)
    how, given = path.operation, path.operands
    if how == "format" and given and not str(given[0]).startswith("{}"):
        return _begins(str(given[0]))
    return how in ("/", "+", "format") and _lies(trace, path.owner)


def _begins(path: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in _FOLDERS)
