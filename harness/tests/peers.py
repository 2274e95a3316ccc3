"""Peers: how other public harnesses judge a kernel, each as one rule and the inputs it is asked on.

They are no oracles of this tool and judge no observation. They answer one question of a faulty kernel:
would this harness, on the inputs it draws, have accepted it?

A rule compares arrays of what the kernel stored, BF16 (of ml_dtypes) or FP32. Where a harness compares
BF16 tensors, torch and CUTLASS round every step to BF16, and so do the rules. What needs more than one
output is left out: NaN-filled buffers, sentinels around them, repeated runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Rule = Callable[[Array, Array], bool]
Draw = Callable[[tuple[int, ...], np.random.Generator], Float32]


@dataclass(frozen=True)
class Peer:
    """Another harness.

    Attributes:
        name: what it calls itself.
        source: its repository on GitHub; the rule names the file.
        rule: whether it accepts an output, given the reference.
        draw: the values of one input, not yet rounded to BF16.
        trials: how many draws it asks.
        fp32_reference: whether it compares with FP32 values. Otherwise the reference is of the
            output's type: sums in FP32, rounded once.
    """

    name: str
    source: str
    rule: Rule
    draw: Draw
    trials: int = 1
    fp32_reference: bool = False

    def accepts(self, out: Array, ref: Array) -> bool:
        """Whether this harness would let ``out`` pass; an output of another shape never does."""
        with np.errstate(all="ignore"):  # infinities and NaN are among the questions
            return out.shape == ref.shape and bool(self.rule(out, ref))


# Rules that compare element by element


def kernelbench(out: Array, ref: Array) -> bool:
    """``isclose(ref, out)``, both tolerances 1e-2 for BF16 and 1e-4 for FP32; NaN fails.

    KernelBench, ``src/kernelbench/eval.py``. The output, not the reference, scales the tolerance.
    """
    tolerance = 1e-4 if ref.dtype == np.float32 else 1e-2
    return bool(isclose(ref, out, tolerance, tolerance).all())


def backendbench(out: Array, ref: Array) -> bool:
    """``isclose(ref, out)``, both tolerances 1e-2 for every type; NaN equals NaN.

    BackendBench, ``BackendBench/eval.py``.
    """
    return bool(isclose(ref, out, 1e-2, 1e-2, equal_nan=True).all())


def robust_kbench(out: Array, ref: Array) -> bool:
    """``isclose(ref, out)``, both tolerances 1e-5; NaN fails.

    robust-kbench, ``robust_kbench/sandbox/correct_forward_fn.py``. Made for FP32: in BF16 it is
    equality for all but tiny values.
    """
    return bool(isclose(ref, out, 1e-5, 1e-5).all())


def assert_close(out: Array, ref: Array) -> bool:
    """``isclose(out, ref)``, rtol 1.6e-2 for BF16 and 1.3e-6 for FP32, atol 1e-5; NaN fails.

    PyTorch, ``torch/testing/_comparison.py``: the defaults of ``torch.testing.assert_close``.
    """
    return bool(isclose(out, ref, 1.3e-6 if ref.dtype == np.float32 else 1.6e-2, 1e-5).all())


def gpu_mode(out: Array, ref: Array) -> bool:
    """|out − ref| ≤ 1e-3 + 1e-3·|ref|, in the output's type; NaN and ±∞ where the reference has them.

    GPU MODE, ``problems/*/utils.py``; every problem sets its own tolerances, these are typical.
    """
    got, want = _float32(out), _float32(ref)
    if any((is_it(got) != is_it(want)).any() for is_it in (np.isnan, np.isposinf, np.isneginf)):
        return False
    return not (_error(out, ref) > _allowed(ref, 1e-3, 1e-3)).any()


def flashinfer_bench(out: Array, ref: Array) -> bool:
    """Every output finite, and |out − ref| ≤ 1e-2 or |out − ref| / (|ref| + 1e-8) ≤ 1e-2, in FP32.

    FlashInfer-Bench, ``flashinfer_bench/bench/evaluators/default.py`` and ``bench/utils.py``. A
    reference that is NaN or infinite accepts any finite output. (MoE: 95 % of the elements suffice.)
    """
    if not np.isfinite(out).all():
        return False
    got, want = _float32(out), _float32(ref)
    error = np.abs(got - want)
    return not ((error > 1e-2) & (error / (np.abs(want) + 1e-8) > 1e-2)).any()


def flashinfer_fuzz(out: Array, ref: Array) -> bool:
    """|out − ref| ≤ 1.5e-2·max|ref| + 1e-3 + 1e-2·|ref|, and finite where the reference is.

    FlashInfer, ``tests/gemm/test_unified_gemm_fuzz.py``, its BF16 mode. A single NaN or infinity in
    the reference makes every element's tolerance NaN or infinite: then any finite output passes.
    """
    got, want = _float32(out), _float32(ref)
    if (np.isfinite(want) & ~np.isfinite(got)).any():
        return False
    allowed = 1.5e-2 * np.abs(want).max() + 1e-3 + 1e-2 * np.abs(want)
    return not (np.abs(got - want) > allowed).any()


def cutlass_exact(out: Array, ref: Array) -> bool:
    """out = ref in every element, −0 being 0; NaN fails.

    CUTLASS 2.x, ``test/unit/gemm/device/testbed.h``; also what the 3.x testbed does unless told
    otherwise.
    """
    return bool((out == ref).all())


def cutlass_testbed(out: Array, ref: Array) -> bool:
    """|out − ref| < ε·(|out| + |ref|) with ε = 0.1; NaN fails, and so does 0 for another value.

    CUTLASS 3.x, ``test/unit/gemm/device/gemm_testbed_3x.hpp``, where it asks for relative equality.
    """
    least = 2.0**-126 if ref.dtype == np.float32 else 2.0**-133  # numeric_limits<Element>::min()
    return bool(_relatively_equal(out, ref, 0.1, least).all())


def cutlass_profiler(out: Array, ref: Array) -> bool:
    """|out − ref| < ε·(|out| + |ref|) with ε = 0.05, or ε/256 next to zero; NaN fails.

    CUTLASS, ``tools/profiler/src/options.cu``: the profiler's defaults.
    """
    return bool(_relatively_equal(out, ref, 0.05, 1 / 256).all())


# Rules that make one number of the whole output


def llama_cpp(out: Array, ref: Array) -> bool:
    """Σ(out − ref)² / Σout² ≤ 5e-4; NaN fails, and an infinity that the reference has not.

    llama.cpp, ``tests/test-backend-ops.cpp``, for MUL_MAT. An infinity on both sides makes the quotient
    NaN, which is not above the limit: then everything passes.
    """
    got, want = _float32(out), _float32(ref)
    if np.isnan(got).any() or np.isnan(want).any():
        return False
    infinite, expected = (np.abs(v) >= np.finfo(np.float32).max for v in (got, want))
    if (infinite != expected).any() or (infinite & (np.signbit(got) != np.signbit(want))).any():
        return False
    errors, squares = ((v * v).sum(dtype=np.float64) for v in (got - want, got))
    return not (errors / squares > 5e-4)


def tinygemm2(out: Array, ref: Array) -> bool:
    """The cosine of out and ref is above 0.99; NaN fails.

    FlashInfer, ``tests/model_optimizations/test_tinygemm2.py``. Blind to any positive factor.
    """
    flat = (_float32(v).ravel() for v in (out, ref))
    got, want = (v / np.maximum(np.linalg.norm(v), np.float32(1e-8)) for v in flat)
    return bool(got @ want > 0.99)


def marlin(out: Array, ref: Array) -> bool:
    """mean|out − ref| / mean|ref| < 0.04, in the output's type; NaN fails.

    vLLM, ``tests/kernels/quantization/test_marlin_gemm.py``.
    """
    errors, sizes = (
        _rounded(v.mean(keepdims=True), ref) for v in (_error(out, ref), np.abs(_float32(ref)))
    )
    return bool((_rounded(errors / sizes, ref) < 0.04).all())


def deepgemm_bf16(out: Array, ref: Array) -> bool:
    """1 − 2·Σout·ref / Σ(out² + ref²) < 1e-5, in FP64; NaN fails.

    DeepGEMM, ``tests/test_bf16.py`` and ``deep_gemm/testing/numeric.py``.
    """
    return _dissimilarity(out, ref) < 1e-5


def deepgemm_fp8(out: Array, ref: Array) -> bool:
    """1 − 2·Σout·ref / Σ(out² + ref²) < 1e-3, in FP64; NaN fails.

    DeepGEMM, ``tests/test_fp8.py``: what it allows a kernel of FP8 weights.
    """
    return _dissimilarity(out, ref) < 1e-3


def triton_kernels(out: Array, ref: Array) -> bool:
    """Of e = |out − ref| / max(rms(ref), |ref|): max ≤ 2e-2 and rms ≤ 4e-3, in FP32; NaN fails.

    triton_kernels, ``python/triton_kernels/triton_kernels/testing.py``. Infinities are compared by
    place, not by sign, and then taken for zeros.
    """
    got, want = _float32(out), _float32(ref)
    infinite = np.isinf(want)
    if (np.isinf(got) != infinite).any():
        return False
    got, want = (np.where(infinite, np.float32(0), v) for v in (got, want))
    scale = 1 / (np.abs(want).max() + np.float32(1e-30))  # no square overflows
    got, want = got * scale, want * scale
    rms = np.sqrt((want * want).mean()) + np.float32(1e-30)
    error = np.abs(want - got) / np.maximum(rms, np.abs(want))
    return bool(error.max() <= 2e-2 and np.sqrt((error * error).mean()) <= 4e-3)


# Inputs


def _uniform(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    return rng.random(shape, np.float32)


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    return rng.standard_normal(shape, np.float32)


def _symmetric(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def _integers(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    # CUTLASS truncates a real number, so 0 is twice as frequent as any other.
    return np.trunc(rng.uniform(-5, 5, shape)).astype(np.float32)


def _sparse(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    return _normal(shape, rng) * (rng.random(shape, np.float32) >= 0.75)


def _normalised(shape: tuple[int, ...], rng: np.random.Generator) -> Float32:
    # Each row and column of a 32 × 32 block gets ± the block's largest value, along the diagonal and,
    # where the block is cut off, along its last row or column.
    values = _normal(shape, rng)
    matrix = values.reshape(-1, shape[-1])
    for top in range(0, matrix.shape[0], 32):
        for left in range(0, matrix.shape[1], 32):
            block = matrix[top : top + 32, left : left + 32]
            along = np.arange(max(block.shape))
            row, column = (np.minimum(along, size - 1) for size in block.shape)
            block[row, column] = rng.choice((-1, 1), along.size) * np.abs(block).max()
    return values


PEERS: tuple[Peer, ...] = (
    Peer("KernelBench", "ScalingIntelligence/KernelBench", kernelbench, _uniform, 5),
    Peer("BackendBench", "meta-pytorch/BackendBench", backendbench, _uniform, 13),
    Peer("robust-kbench", "SakanaAI/robust-kbench", robust_kbench, _normal, 5),
    Peer("torch assert_close", "pytorch/pytorch", assert_close, _normal),
    Peer("GPU MODE", "gpu-mode/reference-kernels", gpu_mode, _normal, 5),
    Peer("FlashInfer-Bench", "flashinfer-ai/flashinfer-bench", flashinfer_bench, _normal, 3),
    Peer("FlashInfer fuzzer", "flashinfer-ai/flashinfer", flashinfer_fuzz, _sparse, 2000, True),
    Peer("CUTLASS 2.x testbed", "NVIDIA/cutlass", cutlass_exact, _integers),
    Peer("CUTLASS 3.x testbed", "NVIDIA/cutlass", cutlass_testbed, _integers),
    Peer("CUTLASS profiler", "NVIDIA/cutlass", cutlass_profiler, _integers),
    Peer("llama.cpp", "ggml-org/llama.cpp", llama_cpp, _symmetric, 1, True),
    Peer("FlashInfer tinygemm2", "flashinfer-ai/flashinfer", tinygemm2, _normal),
    Peer("vLLM marlin", "vllm-project/vllm", marlin, _normal),
    Peer("DeepGEMM BF16", "deepseek-ai/DeepGEMM", deepgemm_bf16, _normal),
    Peer("DeepGEMM FP8", "deepseek-ai/DeepGEMM", deepgemm_fp8, _normal),
    Peer("triton_kernels", "triton-lang/triton", triton_kernels, _normalised),
)


# Arithmetic as torch and CUTLASS do it


def isclose(
    a: Array, b: Array, rtol: float, atol: float, *, equal_nan: bool = False
) -> npt.NDArray[np.bool_]:
    """``torch.isclose``: a = b, or |a − b| finite and ≤ atol + |rtol·b|, rounded at every step."""
    error = _error(a, b)
    close = (a == b) | (np.isfinite(error) & (error <= _allowed(b, rtol, atol)))
    return close | (np.isnan(a) & np.isnan(b)) if equal_nan else close


def _error(a: Array, b: Array) -> Float32:
    return np.abs(_rounded(_float32(a) - _float32(b), b))


def _allowed(b: Array, rtol: float, atol: float) -> Float32:
    # The tolerances themselves stay FP32 numbers, as torch's scalars do.
    relative = np.abs(_rounded(np.float32(rtol) * _float32(b), b))
    return _rounded(np.float32(atol) + relative, b)


def _relatively_equal(a: Array, b: Array, epsilon: float, floor: float) -> npt.NDArray[np.bool_]:
    """``include/cutlass/relatively_equal.h``; unlike torch's scalars, ε and the floor are rounded."""
    eps, least = (_rounded(np.full(1, v, np.float32), b) for v in (epsilon, floor))
    total = _rounded(np.abs(_float32(a)) + np.abs(_float32(b)), b)
    near_zero = (a == 0) | (b == 0) | (total < least)
    return (a == b) | (_error(a, b) < _rounded(eps * np.where(near_zero, least, total), b))


def _dissimilarity(out: Array, ref: Array) -> float:
    got, want = out.astype(np.float64), ref.astype(np.float64)
    total = (got * got + want * want).sum()
    return 0.0 if total == 0 else float(1 - 2 * (got * want).sum() / total)


def _rounded(values: Array, like: Array) -> Float32:
    """``values`` rounded to the type of ``like``, as FP32 numbers again."""
    return values.astype(like.dtype).astype(np.float32)


def _float32(values: Array) -> Float32:
    return values.astype(np.float32)
