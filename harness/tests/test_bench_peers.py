"""Peers on the CPU: right numbers, or a reason. Libraries that need a GPU are stood in for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lanecheck.bench.peers import PEERS, Peer, Unavailable, cublaslt, tuning
from lanecheck.bench.peers.peer import Multiply
from lanecheck.bench.peers.product import Copies, Operands, Product
from lanecheck.bench.plan import Workload
from lanecheck.bench.timing import Launch, Sample
from lanecheck.subject import Bits, Tensor

torch = pytest.importorskip("torch")

BY_NAME = {peer.name: peer for peer in PEERS}
ON_A_CPU = ("F.linear", "mm, pre-transposed")
SHAPES = [(1, 16, 32), (1, 1, 1), (3, 5, 7), (8, 48, 130), (64, 33, 96)]


def bits(*shape: int) -> Bits:
    """Ordinary BF16 values."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def wide(values: Bits) -> npt.NDArray[np.float64]:
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def product(m: int = 2, n: int = 16, k: int = 32) -> Product:
    return Product(bits(m, k), bits(n, k))


def workload(m: int = 2, n: int = 16, k: int = 32) -> Workload:
    """As much of a workload as a peer looks at."""
    operands = product(m, n, k)
    stand_in: Any = SimpleNamespace(
        tensors=[
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "source"),
            Tensor("y", (m, n), "bf16", "output"),
        ],
        inputs={"x": operands.x, "w": operands.w},
    )
    return stand_in


def copies(count: int, m: int = 2, n: int = 16, k: int = 32, device: str = "cpu") -> Copies:
    return Copies(product(m, n, k), count, torch.device(device))


def reason(peer: Peer, of: Workload | None = None) -> str:
    """Why the peer does not take part."""
    with pytest.raises(Unavailable) as refused:
        peer.launches(of or workload(), 2, device="cpu")
    return str(refused.value)


def right(copy: Operands) -> Any:
    return copy.x @ copy.w.t()


def each(multiply: Callable[[Operands], Any]) -> Callable[[Iterable[Operands]], list[Multiply]]:
    """A peer that does ``multiply`` over each copy."""

    def call(copy: Operands) -> Multiply:
        return lambda: multiply(copy)

    return lambda copies: [call(copy) for copy in copies]


# Right numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_peer_computes_the_product_of_every_copy(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    expected = wide(bits(m, k)) @ wide(bits(n, k)).T
    for index, multiply in enumerate(BY_NAME[name].prepare(copies(3, *shape))):
        y = multiply()
        assert y.dtype == torch.bfloat16 and y.shape == (m, n)
        signed = -expected if index % 2 else expected
        np.testing.assert_allclose(y.double().numpy(), signed, rtol=2**-8, atol=1e-4)
    launches = BY_NAME[name].launches(workload(*shape), 3, device="cpu")
    assert len(launches) == 3
    for launch in launches:
        launch(0)


def test_copies_lie_in_memory_of_their_own() -> None:
    made = list(copies(3))
    addresses = {t.data_ptr() for copy in made for t in (copy.x, copy.w, copy.out)}
    assert len(addresses) == 9


def test_copies_are_made_when_they_are_asked_for() -> None:
    lazily = iter(copies(10**12))
    assert next(lazily).w.shape == (16, 32)


def test_a_peer_with_one_wrong_column_is_refused() -> None:
    def wrong(copy: Operands) -> Any:
        y = right(copy)
        y[:, -1] = y[:, 0]
        return y

    assert reason(Peer("wrong", each(wrong))).startswith("its result is wrong: relative error ")


def test_a_peer_that_leaves_an_element_unwritten_is_refused() -> None:
    def partial(copy: Operands) -> Any:
        copy.out[:, 1:] = right(copy)[:, 1:]
        return copy.out

    def lazy(copies: Copies) -> list[Multiply]:
        made = list(copies)
        for copy in made:
            copy.out[:] = right(copy)  # by somebody else, beforehand
        return each(partial)(made)

    assert reason(Peer("lazy", lazy)) == "its result is wrong: relative error nan"


def test_a_peer_that_keeps_to_one_copy_is_refused() -> None:
    def warm(copies: Copies) -> list[Multiply]:
        first, *others = copies
        return [lambda: right(first) for _ in (first, *others)]

    assert reason(Peer("warm", warm)) == "its result is wrong: relative error 2.0e+00"


def test_rounding_to_bf16_once_or_twice_is_right() -> None:
    def in_two_parts(copy: Operands) -> Any:
        half = copy.x.shape[1] // 2
        return copy.x[:, :half] @ copy.w[:, :half].t() + copy.x[:, half:] @ copy.w[:, half:].t()

    assert len(Peer("parts", each(in_two_parts)).launches(workload(8, 64, 4096), 2, "cpu")) == 2


# Reasons --------------------------------------------------------------------------------------


def test_a_peer_that_fails_says_how_in_one_line_and_prints_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(copies: Copies) -> list[Multiply]:
        print("tuning …")
        print("AUTOTUNE …", file=sys.stderr)
        raise RuntimeError("no such kernel\nmore\nlines")

    assert reason(Peer("failing", fail)) == "it fails: RuntimeError: no such kernel"
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [
        (
            "cuBLASLt, autotuned",
            "nvmath",
            "nvmath-python is not installed: pip install 'nvmath-python[cu13]'",
        ),
        ("Triton, autotuned", "triton", "Triton is not installed: pip install triton"),
        ("gemlite", "gemlite", "gemlite is not installed: pip install gemlite"),
        (
            "flashinfer tinygemm",
            "flashinfer",
            "flashinfer is not installed: pip install flashinfer-python",
        ),
    ],
)
def test_an_absent_library_is_named_with_how_to_install_it(
    name: str, module: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [each for each in sys.modules if each.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    assert reason(BY_NAME[name]) == expected


def test_a_library_without_what_it_needs_is_not_called_absent(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gemlite.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gemlite", raising=False)
    expected = "gemlite cannot be imported: ModuleNotFoundError: No module named"
    assert reason(BY_NAME["gemlite"]).startswith(expected)


@pytest.mark.parametrize("name", ["gemlite", "flashinfer tinygemm", "cuBLASLt, autotuned"])
def test_a_library_for_gpus_does_not_run_on_a_cpu(name: str, libraries: None) -> None:
    assert reason(BY_NAME[name]) == "it needs a CUDA device"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("gemlite", (1, 16, 48), "it needs K to be a multiple of 32, not 48"),
        (
            "flashinfer tinygemm",
            (1, 24, 64),
            "it needs N to be a multiple of 16 and K of 64, not 24 and 64",
        ),
        (
            "flashinfer tinygemm",
            (1, 16, 96),
            "it needs N to be a multiple of 16 and K of 64, not 16 and 96",
        ),
        ("flashinfer tinygemm", (1, 16, 64), "it needs compute capability 9.0, this GPU has 8.6"),
        ("Triton, autotuned", (65, 16, 64), "it is written for 1 to 64 tokens, not 65"),
    ],
)
def test_a_shape_or_gpu_that_a_peer_does_not_know_is_named(
    name: str,
    shape: tuple[int, int, int],
    expected: str,
    libraries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(Unavailable) as refused:
        BY_NAME[name].prepare(copies(2, *shape, device="cuda"))
    assert str(refused.value) == expected


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optional library is there, and empty."""
    for name in ("nvmath.linalg.advanced", "triton", "gemlite", "flashinfer.gemm"):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, module, ModuleType(module))


# Compiled -------------------------------------------------------------------------------------


def test_compiling_asks_for_the_most_tuning_of_one_shape_without_graphs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, object]] = []

    def compile(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        asked.append(options)

        def compiled(*operands: Any) -> Any:
            print("AUTOTUNE linear")
            return function(*operands)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    launches = BY_NAME["torch.compile max-autotune"].launches(workload(), 3, device="cpu")
    assert len(launches) == 3 and capsys.readouterr().out == ""
    mode = {"mode": "max-autotune-no-cudagraphs", "dynamic": False, "fullgraph": True}
    assert asked == [mode]


# Tuning ---------------------------------------------------------------------------------------


class Stopwatch:
    """A clock that believes what a variant says of itself."""

    def __init__(self) -> None:
        self.said = 0.0
        self.copies: list[int] = []

    def taking(self, time: float) -> Callable[[Operands], Any]:
        def variant(copy: Operands) -> Any:
            self.said = time
            return time, copy

        return variant

    def prepare(self, launches: Sequence[Launch]) -> Sample:
        self.copies.append(len(launches))
        launches[0](0)
        said = self.said
        return lambda: said


def unable(copy: Operands) -> Any:
    raise MemoryError("shared memory")


def test_the_fastest_variant_is_found_over_all_copies() -> None:
    clock, made = Stopwatch(), list(copies(3))
    variants = [clock.taking(3), unable, clock.taking(1), clock.taking(2)]
    chosen = tuning.fastest(variants, made, clock)
    assert [multiply() for multiply in chosen] == [(1, copy) for copy in made]
    assert clock.copies == [3, 3, 3]


def test_on_a_cpu_the_first_variant_that_runs_is_taken() -> None:
    clock = Stopwatch()
    (multiply,) = tuning.fastest([unable, clock.taking(3), clock.taking(1)], list(copies(1)))
    assert multiply()[0] == 3


def test_without_a_variant_that_runs_the_failure_is_told() -> None:
    with pytest.raises(MemoryError, match="shared memory"):
        tuning.fastest([unable, unable], list(copies(1)))


# cuBLASLt -------------------------------------------------------------------------------------


class Matmul:
    """nvmath's, as far as it is used: in place, on column-major matrices, two algorithms."""

    freed = 0

    def __init__(self, a: Any, b: Any, c: Any, *, beta: float, options: dict[str, Any]) -> None:
        assert beta == 0 and options["inplace"]
        self.operands = (a, b, c)

    def plan(self, *, preferences: dict[str, int]) -> tuple[str, ...]:
        assert preferences["limit"] > 1
        return "unsupported", "supported"

    def reset_operands(self, *, a: Any, b: Any, c: Any) -> None:
        for old, new in zip(self.operands, (a, b, c)):
            assert (old.shape, old.stride()) == (new.shape, new.stride())
        self.operands = (a, b, c)

    def execute(self, *, algorithm: str, release_workspace: bool) -> None:
        assert release_workspace  # an event of one capture is no business of the next
        if algorithm == "unsupported":
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        a, b, c = self.operands
        c[:] = a @ b

    def free(self) -> None:
        Matmul.freed += 1


def test_cublaslt_runs_a_supported_algorithm_over_every_copy_and_is_freed(
    libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["nvmath.linalg.advanced"], "Matmul", Matmul, raising=False)
    monkeypatch.setattr(cublaslt, "on_gpu", lambda copies: None)
    monkeypatch.setattr(Matmul, "freed", 0)
    launches = BY_NAME["cuBLASLt, autotuned"].launches(workload(), 3, device="cpu")
    gc.collect()
    assert len(launches) == 3 and Matmul.freed == 0
    del launches
    gc.collect()
    assert Matmul.freed == 1


# Triton ---------------------------------------------------------------------------------------


def test_triton_kernels_are_right_with_every_block_size_and_any_tail() -> None:
    """In FP16: Triton's interpreter multiplies the bits of BF16, not the values."""
    pytest.importorskip("triton")
    script = """
        import torch
        from lanecheck.bench.peers import skinny
        from lanecheck.bench.peers.product import Operands, error

        for m, n, k in [(1, 1, 1), (1, 33, 2100), (2, 5, 7), (17, 40, 100), (64, 130, 260)]:
            x, w = torch.randn(m, k).half(), torch.randn(n, k).half()
            for blocks in skinny.ONE_TOKEN if m == 1 else skinny.MORE_TOKENS:
                out = torch.full((m, n), torch.nan).half()
                y = skinny.variant(blocks)(Operands(x, w, out))
                assert error(y, x.double() @ w.double().t()) <= 1e-3, (m, n, k, blocks)
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=True)
