"""Code that starts a function of the script in other processes, or at its command line.

Sources: torch/multiprocessing/spawn.py (``spawn`` calls ``fn(i, *args)``), multiprocessing.Process, and the
documentation of fire, typer, absl, click and signal, fastcore/script.py (``call_parse``).
"""

from __future__ import annotations

from functools import cache

import libcst as cst

from fsdp2lint.interpret.annotations import stranger
from fsdp2lint.meanings.attributes import rank
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.paths import is_range
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import fresh, instance, made_by, nothing, setting
from fsdp2lint.model.guards import asked
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    Function,
    Instance,
    Part,
    Partial,
    Round,
    Unknown,
    Value,
)
from fsdp2lint.source.walk import walk

_PROCESSES = ("torch.multiprocessing.Process", "multiprocessing.Process")


@calls("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
def spawn(call: Call) -> Value | None:
    """Runs ``fn(rank, *args)`` in each process."""
    function = call.get(0, "fn")
    if function is None:
        return None
    given = call.get(1, "args")
    args = call.items(given) if isinstance(given, Container) else []
    open_ = isinstance(given, Container) and given.open
    first = rank(call.machine, "global")
    call.machine.call(function, (first, *args), {}, call.site, open_)
    return fresh(call)


@calls("torch_xla.distributed.xla_multiprocessing.spawn", "torch_xla.launch")
def xla_spawn(call: Call) -> Value | None:
    """The same on TPUs."""
    return spawn(call)


@calls("signal.signal")
def handler(call: Call) -> Value | None:
    """``signal.signal(SIGUSR2, handler)``: it may run from here on, and leaves a flag, say, as it does then.

    One that may end the program is left out: nothing happens after it.
    """
    handles = call.get(1, "handler")
    function = handles.function if isinstance(handles, Bound) else handles
    if handles is None or not isinstance(function, Function) or _may_end(function.node):
        return None
    machine, here = call.machine, call.machine.here
    machine.here = here.also(asked(Unknown("a signal came"), True, call.site))
    call.run(handles, machine.unknown(call.site), machine.unknown(call.site))
    machine.here = here
    return fresh(call)


@cache
def _may_end(node: cst.CSTNode) -> bool:
    """Whether a function raises, or calls something by the name of what ends a process."""
    return any(
        isinstance(one, cst.Raise) or (isinstance(one, cst.Name) and one.value in _ENDING)
        for one in walk(node)
    )


_ENDING = ("exit", "_exit", "quit", "kill", "abort", "SystemExit")


@calls(*_PROCESSES)
def process(call: Call) -> Value | None:
    """A process to be started."""
    return instance(call, _PROCESSES[0])


@method("Process")
def process_of_context(call: Call) -> Value | None:
    """``mp.get_context("spawn").Process(target=…)``."""
    return instance(call, _PROCESSES[0]) if "target" in call.keywords else None


@method("start")
def start(call: Call) -> Value | None:
    """``Process.start()`` runs the target; a loop's counter among its arguments is the rank."""
    if not made_by(call.receiver, *_PROCESSES):
        return None
    target = setting(call, call.receiver, "target")
    if not isinstance(target, Function | Bound | Partial):
        return nothing(call)
    given = setting(call, call.receiver, "args")
    args = (
        [counter_as_rank(call, v) for v in call.items(given)]
        if isinstance(given, Container)
        else []
    )
    keywords = setting(call, call.receiver, "kwargs")
    named: dict[str, Value] = {}
    if isinstance(keywords, Container):
        for key, value in call.machine.memory.entries(keywords, call.machine.here):
            if isinstance(key, str) and key[:2] in ("['", '["'):
                named[key[2:-2]] = counter_as_rank(call, value)
    call.machine.call(target, tuple(args), named, call.site)
    return nothing(call)


def counter_as_rank(call: Call, value: Value) -> Value:
    """What a process gets of a value: of the counter of the loop that starts it, its rank."""
    counted = isinstance(value, Part) and isinstance(value.key, Round) and is_range(value.owner)
    return rank(call.machine, "global") if counted else value


@calls("torch.distributed.launcher.elastic_launch", "torch.distributed.launcher.api.elastic_launch")
def elastic_launch(call: Call) -> Value | None:
    """``elastic_launch(config, worker)(*args)`` calls ``worker(*args)`` in each process."""
    worker = call.get(1, "entrypoint")
    return None if worker is None else Partial(worker, (), {}, False, call.site)


@calls("accelerate.notebook_launcher", "accelerate.debug_launcher")
def notebook_launcher(call: Call) -> Value | None:
    """``notebook_launcher(function, args)`` calls ``function(*args)`` in each process."""
    function, given = call.get(0, "function"), call.get(1, "args")
    if function is None:
        return None
    args = call.items(given) if isinstance(given, Container) else []
    call.machine.call(function, tuple(args), {}, call.site, given is not None and not args)
    return nothing(call)


@method("submit")
def submit(call: Call) -> Value | None:
    """``submitit.AutoExecutor(…).submit(function, *args)`` runs the function as a job of the cluster."""
    executor, function = call.receiver, call.get(0)
    if not isinstance(executor, Unknown) or not executor.given_by.startswith("submitit."):
        return None
    if not isinstance(function, Function | Bound | Partial):
        return None
    call.machine.call(function, call.args[1:], call.keywords, call.site, call.open)
    return fresh(call)


@method("join", "terminate")
def join(call: Call) -> Value | None:
    """Waiting for a process changes nothing."""
    return nothing(call) if isinstance(call.receiver, Instance) else None


# -- command lines ----------------------------------------------------------------------------------------------


@calls(
    "fire.Fire",
    "typer.run",
    "cyclopts.run",
    "jsonargparse.CLI",
    "jsonargparse.auto_cli",
    "tyro.cli",
    "absl.app.run",
    "simple_parsing.parse",
)
def command_line(call: Call) -> Value | None:
    """Calls the function (``fire.Fire(main)``) with arguments from the command line."""
    target = call.get(0, "component") or call.get(0)
    settings = _settings(call, target)
    if settings is not None:
        return settings
    if isinstance(target, Container) and call.name == "fire.Fire":  # {"train": train, "test": test}
        for one in call.items(target):
            if isinstance(one, Function | Bound | Partial):
                call.machine.call(one, (), {}, call.site, True)
        return fresh(call)
    if not isinstance(target, Function | Bound | Partial):
        return None
    return call.machine.call(target, (), {}, call.site, True)


@calls("fastcore.script.call_parse", "fastcore.all.call_parse")
def call_parse(call: Call) -> Value | None:
    """``@call_parse()`` decorates as ``@call_parse`` does: ``functions.define`` starts the program."""
    given = call.get(0, "func")
    if given is None:
        return call.machine.external("fastcore.script.call_parse")
    return given


def _settings(call: Call, target: Value | None) -> Value | None:
    """``tyro.cli(Config)`` makes the settings; each field comes from the command line or is that of ``default``."""
    default = call.keywords.get("default")
    if default is not None:
        call.escape(default)
        return default
    return stranger(call.machine, target, "") if isinstance(target, Class) else None


@method("add_command", "add_typer")
def add_command(call: Call) -> Value | None:
    """``cli.add_command(train)`` registers a command as ``@cli.command()`` does."""
    owner, command = call.receiver, call.get(0)
    if owner is None or command is None:
        return None
    commands = call.machine.commands
    added = [command] if isinstance(command, Function) else commands.get(command, [])
    commands.setdefault(owner, []).extend(added)
    return nothing(call)
