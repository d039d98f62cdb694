"""Calls that change nothing of what they are given.

What is listed neither here nor elsewhere lets its arguments escape: nobody can follow it. What known libraries do
to a model is in :mod:`fsdp2lint.meanings.libraries`.
"""

from __future__ import annotations

import builtins

from fsdp2lint.interpret.functions import Generator
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name
from fsdp2lint.meanings.optim import note_use
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import context, fresh, instance, name_of, nothing, same
from fsdp2lint.model.guards import ALWAYS
from fsdp2lint.model.values import Container, Either, External, Instance, Literal, Value

_QUIET = (
    "absl.logging.",
    "PIL.",
    "argparse.",
    "base64.",
    "boto3.",
    "botocore.",
    "collections.",
    "colorama.",
    "csv.",
    "cv2.",
    "datetime.",
    "einops.",
    "enum.",
    "fsspec.",
    "gc.",
    "getpass.",
    "glob.",
    "google.cloud.",
    "hashlib.",
    "huggingface_hub.",
    "inspect.",
    "io.",
    "itertools.",
    "json.",
    "logging.",
    "loguru.",
    "math.",
    "matplotlib.",
    "numpy.",
    "omegaconf.",
    "operator.",
    "os.",
    "packaging.",
    "pandas.",
    "pathlib.",
    "platform.",
    "pprint.",
    "psutil.",
    "random.",
    "re.",
    "requests.",
    "resource.",
    "rich.",
    "scipy.",
    "seaborn.",
    "shutil.",
    "sklearn.",
    "signal.",
    "socket.",
    "statistics.",
    "string.",
    "struct.",
    "subprocess.",
    "sys.",
    "tempfile.",
    "textwrap.",
    "threading.",
    "time.",
    "toml.",
    "torch.backends.",
    "torch.cuda.",
    "torch.profiler.",
    "torch.random.",
    "torch.utils.tensorboard.",
    "torch.xpu.",
    "torch.accelerator.",
    "torch.mps.",
    "torch.version.",
    "tqdm.",
    "traceback.",
    "typing.",
    "unittest.",
    "urllib.",
    "uuid.",
    "warnings.",
    "yaml.",
)
"""Packages whose functions never keep a model."""

_DATA = (
    "torch.utils.data.",
    "torchvision.datasets.",
    "torchvision.transforms.",
    "datasets.",
    "torchdata.",
)
"""Data sets, samplers and loaders: they do not know the model."""

_PURE = frozenset(
    {
        "torch.cuda.is_available",
        "torch.cuda.device_count",
        "torch.cuda.is_bf16_supported",
        "torch.accelerator.is_available",
        "torch.accelerator.current_accelerator",
        "torch.backends.mps.is_available",
        "torch.xpu.is_available",
        "os.path.join",
        "os.path.exists",
        "os.path.isdir",
        "os.path.isfile",
        "os.path.basename",
        "os.path.dirname",
        "os.path.abspath",
        "pathlib.Path",
        "platform.system",
        "os.cpu_count",
        "packaging.version.parse",
        "packaging.version.Version",
    }
)
"""What answers alike when asked alike (of the file system: nearly always within one run)."""


@family(*_QUIET)
def quiet(call: Call) -> Value | None:
    """A new value, or the same one for what is asked in tests; nothing escapes."""
    if call.name in _PURE:
        return same(call)
    return instance(call) if is_class_name(call.name) else fresh(call)


@family(*_DATA)
def data(call: Call) -> Value | None:
    """Objects that give batches."""
    return instance(call) if is_class_name(call.name) else fresh(call)


@calls("builtins.print", "builtins.input", "builtins.open", "builtins.breakpoint", "builtins.help")
def talk(call: Call) -> Value | None:
    """Talks to the outside."""
    return fresh(call)


@calls("contextlib.nullcontext")
def nullcontext(call: Call) -> Value | None:
    """Gives what it was given, so that a ``with`` binds it."""
    return call.get(0, "enter_result") or context(call)


@calls(
    "contextlib.suppress",
    "contextlib.ExitStack",
    "contextlib.redirect_stdout",
    "contextlib.closing",
)
def manager(call: Call) -> Value | None:
    """Contexts that do nothing to what the trace records."""
    return context(call)


@method("enter_context")
def enter_context(call: Call) -> Value | None:
    """``ExitStack.enter_context(manager)``: the manager stays open until the stack is closed."""
    entered = call.get(0, "cm")
    if entered is None or not name_of(call.receiver).startswith("contextlib."):
        return None
    if isinstance(entered, Generator):
        given = call.machine.elements(entered, call.site)
        return given[0] if given else fresh(call)
    _keep_open(call, entered)
    start = call.machine.method(entered, "__enter__")
    return entered if start is None else call.run(start)


def _keep_open(call: Call, entered: Value) -> None:
    """A setting of FSDP1 holds for what comes later, where the stack came by this call."""
    ways = entered.options if isinstance(entered, Either) else ((ALWAYS, entered),)
    if all(
        isinstance(one, Instance)
        and isinstance(one.cls, External)
        and one.cls.name.endswith("FullyShardedDataParallel.state_dict_type")
        for _, one in ways
    ):
        here = call.machine.here
        held = Either(tuple((here.and_(guards), one) for guards, one in ways))
        call.machine.within = (*call.machine.within, held)


_ON_LISTS = (
    "torch.nn.utils.parameters_to_vector",
    "torch.nn.utils.vector_to_parameters",
)
"""With ``torch._foreach_*``: functions on lists of parameters, which may have been taken long ago."""


@family("torch.")
def tensor_function(call: Call) -> Value | None:
    """Functions on lists of parameters use what was taken before; what else torch does, its library says."""
    if call.name.startswith("torch._foreach_") or call.name in _ON_LISTS:
        note_use(call, call.name.rpartition(".")[2], *call.args)
    return None


@family("builtins.")
def error(call: Call) -> Value | None:
    """Exceptions and the other builtin classes keep nothing that trains."""
    kind = getattr(builtins, call.name.removeprefix("builtins."), None)
    return instance(call) if isinstance(kind, type) else None


# -- methods --------------------------------------------------------------------------------------------------


@method(
    "info",
    "debug",
    "warning",
    "warning_once",
    "error",
    "exception",
    "critical",
    "log",
    "add_scalar",
    "add_scalars",
    "add_text",
    "set_postfix",
    "set_description",
    "set_postfix_str",
    "write",
    "flush",
    "print",
)
def say(call: Call) -> Value | None:
    """Loggers, writers and progress bars, whatever their class; not an object of the project or a model."""
    receiver = call.receiver
    if receiver is None or call.is_module(receiver) or isinstance(receiver, Container | Literal):
        return None
    return nothing(call)


@method(
    "mkdir",
    "exists",
    "is_file",
    "is_dir",
    "joinpath",
    "with_suffix",
    "as_posix",
    "resolve",
    "unlink",
)
def path_method(call: Call) -> Value | None:
    """Paths."""
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Instance | Container) or call.is_module(receiver):
        return None
    return receiver.part(("call", call.name, *call.args))


@method("set_epoch")
def data_method(call: Call) -> Value | None:
    """Samplers."""
    receiver = call.receiver
    if receiver is None or call.is_module(receiver):
        return None
    return fresh(call)
