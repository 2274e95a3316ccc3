"""pack and unpack: which weight lies where, for every size, in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_gemv import fragments as f
from packed_gemv.layout import PackedWeight, blocks, pack, unpack

rows, columns = st.integers(1, 70), st.integers(1, 140)


def numbered(n: int, k: int) -> np.ndarray:
    """A weight whose every element names its place; 0 is left to the padding."""
    return np.arange(1, n * k + 1, dtype=np.int32).reshape(n, k)


@given(rows, columns)
def test_unpack_undoes_pack(n: int, k: int) -> None:
    weight = numbered(n, k)
    packed = pack(weight)
    assert packed.shape == (blocks(n, 16), blocks(k, 32), 2, 32, 8)
    assert packed.dtype == weight.dtype
    assert packed.flags.c_contiguous
    assert np.array_equal(unpack(packed, n, k), weight)


@given(rows, columns)
def test_a_lane_holds_two_rows_of_its_own_eight_columns(n: int, k: int) -> None:
    packed = pack(numbered(n, k))
    rb, kb, step, lane, value = np.indices(packed.shape)
    g, t = lane // 4, lane % 4
    j, h, e = value // 4, value // 2 % 2, value % 2
    row = 16 * rb + 8 * h + g
    column = 32 * kb + 8 * t + 4 * step + 2 * j + e
    inside = (row < n) & (column < k)
    assert np.array_equal(packed, np.where(inside, row * k + column + 1, 0))


@given(rows, columns)
def test_the_eight_values_are_the_registers_of_a(n: int, k: int) -> None:
    packed = pack(numbered(n, k))
    padded = np.zeros((16 * packed.shape[0], 32 * packed.shape[1]), np.int32)
    padded[:n, :k] = numbered(n, k)
    for rb, kb, step in np.ndindex(packed.shape[:3]):
        row = 16 * rb + f.A_ROW
        column = 32 * kb + f.real_k(step)[f.A_SLOT]
        assert np.array_equal(packed[rb, kb, step], padded[row, column])


@given(st.integers(1, 4), st.integers(1, 4))
def test_on_even_sizes_packing_is_one_reshape_and_one_permutation(rb: int, kb: int) -> None:
    weight = numbered(16 * rb, 32 * kb)
    axes = weight.reshape(rb, 2, 8, kb, 4, 2, 2, 2)  # RB h g KB t s j e
    expected = np.einsum("RhgKtsje->RKsgtjhe", axes).reshape(rb, kb, 2, 32, 8)
    assert np.array_equal(pack(weight), expected)


@given(rows, columns)
def test_the_padding_is_zero_and_nothing_else_is(n: int, k: int) -> None:
    packed = pack(np.ones((n, k), np.uint16))
    assert packed.sum() == n * k
    whole = unpack(packed, 16 * packed.shape[0], 32 * packed.shape[1])
    assert not whole[n:].any() and not whole[:, k:].any()


@given(rows, columns)
def test_a_step_of_a_warp_is_512_contiguous_bytes(n: int, k: int) -> None:
    packed = pack(np.zeros((n, k), np.uint16))
    start = packed.__array_interface__["data"][0]
    for number, place in enumerate(np.ndindex(packed.shape[:3])):
        step = packed[place]
        assert step.flags.c_contiguous and step.nbytes == 512
        assert step.__array_interface__["data"][0] == start + 512 * number


@given(rows, columns, st.integers(1, 3), st.booleans())
def test_strides_do_not_matter_and_the_weight_is_left_alone(
    n: int, k: int, stride: int, transposed: bool
) -> None:
    wide = np.zeros((k, n * stride) if transposed else (n, k * stride), np.int32)
    view = wide.T[::stride] if transposed else wide[:, ::stride]
    view[:] = numbered(n, k)
    packed = pack(view)
    assert np.array_equal(packed, pack(numbered(n, k)))
    packed[:] = -1
    assert np.array_equal(view, numbered(n, k))


@settings(max_examples=20)
@given(rows, columns)
def test_torch_and_numpy_agree(n: int, k: int) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(numbered(n, k))
    packed = pack(weight)
    assert packed.is_contiguous()
    assert np.array_equal(packed.numpy(), pack(numbered(n, k)))
    assert torch.equal(unpack(packed, n, k), weight)


def test_torch_keeps_the_element_type() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(19, 45).to(torch.bfloat16)
    packed = PackedWeight.of(weight)
    assert packed.data.dtype == torch.bfloat16
    assert torch.equal(packed.unpacked(), weight)


@given(rows, columns)
def test_a_packed_weight_knows_its_logical_size(n: int, k: int) -> None:
    packed = PackedWeight.of(numbered(n, k))
    assert (packed.n, packed.k) == (n, k)
    assert packed.data.shape[:2] == (packed.row_blocks, packed.k_blocks)
    assert np.array_equal(packed.unpacked(), numbered(n, k))


@given(st.integers(0, 300), st.integers(1, 40))
def test_blocks_cover_with_none_to_spare(size: int, block: int) -> None:
    count = blocks(size, block)
    assert block * (count - 1) < size <= block * count


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (4, 0)])
def test_what_is_not_a_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"weight must be \[N, K\] with N >= 1 and K >= 1"):
        pack(np.zeros(shape))
    with pytest.raises(ValueError, match="weight must be"):
        PackedWeight.of(np.zeros(shape))


def test_a_size_that_is_not_the_packed_one_is_refused() -> None:
    packed = pack(numbered(16, 32))
    with pytest.raises(ValueError, match=r"shape \(2, 1, 2, 32, 8\) for n=17, k=32, not \(1, 1,"):
        unpack(packed, 17, 32)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 2, 32, 8\) for n=16, k=33, not \(1, 1,"):
        PackedWeight(packed, 16, 33)
