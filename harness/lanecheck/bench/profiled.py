"""What Nsight Compute measured, as the record of a benchmark holds it."""

from __future__ import annotations

from pydantic import Field, model_validator

from lanecheck.bench.spread import Spread
from lanecheck.bench.strict import Strict


class Profiled(Strict):
    """What Nsight Compute measured of one row's launches; see :mod:`lanecheck.bench.ncu`.

    Attributes:
        method: its version, and how it ran them.
        kernels: that one launch runs.
        read_bytes, written_bytes: of DRAM, each the median over the launches.
        samples_us: microseconds of each launch, of all its kernels. time_us: of these.
        chain_read_bytes: of DRAM, a launch of the timed chain, the median over its replays; None in records
            from before the chain was measured.
        output_bytes: of the traffic, what a launch writes; None in records from before it was told apart.
    """

    params: dict[str, int | str]
    method: str
    kernels: int = Field(ge=1)
    read_bytes: int = Field(ge=0)
    written_bytes: int = Field(ge=0)
    samples_us: tuple[float, ...] = Field(min_length=1)
    time_us: Spread
    chain_read_bytes: int | None = Field(default=None, ge=0)
    output_bytes: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _follows(self) -> Profiled:
        self.time_us.check("time_us", Spread.of(self.samples_us))
        return self
