"""The machine that times, as a record tells of it: the GPU, what drives it, and its state."""

from __future__ import annotations

from lanecheck.bench.strict import Strict


class Absent(Strict):
    """Something that could not take part, and why."""

    name: str
    reason: str


class Environment(Strict):
    """The GPU and what drives it; None for what it does not tell."""

    gpu: str
    capability: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    memory_clock_mhz: int | None
    driver: str | None
    torch: str
    cuda: str


class Reading(Strict):
    """The state of the GPU at one moment; None for what it does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    clock_event_reasons: tuple[str, ...] | None
    other_processes: int | None
    """Processes that compute there; in a container this one may count itself."""


class Telemetry(Strict):
    before: Reading | Absent
    after: Reading | Absent
