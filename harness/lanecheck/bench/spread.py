"""Median and quartiles of samples, how well they are known, and whether recorded ones follow from samples."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, pi
from statistics import median, quantiles

from lanecheck.bench.strict import Strict

NORMAL_WIDTH = 1.349
"""Standard deviations between a normal distribution's quartiles."""


class Spread(Strict):
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value, to six decimals; quartiles interpolate between the values, ends included."""
        low, middle, high = values[0], median(values), values[0]
        if len(values) > 1:
            low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median=round(middle, 6), q1=round(low, 6), q3=round(high, 6))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """Of ``above / below`` round by round."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    @property
    def width(self) -> float:
        """The distance between the quartiles."""
        return self.q3 - self.q1

    def error(self, count: int) -> float:
        """The standard error of the median of so many values, if they are normal but for outliers."""
        return (pi / 2) ** 0.5 * self.width / NORMAL_WIDTH / count**0.5

    def check(self, what: str, derived: Spread) -> None:
        """
        Raises:
            ValueError: if this, recorded as ``what``, is not what was derived from the samples.
        """
        mine, other = (self.median, self.q1, self.q3), (derived.median, derived.q1, derived.q3)
        if not all(map(same, mine, other)):
            raise ValueError(f"{what} is {mine}, but the samples say {other}")


def same(recorded: float, derived: float) -> bool:
    """Whether two figures differ by no more than rounding: of the sixth decimal, or, in old records, of
    samples that were rounded after the figures were computed."""
    return isclose(recorded, derived, rel_tol=1e-5, abs_tol=1e-6)
