"""Pictures of the mma's operands: who holds each cell, and which real k each slot stands for."""

from __future__ import annotations

from packed_gemv import fragments as f
from packed_gemv.labs import lanes
from packed_gemv.labs.svg import Drawing

LANE = 13  # outlined in every picture: g = 3, t = 1
_COLUMN, _ROW = 39, 24  # a cell


def fragments() -> str:
    """A, B and C in the places in which they multiply: B above C, A to its left."""
    d = Drawing(
        700,
        742,
        "The operands of mma m16n8k16, and which lane holds what",
        "A is 16 rows by 16 slots, B 16 slots by 8 tokens, C 16 rows by 8 tokens. Each cell names "
        f"a lane and one of its registers; what lane {LANE} holds is outlined.",
    )
    a_at, b_at, c_at = (40, 336), (384, 82), (384, 336)
    d.text(b_at[0], 24, "B: 16 slots × 8 tokens of x", "head")
    d.text(b_at[0] - 8, b_at[1] - 8, "token", "soft end")
    _tokens(d, b_at)
    _register_pairs_down(d, "B", b_at)
    _slot_table(d, b_at)

    d.text(a_at[0], 300, "A: 16 rows of W × 16 slots", "head")
    for slot in range(f.SLOTS):
        d.text(a_at[0] + _COLUMN / 2 * (slot + 0.5), a_at[1] - 8, str(slot), "code soft mid small")
    d.text(a_at[0] - 8, a_at[1] - 8, "slot", "soft end")
    lane, register = lanes.holders("A")
    for row in range(f.ROWS):
        d.text(a_at[0] - 8, a_at[1] + _ROW * row + 17, str(row), "code soft end")
        for pair in range(8):
            x, y = a_at[0] + _COLUMN * pair, a_at[1] + _ROW * row
            _cell(d, x, y, int(lane[row, 2 * pair]), f"A{register[row, 2 * pair]}")
    d.text(c_at[0], 300, "C: 16 rows × 8 tokens of y", "head")
    _tokens(d, c_at)
    lane, register = lanes.holders("C")
    for row in range(f.ROWS):
        for token in range(f.TOKENS):
            x, y = c_at[0] + _COLUMN * token, c_at[1] + _ROW * row
            _cell(d, x, y, int(lane[row, token]), f"C{register[row, token]}")
    for operand, at in (("A", a_at), ("B", b_at), ("C", c_at)):
        _outlined(d, operand, at)
    return d.svg()


def relabel() -> str:
    """The 32 k of a K block, and the slots of lane t that they fill, counted naturally and packed."""
    d = Drawing(
        720,
        308,
        "The 32 k of one K block: whose slots they are, counted naturally and relabelled",
        "Naturally, the slots of thread t stand for eight k in four separate pairs. Relabelled, "
        "they stand for the eight consecutive k 8t to 8t + 7, of which each step takes four.",
    )
    titles = {
        "natural": "Counted naturally: k = slot + 16·step",
        "packed": "Relabelled: thread t's slots stand for k = 8t … 8t+7",
    }
    for i, labelling in enumerate(lanes.LABELLINGS):
        top = 24 + 142 * i
        d.text(40, top, titles[labelling], "head")
        for name, line in (("k", 0), ("t", 1), ("step", 2), ("slot", 3)):
            d.text(32, top + 28 + 22 * line, name, "soft end")
        for step in (0, 1):
            for slot, k in enumerate(lanes.slot_k(labelling, step).tolist()):
                t, x = (slot & 7) >> 1, 40 + 21 * k
                d.text(x + 10.5, top + 28, str(k), "code soft mid")
                d.rect(x, top + 36, 21, 66, f"cell t{t}")
                for line, said in enumerate((t, step, slot)):
                    d.text(x + 10.5, top + 51 + 22 * line, str(said), "code mid")
        for step in (0, 1):
            slots = [slot for slot in range(f.SLOTS) if (slot & 7) >> 1 == LANE % 4]
            for k in lanes.slot_k(labelling, step)[slots].tolist():
                d.path(f"M{40 + 21 * k} {top + 107}h21", "mark")
    d.text(40, 298, f"Underlined: the k of thread t = {LANE % 4}, to which lane {LANE} belongs.")
    return d.svg()


def _cell(d: Drawing, x: float, y: float, lane: int, register: str) -> None:
    d.rect(x, y, _COLUMN, _ROW, f"cell t{lane % 4}")
    bold = " bold" if lane == LANE else ""
    d.text(x + _COLUMN / 2, y + 16, f"{lane} {register}", f"code mid small{bold}")


def _tokens(d: Drawing, at: tuple[float, float]) -> None:
    for token in range(f.TOKENS):
        d.text(at[0] + _COLUMN * (token + 0.5), at[1] - 8, str(token), "code soft mid")


def _register_pairs_down(d: Drawing, operand: str, at: tuple[float, float]) -> None:
    """B: its registers hold two slots, one above the other."""
    lane, register = lanes.holders(operand)
    for pair in range(8):
        for token in range(f.TOKENS):
            x, y = at[0] + _COLUMN * token, at[1] + _ROW * pair
            name = f"{operand}{register[2 * pair, token]}"
            _cell(d, x, y, int(lane[2 * pair, token]), name)


def _slot_table(d: Drawing, at: tuple[float, float]) -> None:
    """Beside the rows of B: which k two slots stand for, in each step, by either labelling."""
    d.text(24, 24, "Which k a slot stands for", "head")
    columns = {("natural", 0): 114, ("natural", 1): 172, ("packed", 0): 240, ("packed", 1): 298}
    d.text(143, 50, "natural", "mid")
    d.text(269, 50, "packed", "mid")
    for (_, step), x in columns.items():
        d.text(x, at[1] - 12, f"step {step}", "soft mid")
    d.text(70, at[1] - 12, "slot", "soft end")
    for pair in range(8):
        y = at[1] + _ROW * pair
        d.rect(24, y, 306, _ROW, f"t{pair % 4}")
        d.text(70, y + 16, f"{2 * pair},{2 * pair + 1}", "code end")
        for (labelling, step), x in columns.items():
            first, second = lanes.slot_k(labelling, step)[2 * pair : 2 * pair + 2]
            bold = " bold" if labelling == "packed" else ""
            d.text(x, y + 16, f"{first},{second}", f"code mid{bold}")


def _outlined(d: Drawing, operand: str, at: tuple[float, float]) -> None:
    """A heavy line around what the example lane holds."""
    lane, _ = lanes.holders(operand)
    across, down = {"A": (2, 1), "B": (1, 2), "C": (1, 1)}[operand]
    for row, column in zip(*(lane == LANE).nonzero()):
        if row % down == 0 and column % across == 0:
            x, y = at[0] + _COLUMN * (column // across), at[1] + _ROW * (row // down)
            d.rect(x, y, _COLUMN, _ROW, "mark")
