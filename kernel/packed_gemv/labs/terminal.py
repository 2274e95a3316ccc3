"""The pictures for a terminal: 80 columns of text, in colour where rich is installed.

What is marked stands in brackets, so nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packed_gemv import fragments as f
from packed_gemv.config import Config
from packed_gemv.fragments import K_BLOCK
from packed_gemv.labs import WIDTH, lanes, show
from packed_gemv.layout import blocks

#: Pieces of text, each with the t of the lane that it belongs to, or None.
Line = list[tuple[str, int | None]]

_COLOURS = ("black on #9ec5fe", "black on #ffd479", "black on #9fdcb0", "black on #cdb4f6")
_OF_16 = ("black on cyan", "black on yellow", "black on green", "black on magenta")
_NAME, _CELL = 16, 8
_MOST_BLOCKS, _MOST_WARPS = 64, 16


def show_lines(lines: Iterable[Line]) -> None:
    """Print, in colour if this is a terminal and rich is installed."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:
        show("".join(said for said, _ in line).rstrip() for line in lines)
        return
    console = Console(width=WIDTH, highlight=False)
    colours = _COLOURS if console.color_system in ("256", "truecolor") else _OF_16
    with console.capture() as captured:
        for line in lines:
            parts = [(said, "" if t is None else colours[t]) for said, t in line]
            text = Text.assemble(*parts)
            text.rstrip()
            console.print(text, soft_wrap=True)
    show([captured.get().rstrip("\n")])


def operands(marked: int) -> Iterator[Line]:
    """A, B and C: a lane and one of its registers in each cell, one lane in brackets."""
    pairs = [f"{slot},{slot + 1}" for slot in range(0, f.SLOTS, 2)]
    yield _plain("A: 16 rows of W x 16 slots. A cell is one register: two slots, one lane")
    yield _header("slots", pairs)
    for labelling in lanes.LABELLINGS:
        for step in (0, 1):
            k = lanes.slot_k(labelling, step).reshape(-1, 2).tolist()
            yield _header(f"{labelling}, step {step}", [f"{a},{b}" for a, b in k])
    lane, register = lanes.holders("A")
    for row in range(f.ROWS):
        cells = zip(lane[row, ::2].tolist(), register[row, ::2].tolist())
        yield _cells(f"row {row}", "A", cells, marked)
    yield []
    yield _plain("B: 16 slots x 8 tokens of x. A cell is one register: two slots, one lane")
    yield _header("slots    token", [str(token) for token in range(f.TOKENS)])
    lane, register = lanes.holders("B")
    for slot, said in zip(range(0, f.SLOTS, 2), pairs):
        yield _cells(said, "B", zip(lane[slot].tolist(), register[slot].tolist()), marked)
    yield []
    yield _plain("C: 16 rows x 8 tokens of y. A cell is one register and one value")
    yield _header("row      token", [str(token) for token in range(f.TOKENS)])
    lane, register = lanes.holders("C")
    for row in range(f.ROWS):
        cells = zip(lane[row].tolist(), register[row].tolist())
        yield _cells(f"row {row}", "C", cells, marked)


def packed_axes() -> Iterator[Line]:
    """The packed array's axes, slowest first."""
    yield _plain(f"W[{lanes.N}, {lanes.K}] packed: its axes, from the slowest to the fastest")
    yield _plain("axis   size   bytes from one to the next   one step along it")
    for axis in lanes.axes():
        adds = f"row + {axis.row}" if axis.row else f"k + {axis.k}"
        yield _plain(f"{axis.name:6}{axis.size:5}{axis.stride:18,}{'':14}{adds}")
    yield _plain(f"so {lanes.index_formula('row')}")
    yield _plain(f"and {lanes.index_formula('k')}")


def reads(marked: int) -> Iterator[Line]:
    """The bytes of one lane, row-major and packed, and what they cost the warp."""
    yield _plain(f"Where the A fragment of lane {marked} (g {marked // 4}, t {marked % 4}) lies")
    for step in (0, 1):
        rows, k = lanes.a_places("natural", step)
        apart = lanes.pieces(lanes.row_major_bytes(rows, k)[marked])
        said, size = ", ".join(str(start) for start, _ in apart), apart[0][1]
        yield _plain(f"step {step}  row-major W, {len(apart)} loads of {size} bytes, at {said}")
        offsets = lanes.packed_bytes(0, step).tolist()
        first, last = offsets[marked], offsets[marked] + lanes.UNIT - 1
        yield _plain(f"        packed W, 1 load: bytes {first}-{last}")
        whole = offsets[-1] + lanes.UNIT - offsets[0]
        span = f"{offsets[0]}-{offsets[0] + whole - 1}"
        yield _plain(f"        the warp: bytes {span}, {whole} contiguous bytes")


def walk(config: Config, k: int) -> Iterator[Line]:
    """Which warp takes which K blocks; a trip in brackets, a block left over as ``+``.

    Raises:
        ValueError: if it does not fit.
    """
    count, slices = blocks(k, K_BLOCK), config.slices(k)
    if count > _MOST_BLOCKS or len(slices) > _MOST_WARPS:
        raise ValueError(
            f"{count} K blocks and {len(slices)} warps: "
            f"a picture has room for {_MOST_BLOCKS} and {_MOST_WARPS}"
        )
    tens = "".join(f"{block:<10}" for block in range(0, count, 10))
    yield _plain(f"{'K block':16}{tens}")
    yield _plain(f"{'':16}" + "".join(str(block % 10) for block in range(count)))
    for part, run in enumerate(slices):
        s, warp = divmod(part, config.nw)
        whole, rest = divmod(len(run), config.u)
        trip = "#" if config.u == 1 else "[" + "-" * (config.u - 2) + "]"
        name = (f"slice {s} " if config.s > 1 else "") + f"warp {warp}"
        yield [(f"{name:16}" + " " * run.start, None), (trip * whole + "+" * rest, part % 4)]


def _plain(said: str) -> Line:
    return [(said, None)]


def _header(name: str, columns: list[str]) -> Line:
    return [(f"{name:{_NAME}}" + "".join(f"{said:^{_CELL}}" for said in columns), None)]


def _cells(name: str, operand: str, cells: Iterable[tuple[int, int]], marked: int) -> Line:
    line: Line = [(f"{name:{_NAME}}", None)]
    for lane, register in cells:
        said = f"{lane:2} {operand}{register}"
        line.append((f"[{said}] " if lane == marked else f" {said}  ", lane % 4))
    return line
