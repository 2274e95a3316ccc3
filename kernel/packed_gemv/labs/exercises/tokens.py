"""Exercise 5: token blocks, the clamped token, and what a lane's accumulators are."""

from __future__ import annotations

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Answer, Tuples
from packed_gemv.labs.exercises.lookup import exchanged, flat, split
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, mistake
from packed_gemv.layout import blocks

M = 13
_NB = blocks(M, f.TOKENS)


def sheet(lane: int) -> Sheet:
    """The questions for one lane."""
    g, t = split(lane)
    other = 4 * (7 if g < 7 else 3) + t  # in group 7 the clamp matters
    return Sheet(
        f"M = {M} tokens. An mma takes {f.TOKENS} columns of B, so the kernel counts NB blocks of "
        f"{f.TOKENS} tokens. A token beyond the last is clamped: the lane reads the last one "
        "instead.",
        (_block_count(), _reads(lane), _reads(other), *_stores(lane)),
    )


def _block_count() -> Part:
    return Part(
        "What is NB?",
        Tuples(("blocks",), one=True),
        (_NB,),
        f"{M} tokens fill one block of {f.TOKENS} and begin another: ceil({M} / {f.TOKENS}) = {_NB}. "
        "Each weight is loaded once and used for every block.",
        f"NB counts blocks of {f.TOKENS}, the last of which need not be full.",
        (
            mistake(
                f"One block has {f.TOKENS} tokens, not 16, which are the rows of A: tokens {f.TOKENS} to "
                f"{M - 1} would be left out. Round up.",
                (M // f.TOKENS,),
            ),
            mistake("NB counts blocks of tokens, not tokens.", (M,), (_NB * f.TOKENS,)),
            mistake(
                "A block has eight tokens, the columns of B; four are the lanes of a group.",
                (blocks(M, 4),),
            ),
        ),
        "8",
    )


def _reads(lane: int) -> Part:
    g, t = split(lane)

    def tokens(first: int) -> Answer:
        return tuple(nb * f.TOKENS + first for nb in range(_NB))

    right = tuple(min(token, M - 1) for token in tokens(g))
    clamped = max(tokens(g)) >= M
    return Part(
        f"Of which tokens does lane {lane} load x, one for each block of tokens?",
        Tuples(("token",)),
        right,
        f"A lane loads the column of B that its group stands for: token 8·nb + g, with g = {g}. "
        + (
            f"Token {max(tokens(g))} does not exist, so it reads the last one, {M - 1}: never out of "
            "bounds. That column of the result belongs to no token and is not stored."
            if clamped
            else f"All exist. Its k are 8t to 8t+7 of each K block, with t = {t}."
        ),
        f"Token 8·nb + g, at most {M - 1}.",
        (
            mistake(
                f"There is no token {max(tokens(g))}: the kernel reads min(8·nb + g, M - 1).",
                *([tokens(g)] if clamped else []),
            ),
            mistake(
                f"The last token is M - 1 = {M - 1}; token M is already out of bounds.",
                *([tuple(min(token, M) for token in tokens(g))] if clamped else []),
            ),
            mistake(
                "t picks the k; the token goes by the group, g = lane >> 2.",
                tuple(min(token, M - 1) for token in tokens(t)),
            ),
            mistake(
                "Those are tokens of the accumulators, 2t and 2t+1. B is held by its column: "
                "token g.",
                tuple(min(token, M - 1) for token in tokens(2 * t)),
                (2 * t, 2 * t + 1),
            ),
            mistake("That is the first block alone. There are NB.", right[:1]),
        ),
        "0, 15",
    )


def _stores(lane: int) -> tuple[Part, Part]:
    g, t = split(lane)

    def outputs(row: int, tokens: int, limit: int = M) -> Answer:
        """(row, token) of both rows ``row`` and ``row + 8`` and two tokens a block from ``tokens``."""
        return flat(
            (row + 8 * h, 8 * nb + tokens + e)
            for nb in range(_NB)
            for h in (0, 1)
            for e in (0, 1)
            if 8 * nb + tokens + e < limit
        )

    held = flat(
        (row, nb * f.TOKENS + column)
        for nb in range(_NB)
        for row, column in zip(f.D_ROW[lane], f.D_COLUMN[lane])
    )
    right = flat(pair for pair in zip(held[::2], held[1::2]) if pair[1] < M)
    dropped = sorted({token for token in held[1::2] if token >= M})
    end = f" Of token {dropped[0]} and on, nothing is stored." if dropped else ""
    never = tuple(sorted({int(t) for t, c in zip(f.T, f.D_COLUMN) if max(c) + 8 * (_NB - 1) >= M}))
    which = Part(
        f"Which outputs of the first row block come from lane {lane}'s accumulators and are stored? "
        "Give (row, token), in any order.",
        Tuples(("row", "token"), ordered=False),
        right,
        f"The accumulators are held otherwise than A and B: rows g = {g} and g + 8 = {g + 8}, tokens "
        f"2t = {2 * t} and 2t + 1 = {2 * t + 1} of each block.{end}",
        "Four accumulators a block: rows g and g+8, tokens 2t and 2t+1; only tokens below M.",
        (
            mistake(
                f"Token {M} and on are computed, but not stored: only tokens 0 to {M - 1} exist.",
                *([held] if dropped else []),
            ),
            mistake(
                "That is the first block of tokens alone. The lane has four accumulators in each.",
                outputs(g, 2 * t, min(M, f.TOKENS)),
            ),
            mistake("The row comes first: (row, token).", exchanged(right)),
            mistake(
                "Token g is what the lane loads of x. Its accumulators are of tokens 2t and 2t+1.",
                flat((row, min(8 * nb + g, M - 1)) for nb in range(_NB) for row in (g, g + 8)),
            ),
            mistake(
                "The tokens are right. The rows are g and g+8, as in A, not g and g+1.",
                flat(
                    (g + h, 8 * nb + 2 * t + e)
                    for nb in range(_NB)
                    for h in (0, 1)
                    for e in (0, 1)
                    if 8 * nb + 2 * t + e < M
                ),
            ),
            mistake(
                "Two rows, too: the lane has four accumulators a block, rows g and g+8.",
                flat(pair for pair in zip(right[::2], right[1::2]) if pair[0] == g),
            ),
            mistake(
                "g and t are exchanged: lane = 4g + t, so g = lane >> 2 and t = lane & 3.",
                outputs(lane & 3, 2 * (lane >> 2)),
            ),
        ),
        "(0, 4) (0, 6) …",
    )
    unstored = Part(
        "Lanes of which t hold accumulators that are never stored?",
        Tuples(("t",), ordered=False),
        never,
        f"Tokens {M} to {_NB * f.TOKENS - 1} are held as 2t and 2t+1 of the last block. So lanes of "
        "one kind read the last token again, by g, and lanes of another hold the useless results, "
        "by t.",
        f"Tokens {M} to {_NB * f.TOKENS - 1} do not exist. Which 2t or 2t+1 are they?",
        (
            mistake(
                "Those are the groups g whose token is clamped. A result is held by t: tokens 2t and "
                "2t+1.",
                tuple(g for g in range(8) if 8 * (_NB - 1) + g >= M),
            ),
            mistake(
                f"Token {M} itself does not exist either: the last one is {M - 1}.",
                tuple(t for t in never if 8 * (_NB - 1) + 2 * t >= M),
            ),
            mistake(
                f"One t too many: tokens up to {M - 1} exist. Which t holds {M - 2}?",
                tuple(t for t in range(4) if 8 * (_NB - 1) + 2 * t + 1 >= M - 2),
            ),
        ),
        "0, 1",
    )
    return which, unstored


TOKENS = Exercise(
    "Thirteen tokens", "Blocks of tokens, the clamped one, and who stores what.", sheet
)
