"""The pictures of the chapter as SVG files: ``python -m packed_gemv.labs.pictures OUT``.

Each is a function from the layout's own tables to text. A test draws them again and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from packed_gemv.labs import Parser, counted, draw_fragments, draw_memory, draw_walk, show
from packed_gemv.labs.configs import Walk

#: File name to what draws it.
PICTURES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "fragments.svg": draw_fragments.fragments,
        "relabel.svg": draw_fragments.relabel,
        "permute.svg": draw_memory.permute,
        "packed.svg": draw_memory.packed,
        "read.svg": draw_memory.read,
        "walk.svg": partial(draw_walk.walk, Walk(2, 4, 2), 34 * 32),
        "refused.svg": partial(draw_walk.refused, Walk(4, 3), 512),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write every picture into a folder."""
    parser = Parser(
        "packed_gemv.labs.pictures", "The chapter's pictures, as SVG files.", "pictures"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder; made if it is not there")
    out: Path = parser.parse_args(argv).out
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, draw in PICTURES.items():
            (out / name).write_text(draw(), encoding="utf-8")
    except OSError as error:
        parser.error(f"cannot write to {out}: {error.strerror}")
    show([f"{counted(len(PICTURES), 'picture')} in {out}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
