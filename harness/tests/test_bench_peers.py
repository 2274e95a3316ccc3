"""Peers on the CPU: right numbers, or a reason. Libraries that need a GPU are stood in for."""

from __future__ import annotations

import functools
import gc
import operator
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from lanecheck import subject
from lanecheck.bench import device
from lanecheck.bench.peers import (
    PEERS,
    Peer,
    Product,
    Unavailable,
    cublaslt,
    gemlite,
    tinygemm,
    tuning,
    versions,
)
from lanecheck.bench.peers import peer as shared
from lanecheck.bench.peers.product import (
    SINGLE,
    TOLERANCE,
    Copies,
    Multiply,
    Operands,
    error,
    refuse_wrong,
)
from lanecheck.bench.timing import Launch, Sample
from lanecheck.subject import Bits, Tensor

torch = pytest.importorskip("torch")

BY_NAME = {peer.name: peer for peer in PEERS}
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
ON_A_CPU = ("F.linear", "mm transposed")
SHAPES = [(1, 16, 32), (1, 1, 1), (3, 5, 7), (8, 48, 130), (64, 33, 96)]


def bits(*shape: int) -> Bits:
    """Ordinary BF16 values."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def wide(values: Bits) -> npt.NDArray[np.float64]:
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def product(m: int = 2, n: int = 16, k: int = 32) -> Product:
    x, w = (torch.from_numpy(each.view(np.int16)) for each in (bits(m, k), bits(n, k)))
    return Product(x.view(torch.bfloat16), w.view(torch.bfloat16))


def copies(count: int, m: int = 2, n: int = 16, k: int = 32) -> Copies:
    return Copies(product(m, n, k), count)


def on_cuda(m: int, n: int, k: int) -> Copies:
    """Copies that nobody may make here."""
    x: Any = SimpleNamespace(shape=(m, k))
    w: Any = SimpleNamespace(shape=(n, k), device=torch.device("cuda"))
    return Copies(Product(x, w), 2)


def reason(peer: Peer, of: Product | None = None) -> str:
    """Why the peer does not take part."""
    with pytest.raises(Unavailable) as refused:
        peer.launches(of or product(), 2)
    return str(refused.value)


def right(copy: Operands) -> Any:
    return copy.x @ copy.w.t()


def each(multiply: Callable[[Operands], Any]) -> Callable[[Iterable[Operands]], list[Multiply]]:
    """A peer that does ``multiply`` over each copy."""

    def call(copy: Operands) -> Multiply:
        return lambda: multiply(copy)

    return lambda copies: [call(copy) for copy in copies]


# The product --------------------------------------------------------------------------------


def of(
    *declared: subject.Product, w: Any = "bf16", y: Any = "bf16", outputs: Sequence[str] = ("out",)
) -> Product:
    """What the peers make of a subject that declares these products, among tensors of one shape."""
    dtypes: dict[str, Any] = {"bias": "bf16", "act": "bf16", "weight": w}
    tensors = [Tensor(name, (4, 4), dtype, "input") for name, dtype in dtypes.items()]
    tensors += [Tensor(name, (4, 4), y, "output") for name in outputs]
    told = SimpleNamespace(products=lambda params: declared, tensors=lambda params: tensors)
    workload: Any = SimpleNamespace(subject=told, case=SimpleNamespace(params={}))
    values = {
        name: torch.full((4, 4), float(index)).bfloat16().view(torch.int16)
        for index, name in enumerate(dtypes)
    }
    return Product.of(workload, values)


PLAIN = subject.Product("out", "act", "weight")


def test_a_product_is_of_the_tensors_that_the_subject_declares() -> None:
    found = of(PLAIN)
    assert found.x.dtype == found.w.dtype == torch.bfloat16
    assert found.x.unique().tolist() == [1] and found.w.unique().tolist() == [2]


@pytest.mark.parametrize(
    ("declared", "tensors", "expected"),
    [
        ((), {}, "the subject does not compute y = x · Wᵀ alone"),
        ((PLAIN, PLAIN), {}, "the subject does not compute y = x · Wᵀ alone"),
        ((PLAIN,), {"outputs": ("out", "more")}, "the subject does not compute y = x · Wᵀ alone"),
        (
            (subject.Product("out", "act", "weight", "bias"),),
            {},
            "the subject adds a bias to x · Wᵀ",
        ),
        (
            (subject.Product("out", "act", "weight", plain=False),),
            {},
            "the subject makes more of x · Wᵀ in an epilogue",
        ),
        ((PLAIN,), {"w": "fp32"}, "it reads BF16, the subject FP32"),
        ((PLAIN,), {"y": "fp32"}, "it writes BF16, the subject FP32"),
    ],
)
def test_what_is_more_or_less_than_one_product_in_bf16_is_refused(
    declared: tuple[subject.Product, ...], tensors: dict[str, Any], expected: str
) -> None:
    with pytest.raises(Unavailable) as refused:
        of(*declared, **tensors)
    assert str(refused.value) == expected


def test_the_reference_is_exact_in_pieces_and_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_PIECE", 3 * 32)
    found = product(2, 16, 32)
    assert found.reference.dtype == torch.float64 and found.reference is found.reference
    expected = wide(bits(2, 32)) @ wide(bits(16, 32)).T
    np.testing.assert_allclose(found.reference.numpy(), expected, rtol=1e-12)


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
    launches = BY_NAME[name].launches(product(*shape), 3)
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


def zeroed(y: Any) -> None:
    y[:, 1] = 0


def negated(y: Any) -> None:
    y[:, 1] *= -1


def exchanged(y: Any) -> None:
    y[:, [1, 2]] = y[:, [2, 1]]


def elsewhere(y: Any) -> None:
    y[:, -1] = y[:, -2]


@pytest.mark.parametrize("wrong", [zeroed, negated, exchanged, elsewhere])
def test_one_wrong_column_among_so_many_that_it_is_lost_in_the_whole_is_refused(
    wrong: Callable[[Any], None],
) -> None:
    many = product(2, 57344, 64)

    def spoilt(copy: Operands) -> Any:
        y = right(copy)
        wrong(y)
        return y

    (copy,) = Copies(many, 1)
    overall, single = error(lambda: spoilt(copy), many.reference).tolist()
    assert overall < TOLERANCE and single > 2 * SINGLE
    said = reason(Peer("wrong", each(spoilt)), many)
    expected = f"one element is off by {single:.2g} times their root mean square"
    assert said == f"its result is wrong: {expected}"


def test_an_unwritten_last_column_among_many_is_refused() -> None:
    def cut(copy: Operands) -> Any:
        copy.out[:, :-1] = right(copy)[:, :-1]
        return copy.out

    said = reason(Peer("cut", each(cut)), product(2, 57344, 64))
    assert said == "its result is wrong: relative error nan"


def test_of_all_copies_the_worst_counts_and_nan_is_the_worst() -> None:
    fine = torch.tensor([1e-3, 0.01])
    refuse_wrong(torch.stack([fine, fine]))
    for bad in ([2e-2, 0.01], [1e-3, 0.2], [1e-3, torch.nan], [torch.nan, 0.01]):
        with pytest.raises(Unavailable):
            refuse_wrong(torch.stack([fine, torch.tensor(bad), fine]))


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


@pytest.mark.parametrize("shape", [(8, 64, 4096), (8, 57344, 64), (1, 16, 28672)], ids=str)
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_rounding_to_bf16_once_or_a_few_times_is_right(
    parts: int, shape: tuple[int, int, int]
) -> None:
    def in_parts(copy: Operands) -> Any:
        pieces = zip(copy.x.chunk(parts, 1), copy.w.chunk(parts, 1))
        return functools.reduce(operator.add, [x @ w.t() for x, w in pieces])

    of = product(*shape)
    assert len(Peer("parts", each(in_parts)).launches(of, 2)) == 2
    (copy,) = Copies(of, 1)
    overall, single = error(lambda: in_parts(copy), of.reference).tolist()
    assert 0 < overall < TOLERANCE / 1.9 and single < SINGLE / 2


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


def broken(copy: Operands) -> Any:
    raise RuntimeError("no kernel image")


def leaving(copy: Operands) -> Any:
    raise SystemExit("unknown compiler")


@pytest.mark.parametrize(
    ("multiply", "expected"),
    [
        (broken, "it fails: RuntimeError: no kernel image"),
        (leaving, "it fails: SystemExit: unknown compiler"),
        (lambda copy: None, "it fails: AttributeError: 'NoneType' object has no attribute 'fill_'"),
    ],
)
def test_a_peer_whose_product_fails_says_how(
    multiply: Callable[[Operands], Any], expected: str
) -> None:
    assert reason(Peer("failing", each(multiply))) == expected


def test_whoever_stops_the_run_stops_it() -> None:
    def interrupted(copies: Copies) -> list[Multiply]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Peer("interrupted", interrupted).launches(product(), 2)


def test_a_launch_that_fails_later_is_a_reason_too() -> None:
    calls: list[Operands] = []

    def twice(copy: Operands) -> Any:
        calls.append(copy)
        return right(copy) if len(calls) <= 2 else broken(copy)

    (launch,) = Peer("twice", each(twice)).launches(product(), 1)
    with pytest.raises(Unavailable, match="it fails: RuntimeError: no kernel image"):
        launch(0)


def test_launches_that_no_graph_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnAGpu(Copies):
        def __init__(self, product: Product, count: int) -> None:
            super().__init__(product, count)
            self.device = torch.device("cuda")

    class Clock:
        def prepare(self, launches: Sequence[Launch]) -> Sample:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(shared, "Copies", OnAGpu)
    monkeypatch.setattr(shared, "CudaGraphClock", Clock)
    expected = "it fails: RuntimeError: operation not permitted when stream is capturing"
    assert reason(Peer("waiting", each(right))) == expected


def test_a_refused_peer_leaves_no_copy_in_memory() -> None:
    held: list[Any] = []

    def fail(copies: Copies) -> list[Multiply]:
        made = list(copies)
        held.extend(weakref.ref(copy) for copy in made)
        raise RuntimeError("out of memory")

    with pytest.raises(Unavailable) as refused:
        Peer("failing", fail).launches(product(), 2)
    assert refused.value.__context__ is None and [ref() for ref in held] == [None, None]


def test_those_that_compile_for_each_shape_are_known_as_slow() -> None:
    slow = [peer for peer in PEERS if peer.compiling_s]
    assert [peer.name for peer in slow] == ["torch.compile", "gemlite"]
    assert all(peer.tuning_s for peer in slow)  # they choose as well


def test_the_versions_of_what_peers_are_made_of_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"gemlite": "0.6.0", "triton": "3.7.1", "unrelated": "1"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert versions() == {"gemlite": "0.6.0", "triton": "3.7.1"}


@pytest.mark.skipif(not PROJECT.is_file(), reason="lanecheck is installed without its sources")
def test_what_an_absent_peer_says_is_in_the_extra_that_installs_all() -> None:
    text = PROJECT.read_text()
    extra = text[text.index("peers = [") :].partition("\n]")[0]
    for package in ("nvmath-python[cu13]", "gemlite", "flashinfer-python"):
        assert f'"{package}>=' in extra
    assert f"flashinfer-python>={'.'.join(map(str, tinygemm.SOUND))};" in extra


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [
        (
            "cuBLASLt",
            "nvmath",
            "nvmath-python is not installed: pip install 'nvmath-python[cu13]'",
        ),
        ("Triton", "triton", "Triton is not installed: pip install triton"),
        ("gemlite", "gemlite", "gemlite is not installed: pip install gemlite"),
        (
            "tinygemm",
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


@pytest.mark.parametrize("name", ["gemlite", "tinygemm", "cuBLASLt"])
def test_a_library_for_gpus_does_not_run_on_a_cpu(name: str, libraries: None) -> None:
    assert reason(BY_NAME[name]) == "it needs a CUDA device"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("gemlite", (1, 16, 48), "it needs K to be a multiple of 32, not 48"),
        ("tinygemm", (1, 16, 64), "it needs compute capability 9.0, this GPU has 8.6"),
        ("Triton", (65, 16, 64), "it is written for 1 to 64 tokens, not 65"),
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
        BY_NAME[name].prepare(on_cuda(*shape))
    assert str(refused.value) == expected


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optional library is there, and empty."""
    names = ("nvmath.linalg.advanced", "triton.testing", "gemlite.core", "flashinfer.gemm")
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setattr(sys.modules["flashinfer"], "__version__", "0.7.4", raising=False)


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
    launches = BY_NAME["torch.compile"].launches(product(), 3)
    assert len(launches) == 3 and capsys.readouterr().out == ""
    options = {
        "max_autotune": True,
        "coordinate_descent_tuning": True,
        "fx_graph_cache": False,  # nor what was chosen before
        "autotune_local_cache": False,
    }
    assert asked == [{"options": options, "dynamic": False, "fullgraph": True}]


# Tuning ---------------------------------------------------------------------------------------


class Stopwatch:
    """A clock that believes what a variant says of itself, and notes what ran for each sample."""

    def __init__(self) -> None:
        self.said = 0.0
        self.chains: list[int] = []
        self.ran: list[Operands] = []

    def taking(self, time: float) -> Callable[[Operands], Any]:
        def variant(copy: Operands) -> Any:
            self.said = time
            self.ran.append(copy)
            return right(copy)

        return variant

    def chain(self, launches: Sequence[Launch]) -> Any:
        def enqueue() -> None:
            for launch in launches:
                launch(0)

        def time() -> float:
            enqueue()
            return self.said * len(launches)

        enqueue()  # as the real one does, before it captures
        self.chains.append(len(launches))
        return SimpleNamespace(launches=len(launches), enqueue=enqueue, time=time)

    def single(self, before: Any, launch: Launch) -> Sample:
        def sample() -> float:
            before.enqueue()
            launch(0)
            return self.said

        return sample


def unable(copy: Operands) -> Any:
    raise MemoryError("shared memory")


def wrong(copy: Operands) -> Any:
    return right(copy) * 2


def fastest(variants: Sequence[Callable[[Operands], Any]], of: Copies, clock: Any) -> Any:
    """What the fastest variant says of its time."""
    chosen = tuning.fastest(variants, of, clock)
    for index, multiply in enumerate(chosen):
        torch.testing.assert_close(
            multiply().double(), of.product.reference * (-1) ** index, rtol=0.01, atol=0.1
        )
    return clock.said


def test_the_fastest_variant_is_found_over_all_copies() -> None:
    clock, made = Stopwatch(), copies(3)
    assert fastest([clock.taking(3), unable, clock.taking(1), clock.taking(2)], made, clock) == 1
    assert clock.chains == [3, 3, 3]


def test_a_fast_variant_with_wrong_numbers_is_not_chosen() -> None:
    clock = Stopwatch()
    assert fastest([clock.taking(3), wrong, clock.taking(2)], copies(3), clock) == 2
    assert clock.chains == [3, 3]


def test_a_variant_that_no_graph_can_hold_is_dropped_alone() -> None:
    clock = Stopwatch()
    calls: list[Operands] = []

    def waiting(copy: Operands) -> Any:
        calls.append(copy)
        return right(copy) if len(calls) <= 2 else unable(copy)

    assert fastest([waiting, clock.taking(3), clock.taking(2)], copies(3), clock) == 2
    assert len(calls) == 3 and clock.chains == [3, 3]


def test_if_no_graph_can_hold_any_variant_the_failure_is_told() -> None:
    class Strict(Stopwatch):
        def chain(self, launches: Sequence[Launch]) -> Any:
            raise RuntimeError("stream is capturing")

    clock = Strict()
    with pytest.raises(Unavailable, match="it fails: RuntimeError: stream is capturing"):
        fastest([clock.taking(3), clock.taking(2)], copies(3), clock)


def test_of_many_copies_few_are_captured_and_the_others_pass_before_each_sample() -> None:
    clock, count = Stopwatch(), 2 * tuning.FEW + 44
    made = copies(count, 1, 1, 1)
    others = count - tuning.FEW
    assert fastest([clock.taking(3), clock.taking(1), clock.taking(2)], made, clock) == 1
    assert sorted(clock.chains) == sorted([tuning.FEW, others, tuning.FEW, tuning.FEW])
    samples = 3 * tuning.ROUNDS
    uses = [id(copy) for copy in clock.ran[-(samples + 1) * count : -count]]
    for start in range(len(uses) - count):
        assert len(set(uses[start : start + count])) == count  # all others, then the same again


def test_on_a_cpu_the_first_variant_that_is_right_is_taken() -> None:
    clock = Stopwatch()
    (multiply,) = tuning.fastest([unable, wrong, clock.taking(3), clock.taking(1)], copies(1))
    multiply()
    assert clock.said == 3


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        ([wrong, unable], "it fails: MemoryError: shared memory"),
        ([unable, wrong], "its result is wrong: relative error 1.0e+00"),
        ([], "it has no kernel for this shape"),
    ],
)
def test_without_a_variant_that_can_take_part_the_last_reason_is_told(
    variants: list[Callable[[Operands], Any]], expected: str
) -> None:
    with pytest.raises(Unavailable) as refused:
        tuning.fastest(variants, copies(1))
    assert str(refused.value) == expected


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

    def reset_operands_unchecked(self, *, a: Any, b: Any, c: Any) -> None:
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
    launches = BY_NAME["cuBLASLt"].launches(product(), 3)
    gc.collect()
    assert len(launches) == 3 and Matmul.freed == 0
    del launches
    gc.collect()
    assert Matmul.freed == 1


# gemlite --------------------------------------------------------------------------------------


class Gemlite:
    """gemlite's core, as far as it is used; a family named unable does not run."""

    DType = SimpleNamespace(BF16="bf16")
    GEMLITE_MATMUL_TYPES_MAPPING: ClassVar = {"GEMV_SPLITK": 2, "GEMM_SPLITK": 3, "GEMM": 4}

    def __init__(self, unable: str = "") -> None:
        self.made: list[dict[str, Any]] = []
        self.ran: list[int] = []
        self.unable = self.GEMLITE_MATMUL_TYPES_MAPPING.get(unable)

    def GemLiteLinear(self, **options: Any) -> Any:
        self.made.append(options)
        return SimpleNamespace(
            pack=lambda w, scales, zeros: None,
            get_tensor_args=lambda: ["W", "scales", "zeros", "scale"],
            get_meta_args=lambda: ["meta"],
        )

    def forward_functional(
        self, x: Any, bias: None, tensors: list[Any], meta: list[str], family: int
    ) -> Any:
        assert tensors[1:] == ["scales", "zeros", "scale"] and meta == ["meta"]
        if family == self.unable:
            raise RuntimeError("out of resource: shared memory")
        self.ran.append(family)
        return x @ tensors[0]


@pytest.fixture
def core(libraries: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Gemlite]:
    def use(unable: str = "") -> Gemlite:
        stand_in: Any = Gemlite(unable)
        monkeypatch.setitem(sys.modules, "gemlite.core", stand_in)
        return stand_in

    monkeypatch.setattr(gemlite, "on_gpu", lambda copies: None)
    active = SimpleNamespace(get_benchmarker=lambda: do_bench)
    triton: Any = sys.modules["triton.testing"]
    triton.do_bench, triton.runtime = (
        do_bench,
        SimpleNamespace(driver=SimpleNamespace(active=active)),
    )
    return use


def do_bench(
    call: Callable[[], Any], warmup: float = 25, rep: float = 100, **options: Any
) -> float:
    """As Triton's, but it says in how many milliseconds it would have timed the call."""
    return warmup + rep


def test_gemlite_chooses_in_less_time_than_triton_would_take_and_others_in_triton_s(
    core: Callable[[str], Gemlite], monkeypatch: pytest.MonkeyPatch
) -> None:
    active, taken = sys.modules["triton.testing"].runtime.driver.active, []
    run = Gemlite.forward_functional

    def tuned(*given: Any) -> Any:
        taken.append(active.get_benchmarker()(None, quantiles=(0.5,)))
        return run(*given)

    monkeypatch.setattr(Gemlite, "forward_functional", tuned)
    core("")
    gemlite.linear(copies(2, 1))
    assert taken and set(taken) == {1.1 * gemlite.SAMPLING_MS}
    assert active.get_benchmarker()(None) == 125


@pytest.mark.parametrize(("m", "families"), [(1, {2, 3}), (4, {2, 3}), (5, {3, 4}), (64, {3, 4})])
def test_gemlite_races_its_kernels_for_so_many_tokens_with_uncut_tiles(
    m: int, families: set[int], core: Callable[[str], Gemlite]
) -> None:
    used = core("")
    launches = BY_NAME["gemlite"].launches(product(m, 16, 96), 3)
    assert len(launches) == 3 and set(used.ran) == families
    (options,) = used.made
    assert (options["W_nbits"], options["group_size"]) == (16, 128)
    assert (options["in_features"], options["out_features"]) == (96, 16)


def test_gemlite_takes_part_with_the_kernels_that_run(core: Callable[[str], Gemlite]) -> None:
    used = core("GEMV_SPLITK")
    assert len(BY_NAME["gemlite"].launches(product(1), 3)) == 3
    assert set(used.ran) == {3}


# tinygemm -------------------------------------------------------------------------------------


@pytest.fixture
def flashinfer(libraries: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """flashinfer, on a GPU that it knows, of a given ``tinygemm_bf16``."""
    monkeypatch.setattr(tinygemm, "on_gpu", lambda copies: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    module = sys.modules["flashinfer.gemm"]
    return lambda multiply: monkeypatch.setattr(module, "tinygemm_bf16", multiply, raising=False)


@pytest.mark.parametrize(
    ("lacking", "ran"), [("", {"zeros", "none"}), ("none", {"zeros"}), ("zeros", {"none"})]
)
def test_tinygemm_takes_part_with_a_bias_of_zeros_or_without_whichever_runs(
    lacking: str, ran: set[str], flashinfer: Callable[[Any], None]
) -> None:
    seen = set()

    def multiply(x: Any, w: Any, out: Any, bias: Any) -> None:
        kind = "none" if bias is None else "zeros"
        if kind == lacking:
            raise ValueError("no program for this shape")
        assert bias is None or (bias.shape == w.shape[:1] and not bias.any())
        seen.add(kind)
        out[:] = x @ w.T

    flashinfer(multiply)
    assert len(BY_NAME["tinygemm"].launches(product(), 3)) == 3
    assert seen == ran


@pytest.mark.parametrize("version", ["0.6.7", "0.6.13.post1"])
def test_a_tinygemm_that_may_wait_for_ever_is_not_asked(
    version: str, flashinfer: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def multiply(*given: Any) -> None:
        raise AssertionError

    flashinfer(multiply)
    monkeypatch.setattr(sys.modules["flashinfer"], "__version__", version)
    least = "pip install 'flashinfer-python>=0.6.14'"
    expected = f"of flashinfer {version}, it may wait for ever: {least}"
    assert reason(BY_NAME["tinygemm"]) == expected


def test_a_shape_that_tinygemm_refuses_is_named_in_its_words(
    flashinfer: Callable[[Any], None],
) -> None:
    def multiply(x: Any, w: Any, out: Any, bias: Any) -> None:
        raise ValueError("output_features (24) must be a multiple of 16\nand more")

    flashinfer(multiply)
    expected = "it fails: ValueError: output_features (24) must be a multiple of 16"
    assert reason(BY_NAME["tinygemm"]) == expected


# Triton ---------------------------------------------------------------------------------------


def test_triton_kernels_are_right_with_every_block_size_and_any_tail() -> None:
    """In FP16: Triton's interpreter multiplies the bits of BF16, not the values."""
    triton = pytest.importorskip("triton")
    script = """
        import torch
        from lanecheck.bench.peers import skinny
        from lanecheck.bench.peers.product import Operands

        for m, n, k in [(1, 1, 1), (1, 33, 2100), (2, 5, 7), (17, 40, 100), (64, 130, 260)]:
            x, w = torch.randn(m, k).half(), torch.randn(n, k).half()
            for blocks in skinny.ONE_TOKEN if m == 1 else skinny.MORE_TOKENS:
                out = torch.full((m, n), torch.nan).half()
                y = skinny.variant(blocks)(Operands(x, w, out))
                exact = x.double() @ w.double().t()
                assert (y - exact).norm() <= 1e-3 * exact.norm(), (m, n, k, blocks)
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip(f"the interpreter of Triton {triton.__version__} knows no NumPy from 2.4 on")
    assert done.returncode == 0, done.stderr
