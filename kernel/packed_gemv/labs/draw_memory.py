"""Pictures of memory: the packed array from the whole down to one value, and what a warp reads."""

from __future__ import annotations

from packed_gemv import fragments as f
from packed_gemv.labs import lanes
from packed_gemv.labs.draw_fragments import LANE
from packed_gemv.labs.svg import Drawing

_LEFT, _WIDTH = 40, 640


def packed() -> str:
    """The packed array's axes: each line is one box of the line above, enlarged."""
    d = Drawing(
        720,
        560,
        "The packed array [RB, KB, step, lane, value], from the whole down to one lane's 16 bytes",
        "Row blocks, in one of them its K blocks, in one of those two steps of 512 bytes, in one "
        "of those 32 lanes of 16 bytes, in one of those eight values.",
    )
    by_name = {axis.name: axis for axis in lanes.axes()}
    lane_bytes = by_name["t"].stride
    levels = [
        ("row block RB", by_name["RB"].size, by_name["RB"].stride, 0),
        ("K block KB", by_name["KB"].size, by_name["KB"].stride, 0),
        ("step", by_name["step"].size, by_name["step"].stride, 0),
        ("lane 4g + t", f.LANES, lane_bytes, LANE),
    ]
    for i, (name, size, each, chosen) in enumerate(levels):
        top, width = 34 + 106 * i, _WIDTH / size
        d.text(_LEFT, top - 10, f"{name}: {size}, each {each:,} bytes", "head")
        for index in range(size):
            x = _LEFT + width * index
            d.rect(x, top, width, 34, f"cell t{index % 4}" if size == f.LANES else "cell panel")
            bold = " bold" if index == chosen else ""
            d.text(x + width / 2, top + 22, str(index), f"code mid{bold}")
        x = _LEFT + width * chosen
        d.rect(x + 1, top + 1, width - 2, 32, "mark")
        d.path(f"M{x} {top + 36}L{_LEFT} {top + 106 - 28}", "rule")
        d.path(f"M{x + width} {top + 36}L{_LEFT + _WIDTH} {top + 106 - 28}", "rule")
    _values(d, 34 + 106 * len(levels))
    return d.svg()


def _values(d: Drawing, top: float) -> None:
    """One lane's eight values, read back from the array of positions."""
    d.text(_LEFT, top - 10, f"value (j, h, e) of lane {LANE}: 8, each {lanes.BF16} bytes", "head")
    for v, position in enumerate(lanes.positions()[0, 0, 0, LANE].tolist()):
        row, k = divmod(position, lanes.K)
        x, (j, h, e) = _LEFT + 80 * v, (v >> 2, v >> 1 & 1, v & 1)
        d.rect(x, top, 80, 50, f"cell t{LANE % 4}")
        d.text(x + 40, top + 20, f"W[{row}][{k}]", "code mid bold")
        d.text(x + 40, top + 40, f"{j}, {h}, {e}", "code mid")
        if e == 0:
            d.path(f"M{x + 4} {top + 58}h152", "mark")
            d.text(x + 80, top + 78, f"register A{v // 2}", "mid")


def permute() -> str:
    """pack as one reshape and one permute: where each piece of the two indices goes."""
    d = Drawing(
        720,
        304,
        "pack: the row and the k are split into eight axes, and the axes are reordered",
        "Row-major W has the axes RB, h, g of the row and KB, t, step, j, e of k. Packed, the order "
        "is RB, KB, step, g, t, j, h, e. A line joins the two places of each axis.",
    )
    packed_axes = lanes.axes()
    weights = [axis.row * lanes.K + axis.k for axis in packed_axes]  # places in row-major W
    natural = sorted(range(8), key=lambda i: -weights[i])
    d.text(_LEFT, 24, "W[row][k], row-major: one step along an axis adds", "head")
    d.text(_LEFT, 292, "packed: one step along an axis moves on by so many bytes", "head")
    for i, axis in enumerate(packed_axes):
        upper, lower = _LEFT + 80 * natural.index(i), _LEFT + 80 * i
        of = "panel" if axis.row else "t0"
        d.rect(upper + 3, 40, 74, 48, f"cell {of}")
        d.text(upper + 40, 60, axis.name, "code mid bold")
        d.text(upper + 40, 78, f"row +{axis.row}" if axis.row else f"k +{axis.k}", "mid")
        d.path(f"M{upper + 40} 90C{upper + 40} 150 {lower + 40} 150 {lower + 40} 210", "rule")
        d.rect(lower + 3, 212, 74, 48, f"cell {of}")
        d.text(lower + 40, 232, axis.name, "code mid bold")
        d.text(lower + 40, 250, f"+{axis.stride:,}", "mid")
    return d.svg()


def read() -> str:
    """What a warp reads in one step, from row-major W and from packed W, to scale."""
    d = Drawing(
        720,
        620,
        "One warp, one step: what it reads from row-major W and from packed W",
        "To scale, 1,024 bytes a line. From row-major W the warp reads 32 bytes from each of 16 "
        "rows, with four loads a lane; from packed W 512 contiguous bytes, with one load a lane.",
    )
    pitch = lanes.BF16 * lanes.K
    scale = _WIDTH / pitch
    d.text(_LEFT, 24, f"Row-major W: 16 rows, {pitch:,} bytes apart; four loads a lane", "head")
    rows, k = lanes.a_places("natural", 0)
    at = lanes.row_major_bytes(rows, k)
    for row in range(f.ROWS):
        y = 36 + 13 * row
        d.rect(_LEFT, y, _WIDTH, 9, "panel")
        d.text(_LEFT - 8, y + 9, str(row), "code soft end")
        for start, length in lanes.pieces(sorted(at[rows == row].tolist())):
            d.rect(_LEFT + scale * (start - pitch * row), y, scale * length, 9, "cell t0")
    for start, length in lanes.pieces(at[LANE]):
        row, column = divmod(start, pitch)
        d.rect(_LEFT + scale * column, 36 + 13 * row, max(3, scale * length), 9, "solid")
    d.text(_LEFT, 268, f"Solid: the four pieces of 4 bytes that lane {LANE} needs. Enlarged:", "")
    for i, row in enumerate(sorted(set(rows[LANE].tolist()))):
        _enlarged_row(d, row, 280 + 44 * i)

    d.text(_LEFT, 404, "Packed W, to the same scale: one load a lane", "head")
    offsets = lanes.packed_bytes(0, 0).tolist()
    first, end = offsets[0], offsets[-1] + lanes.UNIT
    d.rect(_LEFT, 416, _WIDTH, 18, "panel")
    d.rect(_LEFT + scale * first, 416, scale * (end - first), 18, "cell t0")
    d.rect(_LEFT + scale * offsets[LANE], 416, scale * lanes.UNIT, 18, "solid")
    d.text(_LEFT + scale * end + 10, 430, f"{end - first} contiguous bytes, then step 1", "")
    d.text(_LEFT, 460, f"Solid: the 16 bytes of lane {LANE}. Enlarged, one box a lane:", "")
    for lane, offset in enumerate(offsets):
        x, y = _LEFT + 40 * (lane % 16), 472 + 50 * (lane // 16)
        d.rect(x, y, 40, 26, f"cell t{lane % 4}")
        d.text(x + 20, y + 17, str(lane), f"code mid{' bold' if lane == LANE else ''}")
        if lane == LANE:
            d.rect(x + 1, y + 1, 38, 24, "mark")
        if lane % 4 == 0:
            d.text(x, y + 40, f"byte {offset}", "code soft")
    natural, one = lanes.row_major_loads(0), lanes.packed_load(0)
    apart = natural[0]
    said = f"each wants {apart.wanted} of the {apart.moved} bytes in the {apart.sectors} sectors"
    d.text(_LEFT, 588, f"Row-major: {len(natural)} loads; {said} that it touches.")
    said = f"it wants all {one.wanted} bytes of the {one.sectors} sectors"
    d.text(_LEFT, 608, f"Packed: 1 load; {said} that it touches. (A sector: {lanes.SECTOR} bytes.)")
    return d.svg()


def _enlarged_row(d: Drawing, row: int, top: float) -> None:
    """The 32 bytes that a warp reads from one row of W: a box a register."""
    lane, register = lanes.holders("A")
    start = lanes.BF16 * lanes.K * row
    d.text(_LEFT, top + 17, f"row {row}", "")
    for pair in range(8):
        x, owner = _LEFT + 64 + 72 * pair, int(lane[row, 2 * pair])
        d.rect(x, top, 72, 26, f"cell t{owner % 4}")
        bold = " bold" if owner == LANE else ""
        d.text(x + 36, top + 17, f"{owner} A{register[row, 2 * pair]}", f"code mid{bold}")
        if owner == LANE:
            d.rect(x + 1, top + 1, 70, 24, "mark")
        if pair % 4 == 0:
            d.text(x, top + 39, f"byte {start + 4 * pair}", "code soft")
