"""Probes: the map of a right kernel is the identity, and each misreading is told by its sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from second_subject import SUBJECT, ByNumpy, Matmul

from lanecheck import oracles
from lanecheck.cases import Case
from lanecheck.observation import Observation, Problem
from lanecheck.oracles import execution, probes
from lanecheck.oracles.probes import schedule
from lanecheck.probing.maps import NOTHING, SEVERAL, decoded, written
from lanecheck.subject import Bits, Buffer, Params, Product, Tensor
from lanecheck.trial import Target, observe
from lanecheck.verdict import Outcome

Change = Callable[[Bits, Bits], tuple[Bits, Bits]]


def observed(
    subject: Matmul, m: int, n: int, k: int, out: str = "fp32", seed: int = 8, regime: str = "small"
) -> Observation:
    params = {"m": m, "n": n, "k": k, "out": out, "xoff": 0, "ypad": 0}
    case = Case(subject.name, {**params, "regime": regime, "side": "upper", "seed": seed})
    ((_, observation),) = observe(subject, case, Target("unused"))
    return observation


def said(subject: Matmul, m: int, n: int, k: int, out: str = "fp32") -> str:
    verdict = probes.diagnose(observed(subject, m, n, k, out), thorough=True)
    assert verdict is not None
    assert verdict.outcome is Outcome.FAIL
    return verdict.evidence


# Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 124, 125, 15376, 15377])
def test_every_name_is_read_as_it_was_written_once_or_repeated(count: int):
    values = written(count)
    for value in values:
        assert (value.astype(ml_dtypes.bfloat16) == value).all()
        assert (value >= 2.0**-126).all()  # the smallest normal number of BF16 and of FP32
    for times in (1, 2, 3):
        names, often = decoded([times * value for value in values], count)
        assert (names == np.arange(count)).all()
        assert (often == times).all()
    assert (decoded([4 * value for value in values], count)[0] == SEVERAL).all()
    assert decoded([np.zeros(1)] * len(values), count)[0] == NOTHING


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("terms", [2, 3])
def test_no_sum_of_several_is_taken_for_one_of_them(kind: type, terms: int):
    rng = np.random.default_rng(0)
    for count in (50, 5000, 300_000):
        chosen = rng.integers(count, size=(terms, 20_000))
        chosen = chosen[:, (chosen != chosen[0]).any(axis=0)]
        read = [value[chosen].sum(axis=0).astype(kind).astype(float) for value in written(count)]
        assert (decoded(read, count)[0] == SEVERAL).all()


@pytest.mark.parametrize("read", [np.nan, np.inf, -1.0, 0.5, 2.0**-126])
def test_what_is_no_sum_names_nothing(read: float):
    names, _ = decoded([np.array([read])] * 2, 100)
    assert names[0] < NOTHING


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (1, 9), (2, 2), (5, 3), (3, 8), (8, 8), (64, 5)])
def test_every_row_lights_every_k_once_and_no_two_rows_the_same_at_once(rows: int, k: int):
    hot = schedule(rows, k, np.random.default_rng(0))
    pairs = [(row, int(at)) for launch in hot for row, at in enumerate(launch) if at >= 0]
    assert sorted(pairs) == [(row, at) for row in range(rows) for at in range(k)]
    assert all(len(set(lit)) == len(lit) for lit in (launch[launch >= 0] for launch in hot))
    assert k - 1 in hot[0]
    soon = hot[: -(-(max(rows, k) + 1) // rows)]
    assert set(soon[soon >= 0].tolist()) == set(range(k))


# A right kernel -------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["fp32", "bf16"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 5, 70), (3, 17, 33), (12, 4, 5)])
def test_the_full_map_of_a_right_kernel_is_the_identity(m: int, n: int, k: int, out: str):
    seen = probes.full(observed(SUBJECT, m, n, k, out))
    assert seen is not None
    assert seen.identity
    assert seen.whole


def test_a_case_in_its_turn_takes_one_probe_and_the_last_k_is_in_it():
    for m, k in ((3, 9), (9, 3), (4, 4)):
        launched: list[Mapping[str, Bits]] = []
        observation = observed(SUBJECT, m, 5, k)
        verdict = probes.judge(replace(observation, launch=recording(observation, launched)))
        assert verdict is not None
        assert verdict.outcome is Outcome.PASS
        assert len(launched) == 2
        lit = launched[0]["x"] != 0
        assert lit.sum() == min(m, k)
        assert lit[:, k - 1].any()


def recording(observation: Observation, launched: list[Mapping[str, Bits]]):
    def launch(params: Params, inputs: Mapping[str, Bits]):
        launched.append(inputs)
        return observation.launch(params, inputs)

    return launch


@pytest.mark.parametrize("seed", range(5))
def test_a_single_token_does_not_always_light_the_last_k(seed: int):
    observation = observed(SUBJECT, 1, 5, 9, seed=8 * seed)
    launched: list[Mapping[str, Bits]] = []
    probes.judge(replace(observation, launch=recording(observation, launched)))
    assert (launched[0]["x"] != 0).sum() == 1


class Epilogue(Matmul):
    def products(self, params: Params) -> list[Product]:
        return [Product("y", "x", "w", plain=False)]


class Nameless(Matmul):
    def products(self, params: Params) -> list[Product]:
        return []


@pytest.mark.parametrize("subject", [Epilogue(), Nameless()])
def test_outputs_that_are_no_plain_products_are_not_probed(subject: Matmul):
    observation = observed(subject, 2, 3, 4)
    assert probes.judge(observation) is probes.diagnose(observation) is None
    assert probes.full(observation) is None


# Misreadings ----------------------------------------------------------------------------------


class Misread(ByNumpy):
    """A right product of other operands than the given ones."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        return super().product(*self._change(x.copy(), w.copy()), out)


def placed(bits: Bits, rows: Bits, k: Bits) -> Bits:
    """``bits[rows, k]``, zero where either is beyond."""
    high, wide = bits.shape
    inside = (rows < high) & (k < wide)
    return np.where(inside, bits[np.minimum(rows, high - 1), np.minimum(k, wide - 1)], 0)


def of_x(move: Callable[[Bits, Bits], tuple[Bits, Bits]]) -> Misread:
    """x read at (token, k) from ``move(token, k)``."""
    return Misread(lambda x, w: (placed(x, *move(*np.indices(x.shape))), w))


def of_w(move: Callable[[Bits, Bits], tuple[Bits, Bits]]) -> Misread:
    """The weights read at (row, k) from ``move(row, k)``; rows and k beyond the last exist, as zeros."""

    def change(x: Bits, w: Bits) -> tuple[Bits, Bits]:
        row, k = np.indices((len(w), w.shape[1] + -w.shape[1] % 32))
        return np.pad(x, [(0, 0), (0, -x.shape[1] % 32)]), placed(w, *move(row, k))

    return Misread(change)


def without(operand: int, rows: slice, k: slice) -> Misread:
    """Part of x (operand 0) or of the weights (1) read as zero."""

    def change(x: Bits, w: Bits) -> tuple[Bits, Bits]:
        (x, w)[operand][rows, k] = 0
        return x, w

    return Misread(change)


def again(k: slice, times: int = 1) -> Misread:
    return Misread(
        lambda x, w: (
            np.concatenate([x, *[x[:, k]] * times], axis=1),
            np.concatenate([w, *[w[:, k]] * times], axis=1),
        )
    )


def registers(row: Bits, k: Bits) -> tuple[Bits, Bits]:
    """Registers 1 and 2 of each lane's A fragment exchanged, in the packed layout's real k."""
    first, second = (row % 16 >= 8) & (k % 4 < 2), (row % 16 < 8) & (k % 4 >= 2)
    return row + 8 * second - 8 * first, k + 2 * first - 2 * second


everything = slice(None)

HALVES = "x[8t+0…3] and x[8t+4…7] exchanged in every 32-block"
REGISTERS = (
    "registers 1 and 2 of the weight fragment exchanged: "
    "(row g+8, k 8t+4s+e) and (row g, k 8t+4s+2+e)"
)
TOLD = {
    # k
    "halves of x": (of_w(lambda r, k: (r, k ^ 4)), (3, 5, 64), HALVES),
    "halves of x, K ragged": (of_w(lambda r, k: (r, k ^ 4)), (3, 5, 45), HALVES),
    "halves of x, one token": (of_w(lambda r, k: (r, k ^ 4)), (1, 5, 32), HALVES),
    "halves of x, many tokens": (of_x(lambda m, k: (m, k ^ 4)), (20, 5, 8), HALVES),
    "halves of x in one K block": (
        of_w(lambda r, k: (r, np.where(k >= 32, k ^ 4, k))),
        (3, 5, 64),
        "x[8t+0…3] and x[8t+4…7] exchanged in k 32…63",
    ),
    "halves of x for one token": (
        of_x(lambda m, k: (m, np.where(m == 2, k ^ 4, k))),
        (5, 5, 64),
        "token 2: x[8t+0…3] and x[8t+4…7] exchanged in every 32-block",
    ),
    "pairs of x": (of_w(lambda r, k: (r, k ^ 2)), (3, 5, 64), "k i and i ^ 2 exchanged"),
    "two K blocks": (
        of_w(lambda r, k: (r, k ^ 32)),
        (3, 5, 64),
        "k 0…31 and 32…63 exchanged",
    ),
    "K tail": (without(1, everything, slice(480, None)), (9, 3, 512), "k 480…511 never read"),
    "last k, N ragged": (without(0, everything, slice(40, 41)), (3, 17, 41), "k 40 never read"),
    "K tail of a row": (
        without(1, slice(5, 6), slice(64, 96)),
        (4, 7, 96),
        "row 5: k 64…95 never read",
    ),
    "K tail of a token": (
        without(0, slice(2, 3), slice(64, 80)),
        (4, 7, 80),
        "token 2: k 64…79 never read",
    ),
    "one step of a row": (
        of_w(lambda r, k: (np.where((r == 5) & (k & 4 > 0), 99, r), k)),
        (4, 7, 40),
        "row 5: k 8i+4…7 never read",
    ),
    "two K blocks of three": (
        without(1, everything, slice(32, None)),
        (4, 3, 96),
        "k 32…95 never read",
    ),
    "a K block twice": (again(slice(32, 64)), (4, 5, 96), "k 32…63 read twice"),
    "a K block three times": (again(slice(0, 32), 2), (4, 5, 50), "k 0…31 read 3 times"),
    "first tile of w": (
        of_w(lambda r, k: (r, k % 32)),
        (4, 5, 64),
        "k 32…63 of x multiplied by k 0…31 of the weights",
    ),
    "first tile of x": (
        of_x(lambda m, k: (m, k % 32)),
        (4, 5, 64),
        "k 32…63 of the weights multiplied by k 0…31 of x",
    ),
    "first tile of x, K ragged": (
        of_x(lambda m, k: (m, k % 32)),
        (4, 5, 70),
        "k 32…63 of the weights multiplied by k 0…31 of x, "
        "k 64…69 of the weights multiplied by k 0…5 of x",
    ),
    "every other tile of x": (
        of_x(lambda m, k: (m, k & ~32)),
        (8, 5, 160),
        "k 32…63 and 96…127 of the weights multiplied by k 0…31 and 64…95 of x",
    ),
    # rows
    "rows g and g + 8": (of_w(lambda r, k: (r ^ 8, k)), (3, 32, 20), "rows g and g + 8 exchanged"),
    "rows g and g + 8, N ragged": (
        of_w(lambda r, k: (r ^ 8, k)),
        (3, 27, 20),
        "rows g and g + 8 exchanged",
    ),
    "rows g and g + 8 in a row block": (
        of_w(lambda r, k: (np.where(r >= 16, r ^ 8, r), k)),
        (3, 32, 20),
        "rows g and g + 8 exchanged in rows 16…31",
    ),
    "a row for its neighbour": (
        of_w(lambda r, k: (r - (r == 39), k)),
        (3, 41, 9),
        "row 39 computed from row 38",
    ),
    "a row block for another": (
        of_w(lambda r, k: (r - 16 * (r >= 32), k)),
        (3, 48, 9),
        "rows 32…47 computed from rows 16…31",
    ),
    "one row for all": (
        of_w(lambda r, k: (0 * r, k)),
        (3, 6, 9),
        "rows 1…5 computed from row 0",
    ),
    "64 rows exchanged": (
        of_w(lambda r, k: (r ^ 64, k)),
        (3, 128, 9),
        "rows 0…63 and 64…127 exchanged",
    ),
    "a row not read": (
        without(1, slice(3, 4), everything),
        (3, 6, 9),
        "row 3 computed from nothing",
    ),
    "one weight for another": (
        of_w(lambda r, k: (r - 16 * ((r == 17) & (k == 12)), k)),
        (3, 20, 40),
        "k 12: row 17 computed from row 1",
    ),
    "registers": (of_w(registers), (3, 32, 64), REGISTERS),
    "registers, N and K ragged": (of_w(registers), (3, 21, 35), REGISTERS),
    "registers, one token": (of_w(registers), (1, 16, 32), REGISTERS),
    "registers in a K block": (
        of_w(lambda r, k: np.where(k >= 32, registers(r, k), (r, k))),
        (5, 16, 64),
        f"k 32…63: {REGISTERS}",
    ),
    "registers without the other rows": (of_w(registers), (3, 8, 16), "k 4i+2…3 never read"),
    # tokens
    "a token for its neighbour": (
        of_x(lambda m, k: (m - (m == 5), k)),
        (7, 3, 20),
        "token 5 computed from token 4",
    ),
    "a token for its neighbour, K smaller": (
        of_x(lambda m, k: (m - (m == 5), k)),
        (7, 3, 4),
        "token 5 computed from token 4",
    ),
    "two tokens": (
        of_x(lambda m, k: (m ^ 1, k)),
        (2, 3, 2),
        "tokens 0 and 1 exchanged",
    ),
    "eight tokens": (
        of_x(lambda m, k: ((m + 8) % 16, k)),
        (16, 3, 9),
        "tokens 0…7 and 8…15 exchanged",
    ),
    "a token not read": (
        without(0, slice(5, 6), everything),
        (7, 3, 20),
        "token 5 computed from nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("out", ["fp32", "bf16"])
@pytest.mark.parametrize("name", TOLD)
def test_a_misreading_is_told_by_its_sentence(name: str, out: str):
    subject, (m, n, k), sentence = TOLD[name]
    assert said(subject, m, n, k, out) == sentence


class After(ByNumpy):
    """A product to whose result something is done."""

    def __init__(self, change: Callable[[np.ndarray], None]) -> None:
        self._change = change

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        y = super().product(x, w, "fp32").view(np.float32)
        self._change(y)
        return y.view(np.uint32)


def test_several_rows_in_one_are_said_to_be_several():
    def accumulated(y: np.ndarray) -> None:
        y[:, 16:] += y[:, : y.shape[1] - 16]

    assert said(After(accumulated), 3, 21, 9) == "rows 16…20 computed from several weights at once"


def test_what_is_no_sum_of_weights_is_said_to_be_none():
    def spoiled(y: np.ndarray) -> None:
        y[:, 4] = np.nan

    assert said(After(spoiled), 3, 6, 9) == "row 4 computed from what is no weight"


def test_where_nothing_simple_is_true_the_first_deviation_is_told():
    order = np.random.default_rng(0).permutation(32)
    sentence = said(of_w(lambda r, k: (order[r], k)), 3, 32, 8)
    assert sentence == (
        f"y[token 0, row 0] was computed from (row {order[0]}, k 7) instead of (row 0, k 7): "
        f"{3 * 8 * (order != np.arange(32)).sum()} of {3 * 9 * 32} probes deviate"
    )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_goes_wrong_there_is_one_sentence(seed: int):
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, 5, 3))
    spots = rng.integers([m, n], size=(2, 2))
    values = rng.choice([0.0, 1.0, np.nan, np.inf, -2.0, 2.0**-126], 2)

    def spoiled(y: np.ndarray) -> None:
        if rng.integers(2):
            y[:] = y[::-1, ::-1].copy()
        y[spots[:, 0], spots[:, 1]] = values

    verdict = probes.diagnose(observed(After(spoiled), m, n, k))
    assert verdict is not None
    assert verdict.wrong == bool(verdict.evidence)
    assert "\n" not in verdict.evidence


def test_a_sample_is_said_to_be_one():
    tail = without(1, everything, slice(300, None))
    assert said(tail, 1, 2, 400).endswith("…399 never read (85 of 400 k probed)")
    of_a_token = without(0, slice(2, 3), slice(64, 96))
    assert said(of_a_token, 4, 7, 96) == "token 2: k 64…94 never read (84 of 96 k probed)"


# Two products in a launch ---------------------------------------------------------------------


class Two(ByNumpy):
    """y0 and y1 of one x; ``reads`` says which weights each is computed from."""

    def __init__(self, *reads: int) -> None:
        self._reads = reads

    def tensors(self, params: Params) -> list[Tensor]:
        x, w, y = super().tensors(params)
        each = [(replace(w, name=f"w{i}"), replace(y, name=f"y{i}")) for i in (0, 1)]
        return [x, *(tensor for pair in each for tensor in pair)]

    def launch(
        self, library: object, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        for i, read in enumerate(self._reads):
            x, w, y = (buffers[name].elements for name in ("x", f"w{read}", f"y{i}"))
            y[...] = self.product(x, w, str(params["out"]))
        return None

    def products(self, params: Params) -> list[Product]:
        return [Product(f"y{i}", "x", f"w{i}") for i in (0, 1)]


def test_each_product_of_a_launch_names_its_own_weights():
    seen = probes.full(observed(Two(0, 1), 3, 5, 7))
    assert seen is not None
    assert seen.identity
    assert seen.whole
    assert said(Two(1, 0), 3, 5, 7) == "y0 and y1 exchanged"
    assert said(Two(0, 0), 3, 5, 7) == "y1 computed from the weights of y0"


def test_what_is_wrong_with_one_product_is_said_of_that_one():
    class Shifted(Two):
        def launch(self, library: object, params: Params, buffers, stream: int) -> str | None:
            super().launch(library, params, buffers, stream)
            buffers["y1"].elements[:, 3] = buffers["y1"].elements[:, 2]
            return None

    assert said(Shifted(0, 1), 3, 5, 7) == "y1: row 3 computed from row 2"


# The ladder -----------------------------------------------------------------------------------


class Coarse(Matmul):
    """Reads rightly, and adds in BF16."""

    def store(self, y: Bits, bits: Bits) -> None:
        y[...] = bits & 0xFFFF0000

    def predict(self, params: Params, inputs: Mapping[str, Bits], core: object) -> dict[str, Bits]:
        return {"y": self.product(inputs["x"], inputs["w"], str(params["out"]))}


def test_after_a_failure_probes_are_asked_out_of_turn_and_clear_what_is_read_rightly():
    observation = observed(Coarse(), 3, 4, 9, seed=1, regime="normal")
    verdicts = {verdict.oracle: verdict for verdict in oracles.judge(observation)}
    assert verdicts["bits"].wrong
    assert verdicts["probes"].outcome is Outcome.PASS


def test_a_case_that_is_looked_at_is_probed_whatever_its_turn():
    observation = observed(SUBJECT, 3, 4, 9, seed=1)
    assert "probes" not in [verdict.oracle for verdict in oracles.judge(observation)]
    looked_at = oracles.judge(observation, thorough=True)
    assert "probes" in [verdict.oracle for verdict in looked_at]


def test_after_a_failed_execution_nothing_is_launched():
    observation = observed(SUBJECT, 3, 4, 9)
    sick = replace(observation.runs[0], problems=(Problem("race", "two writes"),))
    verdicts = oracles.judge(replace(observation, runs=(sick,)))
    assert [verdict.oracle for verdict in verdicts] == [execution.NAME]


def test_explaining_keeps_to_its_launches():
    for thorough, most in ((False, probes.LAUNCHES), (True, probes.THOROUGH)):
        observation = observed(SUBJECT, 1, 3, 2000)
        launched: list[Mapping[str, Bits]] = []
        probes.diagnose(replace(observation, launch=recording(observation, launched)), thorough)
        assert len(launched) <= most


def test_a_problem_of_a_probing_launch_is_a_failure():
    observation = observed(SUBJECT, 3, 4, 9)
    run = replace(observation.runs[0], problems=(Problem("memory", "read past w"),))
    verdict = probes.judge(replace(observation, launch=lambda params, inputs: run))
    assert verdict is not None
    assert verdict.evidence == "memory: read past w"
