"""A scatter chart as inline SVG: shares of the ceiling over bytes, one colour a series.

It is drawn twice, for wide and for narrow pages, because text that shrinks with its picture cannot be read
on a phone; the page's style shows one of them. Colours, too, are the style's, by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

#: Colours that the style has, ``m0`` and on.
COLOURS = 7
#: Least points of a series for which its course is drawn.
COURSE = 8
#: Fewer points than this hide none of each other.
FEW = 100


@dataclass(frozen=True)
class Point:
    """One mark.

    Attributes:
        x: above 0. y: a share, 1 the ceiling.
        label: what is said of it where a pointer rests.
        hollow: whether it is drawn as a ring.
    """

    x: float
    y: float
    label: str
    hollow: bool = False


@dataclass(frozen=True)
class Layout:
    """Sizes, in pixels of the page that they are meant for.

    Attributes:
        ticks: multiples of each power of ten that are written below, if these are at least two.
        labels: whether each point says what it is.
    """

    name: str
    width: int
    height: int
    ticks: tuple[int, ...]
    labels: bool
    left: int = 46
    right: int = 10
    top: int = 12
    bottom: int = 44


WIDE = Layout("wide-chart", 1080, 440, (1, 2, 5), labels=True)
NARROW = Layout("narrow-chart", 358, 330, (1,), labels=False, left=42)


@dataclass(frozen=True)
class Frame:
    """Where numbers lie in a layout."""

    layout: Layout
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, x: float) -> float:
        low, high = (math.log(end) for end in self.x)
        layout = self.layout
        part = (math.log(x) - low) / (high - low)
        return layout.left + part * (layout.width - layout.left - layout.right)

    def down(self, y: float) -> float:
        low, high = self.y
        layout = self.layout
        part = (high - y) / (high - low)
        return layout.top + part * (layout.height - layout.top - layout.bottom)


def draw(
    series: Sequence[tuple[str, Sequence[Point]]], layout: Layout, title: str, axis: str, key: str
) -> str:
    """The chart, or nothing if there is no point.

    Args:
        series: names and points, in the order of the colours.
        axis: what stands below. key: an identifier that no other chart of the page has.
    """
    points = [point for _, each in series for point in each]
    if not points:
        return ""
    frame = _frame(points, layout)
    said = "; ".join(_words(name, each) for name, each in series if each)
    return (
        f'<svg class="chart {layout.name}{" few" if len(points) < FEW else ""}" '
        f'viewBox="0 0 {layout.width} {layout.height}" role="img" '
        f'aria-labelledby="{key}-{layout.name}-t {key}-{layout.name}-d">\n'
        f'<title id="{key}-{layout.name}-t">{escape(title)}</title>\n'
        f'<desc id="{key}-{layout.name}-d">{escape(said)}.</desc>\n'
        + "\n".join(
            [
                *_grid(frame, axis),
                *(_marks(frame, at % COLOURS, each) for at, (_, each) in enumerate(series)),
                *(_course(frame, at % COLOURS, each) for at, (_, each) in enumerate(series)),
            ]
        )
        + "\n</svg>\n"
    )


def _frame(points: Sequence[Point], layout: Layout) -> Frame:
    xs, ys = [point.x for point in points], [point.y for point in points]
    low = min(0.9, max(0.0, math.floor(min(ys) * 10 - 0.2) / 10))
    high = max(1.04, math.ceil(max(ys) * 50 + 0.5) / 50)
    return Frame(layout, (min(xs) / 1.2, max(xs) * 1.2), (low, high))


def _grid(frame: Frame, axis: str) -> list[str]:
    layout = frame.layout
    right, bottom = layout.width - layout.right, layout.height - layout.bottom
    found = []
    low, high = frame.y
    step = 1 if high - low <= 0.7 else 2
    for tenth in range(math.ceil(low * 10), math.floor(high * 10) + 1):
        if tenth % step and tenth != 10:
            continue
        y = frame.down(tenth / 10)
        kind = "ceiling" if tenth == 10 else "rule"
        found.append(f'<path class="{kind}" d="M{layout.left} {_n(y)}H{right}"/>')
        found.append(
            f'<text class="end" x="{layout.left - 8}" y="{_n(y + 4)}">{10 * tenth}%</text>'
        )
    for tick in _ticks(frame.x, layout.ticks):
        x = frame.across(tick)
        found.append(f'<path class="rule" d="M{_n(x)} {layout.top}V{bottom}"/>')
        found.append(f'<text class="mid" x="{_n(x)}" y="{bottom + 17}">{tick:g}</text>')
    middle = (layout.left + right) / 2
    found.append(
        f'<text class="mid soft" x="{_n(middle)}" y="{layout.height - 6}">{escape(axis)}</text>'
    )
    return found


def _ticks(ends: tuple[float, float], multiples: tuple[int, ...]) -> list[float]:
    """1, 10, 100 … within the ends, with these multiples, or with more if they are too few."""
    low, high = ends
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for each in (multiples, (1, 2, 5), tuple(range(1, 10))):
        found = [many * 10.0**power for power in powers for many in each]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) > 1:
            break
    return found


def _marks(frame: Frame, at: int, points: Sequence[Point]) -> str:
    """The points of one series. Without labels they are one path of dots, which is much shorter."""
    if not frame.layout.labels:
        full, rings = (
            "".join(
                f"M{_n(frame.across(p.x))} {_n(frame.down(p.y))}h0"
                for p in points
                if p.hollow is ring
            )
            for ring in (False, True)
        )
        return f'<g class="m{at}"><path class="dots" d="{full}"/>' + (
            f'<path class="dots hollow" d="{rings}"/></g>' if rings else "</g>"
        )
    circles = "".join(
        f'<circle class="{"hollow" if point.hollow else "full"}" '
        f'cx="{_n(frame.across(point.x))}" cy="{_n(frame.down(point.y))}" r="3.2">'
        f"<title>{escape(point.label)}</title></circle>\n"
        for point in points
    )
    return f'<g class="m{at}">\n{circles}</g>'


def _course(frame: Frame, at: int, points: Sequence[Point]) -> str:
    """A line through the median of each octave of x; of few points, none."""
    if len(points) < COURSE:
        return ""
    octaves: dict[int, list[Point]] = {}
    for point in points:
        octaves.setdefault(math.floor(math.log2(point.x)), []).append(point)
    line = "L".join(
        f"{_n(frame.across(median(p.x for p in octave)))} "
        f"{_n(frame.down(median(p.y for p in octave)))}"
        for _, octave in sorted(octaves.items())
    )
    return f'<path class="m{at} course" d="M{line}"/>'


def _words(name: str, points: Sequence[Point]) -> str:
    shares = [point.y for point in points]
    shapes = f"{len(points)} shape{'s' if len(points) > 1 else ''}"
    return f"{name}: {shapes}, {min(shares):.1%} to {max(shares):.1%}, median {median(shares):.1%}"


def _n(value: float) -> str:
    """A coordinate, as short as it can be written."""
    return f"{value:.1f}".removesuffix(".0")
