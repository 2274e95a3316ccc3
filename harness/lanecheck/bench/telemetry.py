"""What the GPU says of itself: clocks, heat, power, what holds it back, who shares it.

Read through nvidia-ml-py; without it, or where the driver does not answer, the record says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from lanecheck.bench.machine import Absent, Reading

T = TypeVar("T")

POWER_CAP = "sw_power_cap"
#: Bits of NVML's clock event reasons.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: POWER_CAP,
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
HELD_BACK = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""Reasons under which a GPU is not itself. The others hold nothing back that changes between rounds: an
idle GPU says so between two launches; a clock that somebody set, for applications, for displays or for a
group of boards, stays. A power cap does change the clocks, but is the ordinary state of many a card under
load: what it costs the subject is in :attr:`~lanecheck.bench.model.Timing.sustained`."""


def read(uuid: str) -> Reading | Absent:
    """The present state of the GPU with this UUID (without its ``GPU-``)."""
    try:
        with _device(uuid) as (nvml, gpu):
            return _reading(nvml, gpu)
    except _NoAnswer as reason:
        return Absent(name="telemetry", reason=str(reason))


@contextmanager
def watch(uuid: str) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Says, whenever it is asked, what of :data:`HELD_BACK` holds the GPU back now; nothing where nobody
    tells. The driver stays open meanwhile, so that asking costs microseconds."""
    with ExitStack() as stack:
        try:
            nvml, gpu = stack.enter_context(_device(uuid))
        except _NoAnswer:
            yield tuple
        else:
            yield lambda: tuple(name for name in _reasons(nvml, gpu) or () if name in HELD_BACK)


def driver_and_memory_clock(uuid: str) -> tuple[str | None, int | None]:
    """The driver's version and the memory's highest clock in MHz; None for what is not known."""
    try:
        with _device(uuid) as (nvml, gpu):
            return (
                _ask(nvml, lambda: str(nvml.nvmlSystemGetDriverVersion())),
                _ask(nvml, lambda: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM))),
            )
    except _NoAnswer:
        return None, None


class _NoAnswer(Exception):
    pass


@contextmanager
def _device(uuid: str) -> Iterator[tuple[Any, Any]]:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        raise _NoAnswer("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _NoAnswer(f"the driver does not answer: {error}") from None
    try:
        try:
            gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            raise _NoAnswer(f"the driver does not know the GPU: {error}") from None
        yield pynvml, gpu
    finally:
        pynvml.nvmlShutdown()


def _reading(nvml: Any, gpu: Any) -> Reading:
    def clock(kind: int) -> Callable[[], int]:
        return lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, kind))

    processes = _ask(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    return Reading(
        sm_clock_mhz=_ask(nvml, clock(nvml.NVML_CLOCK_SM)),
        memory_clock_mhz=_ask(nvml, clock(nvml.NVML_CLOCK_MEM)),
        temperature_c=_ask(
            nvml, lambda: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
        ),
        power_w=_ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
        power_limit_w=_ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
        clock_event_reasons=_reasons(nvml, gpu),
        other_processes=None
        if processes is None
        else sum(process.pid != os.getpid() for process in processes),
    )


def _reasons(nvml: Any, gpu: Any) -> tuple[str, ...] | None:
    """What determines the clocks now; None if it does not tell."""
    mask = _ask(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)))
    return None if mask is None else tuple(name for bit, name in REASONS.items() if mask & bit)


def _ask(nvml: Any, question: Callable[[], T]) -> T | None:
    try:
        return question()
    except nvml.NVMLError:  # not every GPU, and no container for sure, answers everything
        return None
