"""The fragment tables against the PTX ISA's own formulas, and the relabelling of k."""

from __future__ import annotations

import numpy as np
import pytest

from packed_gemv import fragments as f
from packed_gemv.layout import pack

LANES = range(32)


def places(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))


def test_a_as_the_isa_words_it() -> None:
    for lane in LANES:
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
            column = thread * 2 + (i & 1) + (0 if i < 4 else 8)
            assert (f.A_ROW[lane, i], f.A_SLOT[lane, i]) == (row, column)


def test_b_as_the_isa_words_it() -> None:
    for lane in LANES:
        group, thread = lane >> 2, lane % 4
        for i in range(4):
            row = thread * 2 + (i & 1) + (0 if i < 2 else 8)
            assert (f.B_SLOT[lane, i], f.B_COLUMN[lane, i]) == (row, group)


def test_d_as_the_isa_words_it() -> None:
    for lane in LANES:
        group, thread = lane >> 2, lane % 4
        for i in range(4):
            row = group if i < 2 else group + 8
            assert (f.D_ROW[lane, i], f.D_COLUMN[lane, i]) == (row, thread * 2 + (i & 1))


@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [
        (f.A_ROW, f.A_SLOT, (16, 16)),
        (f.B_SLOT, f.B_COLUMN, (16, 8)),
        (f.D_ROW, f.D_COLUMN, (16, 8)),
    ],
    ids="ABD",
)
def test_every_element_of_an_operand_is_held_exactly_once(
    first: np.ndarray, second: np.ndarray, shape: tuple[int, int]
) -> None:
    assert sorted(places(first, second)) == list(np.ndindex(shape))


def test_the_two_steps_share_out_the_32_wide_block() -> None:
    both = [f.real_k(0), f.real_k(1)]
    assert sorted(np.concatenate(both).tolist()) == list(range(f.K_BLOCK))
    assert [len(k) for k in both] == [f.SLOTS, f.SLOTS]


@pytest.mark.parametrize("step", [0, 1])
def test_a_lanes_slots_are_its_half_octet(step: int) -> None:
    """x: values 4s … 4s+3 of the octet 8t … 8t+7; W: the same k in each of the lane's two rows."""
    for lane in LANES:
        half = (8 * (lane % 4) + 4 * step + np.arange(4)).tolist()
        assert f.real_k(step)[f.B_SLOT[lane]].tolist() == half
        held = f.real_k(step)[f.A_SLOT[lane]]
        for row in (lane // 4, lane // 4 + 8):
            assert held[f.A_ROW[lane] == row].tolist() == half


def test_a_and_b_agree_about_every_k() -> None:
    """One mma over relabelled operands is the dot product over the real k of its step."""
    rng = np.random.default_rng(0)
    weight, x = rng.integers(-9, 9, (16, 32)), rng.integers(-9, 9, (8, 32))
    total = np.zeros((16, 8), np.int64)
    for step in (0, 1):
        octets = x.reshape(8, 4, 8)[f.G, f.T]  # lane (g, t): token g, k 8t … 8t+7
        b = f.gather_b(octets[:, 4 * step : 4 * step + 4])
        total += f.gather_a(pack(weight)[0, 0, step]) @ b
    assert np.array_equal(total, weight @ x.T)


@pytest.mark.parametrize("step", [-1, 2, 16])
def test_there_is_no_third_step(step: int) -> None:
    with pytest.raises(ValueError, match=f"step is 0 or 1, not {step}"):
        f.real_k(step)


def test_gathering_undoes_the_tables_whatever_comes_before_the_lane() -> None:
    a = np.arange(3 * 2 * 256, dtype=np.uint16).reshape(3, 2, 16, 16)
    b = np.arange(5 * 128, dtype=np.uint16).reshape(5, 16, 8)
    assert np.array_equal(f.gather_a(a[..., f.A_ROW, f.A_SLOT]), a)
    assert np.array_equal(f.gather_b(b[..., f.B_SLOT, f.B_COLUMN]), b)
    assert f.gather_a(a[..., f.A_ROW, f.A_SLOT]).dtype == np.uint16


def test_neighbouring_lanes_read_neighbouring_16_bytes() -> None:
    """Consecutive lanes hold consecutive octets of the packed array: 32 x 16 = 512 bytes a step."""
    weight = np.arange(16 * 32).reshape(16, 32)
    for step, warp in enumerate(pack(weight)[0, 0]):
        expected = [weight[f.A_ROW[lane], f.real_k(step)[f.A_SLOT[lane]]] for lane in LANES]
        assert np.array_equal(warp.ravel(), np.concatenate(expected))
        assert warp.astype(np.uint16).nbytes == 512
