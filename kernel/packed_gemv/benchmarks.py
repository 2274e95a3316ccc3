"""Launches worth timing: the shapes of language models, those that are tuned, those that gate a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packed_gemv.config import select, table
from packed_gemv.landmarks import Launch

# (N, K): q, k and v, o, gate and up, down, vocabulary of Llama-3.1-8B; gate and up, down of the 70B; the
# pooler of a 4096-wide encoder.
_SHAPES = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    *((57344, 8192), (8192, 28672), (4096, 8192)),
)
_SWEPT_TOKENS = (1, 2, 4, 8, 16, 32, 64)
# The seconds of the GPU in which a peer may tune. torch.compile takes as many as all of the rest of a shape,
# and for one token it is often the fastest. For more it races over the usual shapes only: at 8, over 125
# shapes on an H200, it was at most 1.3 % faster than the best of the others.
_PATIENT, _BRIEF = 30.0, 1.0


def usual() -> Iterator[Launch]:
    """Shapes of models, for a single token and for a whole block of them."""
    for n, k in _SHAPES:
        for m in (1, 8):
            yield _selected(m, n, k)


def tuned() -> Iterator[tuple[Launch, float]]:
    """Every tuned shape for each of some numbers of tokens, and the seconds that a peer may tune: those for
    one token, and of the others the usual ones, race against every peer."""
    for m in _SWEPT_TOKENS:
        for n, k, _ in table():
            patient = m == 1 or (n, k) in _SHAPES
            yield _selected(m, n, k), _PATIENT if patient else _BRIEF


def gated(device: str) -> Iterator[Launch]:
    """The shapes of gate.yaml: for ``cuda`` or ``host``."""
    import yaml  # type: ignore[import-untyped]

    rows = yaml.safe_load((Path(__file__).parent / "gate.yaml").read_text())[device]
    for row in rows:
        yield _selected(row["m"], row["n"], row["k"])


def _selected(m: int, n: int, k: int) -> Launch:
    return Launch(m, n, k, select(m, n, k), out_fp32=False)
