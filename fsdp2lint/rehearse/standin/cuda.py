"""``torch.cuda``: one device for each rank that does nothing and has used no memory."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch

from fsdp2lint.rehearse.standin.replace import (
    Counted,
    Function,
    for_scripts,
    local_rank,
    local_world,
)

MEMORY = 80 * 1024**3

_NOTHING = (
    "set_device synchronize empty_cache ipc_collect init manual_seed manual_seed_all seed seed_all "
    "reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats "
    "reset_max_memory_cached set_per_process_memory_fraction set_rng_state set_rng_state_all "
    "set_stream cudart set_sync_debug_mode change_current_allocator check_error caching_allocator_delete "
    "reset_peak_host_memory_stats reset_accumulated_host_memory_stats"
).split()
_ZERO = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
    "max_memory_cached utilization temperature power_draw clock_rate memory_usage device_memory_used "
    "get_sync_debug_mode caching_allocator_alloc current_blas_handle"
).split()


class Stream:
    """A stream on which everything is done at once."""

    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_stream(self, stream: object) -> None:
        """Nothing is pending."""

    def wait_event(self, event: object) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """Nothing is pending."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has happened."""
        event = event or Event()
        event.record()
        return event


class Event:
    """An event that has happened when it is recorded."""

    def __init__(self, *_: object, **__: object) -> None:
        self._at = time.perf_counter()

    def record(self, stream: object = None) -> None:
        """Happen now."""
        self._at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds up to another event."""
        return (end._at - self._at) * 1000

    def wait(self, stream: object = None) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """It has happened."""
        return True


def install(counted: Counted) -> None:
    """Replace ``torch.cuda`` for scripts; PyTorch's own code still hears that there is none."""
    cuda: Any = torch.cuda
    answers: dict[str, Function] = dict.fromkeys(_NOTHING, lambda *_, **__: None)
    answers |= dict.fromkeys(_ZERO, lambda *_, **__: 0)
    answers |= {
        "is_available": lambda: _counting(counted, "torch.cuda.is_available()"),
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": local_world,
        "current_device": local_rank,
        "is_bf16_supported": lambda *_, **__: True,
        "can_device_access_peer": lambda *_: True,
        "get_device_name": lambda *_: "CPU stand-in",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": _properties,
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "memory_stats": lambda *_: defaultdict(int),
        "host_memory_stats": lambda *_: defaultdict(int),
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "get_allocator_backend": lambda: "native",
        "get_per_process_memory_fraction": lambda *_: 1.0,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
    }
    for name, answer in answers.items():
        for_scripts(cuda, name, answer)
        for part in (cuda.memory, cuda.random):  # by which some import them
            if hasattr(part, name):
                for_scripts(part, name, answer)
    for_scripts(cuda, "current_stream", lambda *_: Stream())
    for_scripts(cuda, "default_stream", lambda *_: Stream())
    for_scripts(cuda, "stream", lambda stream: stream or contextlib.nullcontext())
    for_scripts(cuda, "device", lambda *_: contextlib.nullcontext())
    cuda.Stream, cuda.Event = Stream, Event
    keep: Any = torch.random.fork_rng
    for_scripts(torch.random, "fork_rng", lambda devices=None, enabled=True, **_: keep((), enabled))
    for_scripts(cuda.nccl, "version", lambda: (2, 27, 0))
    for name in ("_record_memory_history", "_dump_snapshot", "_snapshot"):
        for_scripts(cuda.memory, name, lambda *_, **__: None)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        for_scripts(cuda.nvtx, name, lambda *_, **__: None)
    for_scripts(cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext())
    torch_version: Any = torch.version
    torch_version.cuda = torch_version.cuda or "12.8"


def _counting(counted: Counted, what: str) -> bool:
    counted.note(what)
    return True


def _properties(*_: object) -> SimpleNamespace:
    return SimpleNamespace(
        name="CPU stand-in", total_memory=MEMORY, major=9, minor=0, multi_processor_count=1
    )
