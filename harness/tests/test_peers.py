"""Peers: each rule is its harness's, and what the harnesses let through is what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from peers import PEERS, Peer, isclose

BF16, FP32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
NAMES = {peer.name for peer in PEERS}
EACH = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
TYPES = pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])

Array = npt.NDArray[Any]
Kernel = Callable[[Array, Array], Array]

EQUALITY = {"robust-kbench", "GPU MODE", "CUTLASS 2.x testbed"}  # in BF16, within a few thousandths
TOTALS = {"llama.cpp", "FlashInfer tinygemm2", "vLLM marlin", "DeepGEMM FP8"}


def inputs(peer: Peer, m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    """x and W as the kernel reads them, BF16 values in FP64."""
    rng = np.random.default_rng(seed)
    x, w = (peer.draw(shape, rng).astype(BF16).astype(np.float64) for shape in ((m, k), (n, k)))
    return x, w


def stored(values: Array, dtype: np.dtype[Any] = BF16) -> Array:
    return values.astype(np.float32).astype(dtype)


def reference(peer: Peer, x: Array, w: Array, dtype: np.dtype[Any] = BF16) -> Array:
    return stored(x @ w.T, FP32 if peer.fp32_reference else dtype)


def accepting(
    kernel: Kernel, m: int, n: int, k: int, dtype: np.dtype[Any] = BF16, seed: int = 0
) -> set[str]:
    """Who accepts the kernel on the inputs that it draws itself."""
    names = set()
    for peer in PEERS:
        x, w = inputs(peer, m, n, k, seed)
        if peer.accepts(stored(kernel(x, w), dtype), reference(peer, x, w, dtype)):
            names.add(peer.name)
    return names


# A right kernel


@EACH
@TYPES
@pytest.mark.parametrize("shape", [(1, 16, 32), (5, 48, 300), (16, 64, 4096)])
def test_a_right_output_is_accepted(peer: Peer, dtype: np.dtype[Any], shape: tuple[int, int, int]):
    for seed in range(min(peer.trials, 3)):
        x, w = inputs(peer, *shape, seed)
        assert peer.accepts(stored(x @ w.T, dtype), reference(peer, x, w, dtype))


def one_after_another(x: Array, w: Array) -> Array:
    """Every product is exact in FP32, every sum rounded to it: right, whatever the machine."""
    total = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for one, other in zip(stored(x, FP32).T, stored(w, FP32).T):
        total += np.outer(one, other)
    return total


@pytest.mark.parametrize(
    ("dtype", "n", "refusing"),
    [
        (FP32, 64, {"robust-kbench", "torch assert_close"}),
        (BF16, 1024, {"robust-kbench", "GPU MODE"}),
    ],
    ids=["fp32", "bf16"],
)
def test_some_refuse_a_right_kernel_for_its_order_of_additions(
    dtype: np.dtype[Any], n: int, refusing: set[str]
):
    assert accepting(one_after_another, 8, n, 4096, dtype) == NAMES - refusing


# A wrong kernel


@EACH
@TYPES
def test_nothing_else_than_the_shape_of_the_reference_is_accepted(peer: Peer, dtype: np.dtype[Any]):
    x, w = inputs(peer, 4, 64, 128)
    right = stored(x @ w.T, dtype)
    assert not peer.accepts(right[:1], reference(peer, x, w, dtype))


@TYPES
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_nobody_accepts_zeros_nan_or_infinities(value: float, dtype: np.dtype[Any]):
    assert accepting(lambda x, w: np.full((4, 64), value), 4, 64, 256, dtype) == set()


def row_zeroed(x: Array, w: Array) -> Array:
    y = x @ w.T
    y[:, 7] = 0
    return y


def row_lost(x: Array, w: Array) -> Array:
    y = x @ w.T
    y[:, 7] = np.nan
    return y


def doubled(x: Array, w: Array) -> Array:
    return 2 * (x @ w.T)


def next_bf16(x: Array, w: Array) -> Array:
    y = stored(x @ w.T)
    return np.where(y == 0, y, (y.view(np.uint16) + 1).view(BF16))


def partials_in_bf16(x: Array, w: Array) -> Array:
    parts = np.split(x, 8, axis=1), np.split(w, 8, axis=1)
    return sum(stored(a @ b.T).astype(np.float64) for a, b in zip(*parts))


def first_half(x: Array, w: Array) -> Array:
    half = x.shape[1] // 2
    return x[:, :half] @ w[:, :half].T


@pytest.mark.parametrize(
    ("kernel", "shape", "who"),
    [
        (row_zeroed, (8, 4096, 256), TOTALS),
        (row_lost, (8, 4096, 256), set()),
        (doubled, (8, 64, 256), {"FlashInfer tinygemm2"}),
        (first_half, (8, 64, 256), set()),
        (next_bf16, (8, 256, 256), NAMES - EQUALITY - {"DeepGEMM BF16"}),
        (
            partials_in_bf16,
            (8, 256, 2048),
            TOTALS
            | {
                "DeepGEMM BF16",
                "KernelBench",
                "BackendBench",
                "triton_kernels",
                "FlashInfer fuzzer",
            },
        ),
    ],
)
def test_who_lets_a_wrong_kernel_pass(kernel: Kernel, shape: tuple[int, int, int], who: set[str]):
    for seed in (0, 1):
        assert accepting(kernel, *shape, seed=seed) == who


@pytest.mark.parametrize("bit", [0x0001, 0x8000])
def test_exact_integers_notice_one_bit_of_one_element(bit: int):
    peer = next(peer for peer in PEERS if peer.name == "CUTLASS 2.x testbed")
    x, w = inputs(peer, 8, 64, 512)
    out = reference(peer, x, w)
    out.view(np.uint16)[3, 5] ^= bit
    assert not peer.accepts(out, reference(peer, x, w))


# Uniform [0, 1) inputs: every sum is near K/4


def a_constant(x: Array, w: Array) -> Array:
    return np.full((x.shape[0], w.shape[0]), x.shape[1] / 4)


def x_permuted(x: Array, w: Array) -> Array:
    return np.roll(x, 1, axis=1) @ w.T


@pytest.mark.parametrize("kernel", [a_constant, x_permuted])
def test_uniform_inputs_make_a_constant_of_every_output(kernel: Kernel):
    uniform = next(peer for peer in PEERS if peer.name == "KernelBench")
    x, w = inputs(uniform, 4, 16, 2**18)
    out = stored(kernel(x, w))
    accepted = {peer.name for peer in PEERS if peer.accepts(out, reference(peer, x, w))}
    assert accepted == NAMES - EQUALITY
    assert accepting(kernel, 4, 16, 2**16, seed=1) >= {"KernelBench", "BackendBench"}


# Special values

ONE, NAN, INF = 1.0, np.nan, np.inf
PAIRS = (
    (ONE, ONE),
    (NAN, ONE),
    (NAN, NAN),
    (ONE, NAN),
    (INF, INF),
    (-INF, INF),
    (ONE, INF),
    (INF, ONE),
)


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("KernelBench", {(INF, INF)}),
        ("BackendBench", {(INF, INF), (NAN, NAN)}),
        ("robust-kbench", {(INF, INF)}),
        ("torch assert_close", {(INF, INF)}),
        ("GPU MODE", {(INF, INF), (NAN, NAN)}),
        ("FlashInfer-Bench", {(ONE, NAN), (ONE, INF)}),
        ("FlashInfer fuzzer", {(NAN, NAN), (ONE, NAN), (INF, INF), (-INF, INF), (ONE, INF)}),
        ("CUTLASS 2.x testbed", {(INF, INF)}),
        ("CUTLASS 3.x testbed", {(INF, INF)}),
        ("CUTLASS profiler", {(INF, INF)}),
        ("llama.cpp", {(INF, INF)}),
        ("FlashInfer tinygemm2", set()),
        ("vLLM marlin", set()),
        ("DeepGEMM BF16", set()),
        ("DeepGEMM FP8", set()),
        ("triton_kernels", {(INF, INF), (-INF, INF)}),
    ],
)
@TYPES
def test_special_values(name: str, also: set[tuple[float, float]], dtype: np.dtype[Any]):
    """Pairs of output and reference, as one element among right ones."""
    peer = next(peer for peer in PEERS if peer.name == name)
    ref = np.linspace(1, 2, 64).astype(dtype)
    accepted = set()
    for pair in PAIRS:
        got, want = ref.copy(), ref.copy()
        got[9], want[9] = pair
        if peer.accepts(got, want):
            accepted.add(pair)
    assert accepted == {(ONE, ONE)} | also


@pytest.mark.parametrize(
    ("value", "who"), [(NAN, {"FlashInfer fuzzer"}), (INF, {"FlashInfer fuzzer", "llama.cpp"})]
)
def test_one_special_value_may_hide_everything_else(value: float, who: set[str]):
    ref = np.linspace(1, 2, 64).astype(BF16)
    ref[9] = value
    out = np.where(np.arange(64) == 9, ref, np.ones(64, BF16))
    assert {peer.name for peer in PEERS if peer.accepts(out, ref)} == who


def test_a_zero_has_no_relative_tolerance():
    tiny, zero = np.full(4, 1e-5, BF16), np.zeros(4, BF16)
    close = {peer.name for peer in PEERS if peer.accepts(tiny, zero)}
    assert close == {
        "KernelBench",
        "BackendBench",
        "robust-kbench",
        "torch assert_close",
        "GPU MODE",
        "FlashInfer-Bench",
        "FlashInfer fuzzer",
        "CUTLASS profiler",
    }


# The same arithmetic as torch


def pairs(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Any bits with any others, with bits a few hundredths away or less, and edges with edges."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2 ** (8 * unsigned.itemsize), (2, 20_000), unsigned)
    steps = rng.integers(-5, 6, 20_000) << rng.integers(0, 17 if dtype == FP32 else 1, 20_000)
    near = (bits[0].astype(np.int64) + steps).astype(unsigned)
    edges = [0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0]
    edges = np.array([sign | edge for edge in edges for sign in (0, 0x8000)], unsigned)
    edges <<= unsigned.type(8 * unsigned.itemsize - 16)
    lattice = np.meshgrid(edges, edges)
    a = np.concatenate([bits[0], bits[0], lattice[0].ravel()])
    b = np.concatenate([bits[1], near, lattice[1].ravel()])
    return a.view(dtype), b.view(dtype)


def tensor(values: Array) -> Any:
    torch = pytest.importorskip("torch")
    if values.dtype == FP32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


@TYPES
@pytest.mark.parametrize("equal_nan", [False, True])
@pytest.mark.parametrize(
    ("rtol", "atol"),
    [(0, 0), (1e-2, 1e-2), (1e-4, 1e-4), (1e-5, 1e-5), (1.6e-2, 1e-5), (1.3e-6, 1e-5), (0.5, 1e30)],
)
def test_isclose_is_torchs(dtype: np.dtype[Any], rtol: float, atol: float, equal_nan: bool):
    torch = pytest.importorskip("torch")
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        ours = isclose(a, b, rtol, atol, equal_nan=equal_nan)
    theirs = torch.isclose(tensor(a), tensor(b), rtol=rtol, atol=atol, equal_nan=equal_nan)
    assert np.array_equal(ours, theirs.numpy())
    assert ours.any()
    assert not ours.all()


def torch_raises(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return True
    return False


@TYPES
def test_rules_are_what_torch_says_of_the_same_tensors(dtype: np.dtype[Any]):
    """Errors of growing size: each rule turns from acceptance to refusal where torch's formula does."""
    torch = pytest.importorskip("torch")
    close = torch.testing.assert_close
    tolerance = 1e-2 if dtype == BF16 else 1e-4
    formulas: dict[str, Callable[[Any, Any], bool]] = {
        "KernelBench": lambda y, r: torch.allclose(r, y, rtol=tolerance, atol=tolerance),
        "BackendBench": lambda y, r: (
            not torch_raises(lambda: close(r, y, rtol=1e-2, atol=1e-2, equal_nan=True))
        ),
        "robust-kbench": lambda y, r: torch.allclose(r, y, rtol=1e-5, atol=1e-5),
        "torch assert_close": lambda y, r: not torch_raises(lambda: close(y, r)),
        "GPU MODE": lambda y, r: not ((y - r).abs() > 1e-3 + 1e-3 * r.abs()).any(),
        "FlashInfer tinygemm2": lambda y, r: bool(
            torch.nn.functional.cosine_similarity(r.float(), y.float(), dim=0) > 0.99
        ),
        "vLLM marlin": lambda y, r: bool((y - r).abs().mean() / r.abs().mean() < 0.04),
    }
    rng = np.random.default_rng(0)
    seen: set[tuple[str, bool]] = set()
    for scale in np.geomspace(1e-8, 1, 120):
        exact, noise = rng.standard_normal((2, 64), np.float32)
        out, ref = stored(exact * (1 + scale * noise), dtype), stored(exact, dtype)
        for peer in PEERS:
            if peer.name in formulas:
                accepted = peer.accepts(out, ref)
                assert accepted == formulas[peer.name](tensor(out), tensor(ref)), (peer.name, scale)
                seen.add((peer.name, accepted))
    assert seen == {(name, verdict) for name in formulas for verdict in (False, True)}


# Inputs


@EACH
def test_draws_have_their_shape_and_follow_from_the_seed(peer: Peer):
    one, same, other = (peer.draw((40, 100), np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert one.dtype == np.float32
    assert one.shape == (40, 100)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert peer.draw((7,), np.random.default_rng(0)).shape == (7,)


def test_draws_are_what_the_harnesses_draw():
    drawn = {p.name: p.draw((128, 96), np.random.default_rng(0)) for p in PEERS}
    assert 0 <= drawn["KernelBench"].min() < 0.01 < 0.99 < drawn["KernelBench"].max() <= 1
    assert -1 <= drawn["llama.cpp"].min() < -0.99 < 0.99 < drawn["llama.cpp"].max() <= 1
    assert set(np.unique(drawn["CUTLASS 2.x testbed"])) == set(range(-4, 5))
    assert np.mean(drawn["FlashInfer fuzzer"] == 0) == pytest.approx(0.75, abs=0.02)
    assert drawn["DeepGEMM BF16"].std() == pytest.approx(1, abs=0.02)
    # Every row and column of a block reaches the largest value of the block.
    block = np.abs(drawn["triton_kernels"][32:64, 64:96])
    assert (block.max(axis=0) == block.max()).all()
    assert (block.max(axis=1) == block.max()).all()


def test_names_are_distinct():
    assert len(NAMES) == len(PEERS)
