"""Pictures of the walk: which warp takes which K blocks, in which trips."""

from __future__ import annotations

import textwrap

from packed_gemv.config import UnevenError
from packed_gemv.fragments import K_BLOCK
from packed_gemv.labs import counted
from packed_gemv.labs.configs import Walk, whole_trips
from packed_gemv.labs.svg import Drawing
from packed_gemv.layout import blocks

_LEFT, _WIDTH = 110, 590
_TOP, _ROW, _CELL = 42, 54, 28  # of the first warp; from one warp to the next; of a K block


def walk(config: Walk, k: int) -> str:
    """The kernel's walk: whole trips, then what is left block by block."""
    count, slices = blocks(k, K_BLOCK), config.slices(k)
    shares = (
        f"warp {i % config.nw} of slice {i // config.nw}: blocks {part.start} to {part.stop - 1}"
        for i, part in enumerate(slices)
    )
    d = _drawing(config, k, f"K = {k} walked with {_sizes(config)}", "; ".join(shares), 38)
    width = _WIDTH / count
    for part, run in enumerate(slices):
        y = _warp(d, config, part, _WIDTH)
        whole = len(run) // config.u * config.u
        for trip in range(whole // config.u):
            start = run.start + config.u * trip
            _trip(d, y, width, range(start, start + config.u), f"trip {trip}")
        for block in run[whole:]:
            x = _LEFT + width * block
            d.rect(x, y, width, _CELL, "cell t1")
            d.text(x + width / 2, y + 18, str(block), "code mid bold small")
            d.text(x + width / 2, y + _CELL + 16, "+", "mid bold")
    y = _TOP + _ROW * config.parts + 18
    each = f"A trip requests {counted(config.u, 'block')} before it uses the first"
    left = any(len(run) % config.u for run in slices)
    d.text(_LEFT, y, each + ("; what is left over, +, goes one by one." if left else "."))
    return d.svg()


def refused(config: Walk, k: int) -> str:
    """What a kernel of whole trips would read with a split that is not even; require_even's refusal."""
    try:
        config.require_even(k)
    except UnevenError as uneven:
        reason = str(uneven).replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    else:
        raise ValueError(f"{config} splits K = {k} evenly: nothing to refuse")
    count, read = k // K_BLOCK, whole_trips(config, k)
    reach = max(run.stop for run in read)
    twice = [block for block in range(count) if sum(block in run for run in read) > 1]
    effect = f"{counted(len(twice), 'block')} counted twice" + (
        f", {counted(reach - count, 'block')} past the end of K" if reach > count else ""
    )
    title = f"Refused by require_even: {_sizes(config)} over K = {k}, in whole trips only"
    d = _drawing(
        config, k, title, f"Whole trips only: {effect}. {reason}.", 96, ", in whole trips only"
    )
    width = _WIDTH / reach
    own = config.slices(k)
    for part, run in enumerate(read):
        y = _warp(d, config, part, width * count)
        for trip in range(len(run) // config.u):
            start = run.start + config.u * trip
            _trip(d, y, width, range(start, start + config.u), f"trip {trip}")
        for block in sorted(set(run) - set(own[part])):
            d.rect(_LEFT + width * block + 1.5, y + 1.5, width - 3, _CELL - 3, "wrong")
    bottom = _TOP + _ROW * config.parts
    d.path(f"M{_LEFT + width * count:.1f} {_TOP - 8}V{bottom - 24}", "mark")
    d.rect(_LEFT + 1, bottom + 4, 22, 16, "wrong")
    d.text(_LEFT + 32, bottom + 17, f"not this warp's to read: {effect}", "bad")
    for line, said in enumerate(textwrap.wrap(f"Refused by require_even: {reason}.", 84)):
        d.text(20, bottom + 46 + 20 * line, said, "bold")
    return d.svg()


def _drawing(
    config: Walk, k: int, title: str, description: str, below: int, how: str = ""
) -> Drawing:
    d = Drawing(720, _TOP + _ROW * config.parts + below, title, description)
    d.text(
        20, 24, f"K = {k}: {counted(blocks(k, K_BLOCK), 'K block')}; {_sizes(config)}{how}", "head"
    )
    return d


def _sizes(config: Walk) -> str:
    return f"S = {config.s}, NW = {config.nw}, U = {config.u}"


def _warp(d: Drawing, config: Walk, part: int, width: float) -> float:
    """A warp's name and its empty line; returns where the line lies."""
    s, warp = divmod(part, config.nw)
    y = _TOP + _ROW * part
    said = f"slice {s}, warp {warp}" if config.s > 1 else f"warp {warp}"
    d.text(_LEFT - 10, y + 18, said, "end")
    d.rect(_LEFT, y, width, _CELL, "panel")
    return y


def _trip(d: Drawing, y: float, width: float, run: range, name: str) -> None:
    x = _LEFT + width * run.start
    d.rect(x, y, width * len(run), _CELL, "cell t0")
    for i, block in enumerate(run):
        d.text(
            x + width * (i + 0.5),
            y + 18,
            str(block),
            "code mid small" if width < 20 else "code mid",
        )
    d.path(f"M{x + 2:.1f} {y + _CELL + 3}h{width * len(run) - 4:.1f}", "rule")
    d.text(x + width * len(run) / 2, y + _CELL + 16, name, "mid")
