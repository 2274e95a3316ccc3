"""One page for a browser: choose a lane and see what it holds and where that lies.

``python -m packed_gemv.labs.page OUT.html`` writes it. The file needs no network: its style, its
script and the numbers that :mod:`packed_gemv.labs.lanes` read off are all inside, and the script only
lights what the numbers name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packed_gemv import fragments as f
from packed_gemv.labs import Parser, lanes, show
from packed_gemv.labs.svg import COLOURS

_PARTS = Path(__file__).parent


def data() -> dict[str, Any]:
    """What the page shows, as plain lists.

    ``cells`` has lane and register of every cell of A, B and C, two slots being one cell of A and of
    B. ``lanes`` has, by lane: ``A`` and ``B``, by labelling, step and register, as (row or token,
    first k, first byte in row-major W or x); ``C`` by register as (row, token); ``apart``, the runs
    (first byte, length) of A in row-major W; and ``unit``, by step, the byte of its load in packed W.
    """
    cells = {}
    for operand, every in (("A", (1, 2)), ("B", (2, 1)), ("C", (1, 1))):
        lane, register = (table[:: every[0], :: every[1]] for table in lanes.holders(operand))
        cells[operand] = {"lane": lane.tolist(), "register": register.tolist()}
    return {
        "n": lanes.N,
        "k": lanes.K,
        "unit": lanes.UNIT,
        "cells": cells,
        "lanes": [_lane(lane) for lane in range(f.LANES)],
    }


def _lane(lane: int) -> dict[str, Any]:
    def registers(operand: str, labelling: str, step: int) -> list[tuple[int, int, int]]:
        places = lanes.a_places if operand == "A" else lanes.b_places
        first, k = (table[lane, ::2] for table in places(labelling, step))
        return list(zip(*(t.tolist() for t in (first, k, lanes.row_major_bytes(first, k)))))

    def runs(labelling: str, step: int) -> list[tuple[int, int]]:
        row, k = lanes.a_places(labelling, step)
        return lanes.pieces(sorted(lanes.row_major_bytes(row, k)[lane].tolist()))

    def by_labelling(of: Any) -> dict[str, Any]:
        return {name: [of(name, step) for step in (0, 1)] for name in lanes.LABELLINGS}

    return {
        "g": int(f.G[lane]),
        "t": int(f.T[lane]),
        "A": by_labelling(lambda name, step: registers("A", name, step)),
        "B": by_labelling(lambda name, step: registers("B", name, step)),
        "C": list(zip(f.D_ROW[lane].tolist(), f.D_COLUMN[lane].tolist())),
        "apart": by_labelling(runs),
        "unit": [int(lanes.packed_bytes(0, step)[lane]) for step in (0, 1)],
    }


def html() -> str:
    """The whole page."""
    page = (_PARTS / "page.html").read_text(encoding="utf-8")
    parts = {
        "{{style}}": _colours() + (_PARTS / "page.css").read_text(encoding="utf-8"),
        "{{script}}": (_PARTS / "page.js").read_text(encoding="utf-8"),
        "{{data}}": json.dumps(data(), separators=(",", ":")),
    }
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


def _colours() -> str:
    """The pictures' colours, as CSS variables for light and dark."""
    light, dark = (
        ";".join(f"--{name}:{pair[scheme]}" for name, pair in COLOURS.items()) for scheme in (0, 1)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = Parser(
        "packed_gemv.labs.page", "The layout, lane by lane, in a browser.", "lanes.html"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the HTML file")
    out: Path = parser.parse_args(argv).out
    text = html()
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"cannot write {out}: {error.strerror}")
    show([f"{out}: open it in a browser; #lane=13 opens it at a lane"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
