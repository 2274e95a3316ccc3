"""The torch front on a CPU: what it computes and refuses, and how the CUDA library is built."""

from __future__ import annotations

import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

from packed_gemv import build, ops, recipe  # noqa: E402
from packed_gemv.config import Config, select  # noqa: E402
from packed_gemv.layout import PackedWeight  # noqa: E402

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def exact(x, weight, bias=None):
    """The product in FP64, and the sum of its terms' magnitudes, which bounds FP32's error."""
    wide, matrix = x.double(), weight.double().T
    total, magnitude = wide @ matrix, wide.abs() @ matrix.abs()
    if bias is not None:
        total, magnitude = total + bias.double(), magnitude + bias.double().abs()
    return total, magnitude


def assert_rounds(y, x, weight, bias=None):
    """``y`` is the product, up to K + 1 FP32 roundings and the one into its own dtype."""
    total, magnitude = exact(x, weight, bias)
    bound = (x.shape[-1] + 1) * 2.0**-23 * magnitude
    if y.dtype == BF16:
        bound = bound + 2.0**-8 * (total.abs() + bound)
    assert (y.double() - total).abs().le(bound).all()


# What it computes.


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 16, 32), (5, 17, 33), (64, 100, 129)])
def test_gemv(m, n, k, dtype):
    x, weight, bias = bf16(m, k), bf16(n, k), bf16(n)
    packed = ops.prepare(weight)
    for b in (None, bias):
        y = ops.gemv(x, packed, b, out_dtype=dtype)
        assert y.shape == (m, n) and y.dtype == dtype and y.is_contiguous()
        assert_rounds(y, x, weight, b)


def test_gemv_dual_is_two_gemvs():
    x, gate, up, gate_bias, up_bias = bf16(9, 40), bf16(20, 40), bf16(20, 40), bf16(20), bf16(20)
    packed = {"gate": ops.prepare(gate), "up": ops.prepare(up)}
    biases = {"gate_bias": gate_bias, "up_bias": up_bias}
    first, second = ops.gemv_dual(x, **packed, **biases, fused=False, out_dtype=FP32)
    assert torch.equal(first, ops.gemv(x, packed["gate"], gate_bias, out_dtype=FP32))
    assert torch.equal(second, ops.gemv(x, packed["up"], up_bias, out_dtype=FP32))
    fused = ops.gemv_dual(x, **packed, **biases, out_dtype=FP32)
    torch.testing.assert_close(fused, torch.nn.functional.silu(first) * second)


def test_silu_of_extremes_follows_the_kernel():
    gate = torch.tensor([[100.0], [-100.0], [float("inf")], [float("-inf")], [0.0]]).to(BF16)
    one = ops.prepare(torch.ones(5, 1, dtype=BF16))
    y = ops.gemv_dual(torch.ones(1, 1, dtype=BF16), ops.prepare(gate), one, out_dtype=FP32)[0]
    assert y[0] == 100 and y[1] == 0 and y[2] == float("inf") and y[3].isnan() and y[4] == 0


@pytest.mark.parametrize(
    "shape", [(48,), (1, 48), (3, 48), (2, 3, 48), (2, 1, 4, 48), (1, 1, 1, 48)]
)
def test_leading_dimensions(shape):
    x, weight = bf16(*shape), bf16(24, 48)
    y = ops.gemv(x, ops.prepare(weight))
    assert y.shape == (*shape[:-1], 24)
    assert_rounds(y, x, weight)


@pytest.mark.parametrize("shape", [(0, 48), (2, 0, 48)])
def test_no_tokens(shape):
    packed = ops.prepare(bf16(24, 48))
    assert ops.gemv(bf16(*shape), packed).shape == (*shape[:-1], 24)
    first, second = ops.gemv_dual(bf16(*shape), packed, packed, fused=False, out_dtype=FP32)
    assert first.shape == second.shape == (*shape[:-1], 24) and first.dtype == FP32


@pytest.mark.parametrize("offset", [0, 1, 7])
@pytest.mark.parametrize("pitch", [48, 49, 80])
def test_strided_x_is_read_in_place(offset, pitch):
    buffer = torch.full((offset + 5 * pitch,), float("nan")).to(BF16)
    x = buffer.as_strided((5, 48), (pitch, 1), offset)
    x.copy_(bf16(5, 48))
    weight = bf16(24, 48)
    assert_rounds(ops.gemv(x, ops.prepare(weight)), x, weight)


def test_strides_of_single_rows_and_columns_do_not_matter():
    row = bf16(48)[None].expand(1, 48).as_strided((1, 48), (3, 1))
    column = bf16(5, 7)[:, 2:3]
    wide, narrow = bf16(24, 48), bf16(24, 1)
    assert_rounds(ops.gemv(row, ops.prepare(wide)), row, wide)
    assert_rounds(ops.gemv(column, ops.prepare(narrow)), column, narrow)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_out_with_a_row_stride(dtype):
    x, weight = bf16(5, 48), bf16(24, 48)
    buffer = torch.full((5, 40), 7.0, dtype=dtype)
    out = buffer[:, 3:27]
    version = out._version
    assert ops.gemv(x, ops.prepare(weight), out=out) is out
    assert_rounds(out, x, weight)
    assert buffer[:, :3].eq(7).all() and buffer[:, 27:].eq(7).all()
    assert out._version > version


def test_out_pair():
    x, packed = bf16(2, 2, 48), ops.prepare(bf16(24, 48))
    outs = torch.empty(2, 2, 24), torch.empty(2, 2, 24)
    assert ops.gemv_dual(x, packed, packed, fused=False, out=outs) == outs
    assert torch.equal(*outs)


def test_column_slices_of_one_buffer_do_not_overlap():
    buffer, weight = bf16(5, 72), bf16(24, 48)
    x, out = buffer[:, :48], buffer[:, 48:]
    expected = ops.gemv(x, ops.prepare(weight))
    assert torch.equal(ops.gemv(x, ops.prepare(weight), out=out), expected)


@pytest.mark.parametrize("view", [lambda w: w, lambda w: w.T.contiguous().T, lambda w: w[::2, ::3]])
def test_prepare_takes_any_strides(view):
    weight = view(bf16(34, 99))
    packed = ops.prepare(weight)
    assert packed.data.is_contiguous() and torch.equal(packed.unpacked(), weight)


def test_autocast_leaves_the_sum_in_fp32():
    x, weight = bf16(3, 500), bf16(24, 500)
    with torch.autocast("cpu", dtype=BF16):
        assert_rounds(ops.gemv(x, ops.prepare(weight), out_dtype=FP32), x, weight)


def test_config_takes_its_token_blocks_from_x():
    x, weight = bf16(20, 64), bf16(24, 64)
    assert_rounds(ops.gemv(x, ops.prepare(weight), config=Config(2, 1, 2)), x, weight)


@pytest.mark.parametrize("dual", [False, True], ids=["one weight", "two weights"])
def test_one_batch_invariant_config_serves_every_m_with_the_same_partition(dual, walked):
    n, k = 8, 4096  # tuned for U = 8 at one token, which 64 tokens leave no registers for
    config, packed = select(1, n, k, dual, batch_invariant=True), ops.prepare(bf16(n, k))
    for m in range(1, 65):
        if dual:
            ops.gemv_dual(bf16(m, k), packed, packed, config=config)
        else:
            ops.gemv(bf16(m, k), packed, config=config)
    assert {(nw, s) for nw, _, s in walked} == {(config.nw, config.s)}
    expected = [select(m, n, k, dual, batch_invariant=True).u for m in range(1, 65)]
    assert [u for _, u, _ in walked] == expected and len(set(expected)) > 1


def test_operator_check():
    x, packed, bias = bf16(5, 40), ops.prepare(bf16(20, 40)), bf16(20)
    operator, w = torch.ops.packed_gemv.gemv.default, packed.data
    walk, y = [4, 2, 1], torch.empty(5, 20)
    torch.library.opcheck(operator, (x, w, None, bias, None, walk, False, y, None))
    torch.library.opcheck(operator, (x, w, w, None, bias, walk, False, y, torch.empty(5, 20)))
    torch.library.opcheck(operator, (x, w, w, bias, None, walk, True, y.bfloat16(), None))


def test_compiles_without_a_graph_break():
    packed = ops.prepare(bf16(20, 40))

    def model(x, out):
        ops.gemv(x, packed, out=out)
        return ops.gemv_dual(x, packed, packed) + out

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for m in (3, 9, 8, 12):  # the second makes M dynamic
        x = bf16(m, 40)
        out, expected = torch.zeros(m, 20), torch.zeros(m, 20)
        torch.testing.assert_close(compiled(x, out), model(x, expected))
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dual", [False, True], ids=["one weight", "two weights"])
def test_few_graphs_serve_every_number_of_tokens(dual):
    """Fewer than torch.compile's limit, beyond which fullgraph fails."""
    from torch import _dynamo
    from torch._dynamo import testing

    packed, counter = ops.prepare(bf16(20, 40)), testing.CompileCounterWithBackend("aot_eager")

    def model(x):
        return ops.gemv_dual(x, packed, packed) if dual else ops.gemv(x, packed)

    _dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for m in (5, *range(64, 0, -1)):
        x = bf16(m, 40)
        torch.testing.assert_close(compiled(x), model(x))
    assert counter.frame_count < _dynamo.config.recompile_limit


# What it refuses: arguments in place of the good ones, the exception, and what it must say.

X, W, BIAS = bf16(5, 48), bf16(24, 48), bf16(24)
PACKED = ops.prepare(W)
SHARED = torch.zeros(8, 48, dtype=BF16)
REFUSED = {
    "x no tensor": ({"x": [1.0]}, TypeError, "x must be a torch.Tensor"),
    "x dtype": ({"x": X.float()}, TypeError, r"x must be torch.bfloat16.*x\.to"),
    "x sparse": ({"x": X.to_sparse()}, TypeError, "x must be a strided"),
    "x scalar": ({"x": bf16()}, ValueError, r"x must have shape \[..., 48\]"),
    "x K": ({"x": bf16(5, 47)}, ValueError, r"x must have shape \[..., 48\].*\(5, 47\)"),
    "x padded K": ({"x": bf16(5, 64)}, ValueError, r"x must have shape \[..., 48\]"),
    "x tokens": ({"x": bf16(65, 48)}, ValueError, "65 tokens.*at most 64"),
    "x tokens in N-D": ({"x": bf16(2, 33, 48)}, ValueError, "66 tokens.*at most 64"),
    "x column-major": ({"x": bf16(48, 5).T}, ValueError, r"x with shape.*x\.contiguous"),
    "x every other": ({"x": bf16(5, 96)[:, ::2]}, ValueError, "x with shape"),
    "x one row repeated": ({"x": bf16(1, 48).expand(5, 48)}, ValueError, "x with shape"),
    "x two strides": ({"x": bf16(2, 5, 48)[:, :3]}, ValueError, r"x with shape.*contiguous"),
    "x device": ({"x": X.to("meta")}, ValueError, "weight is on cpu but x is on meta"),
    "x grad": ({"x": X.clone().requires_grad_()}, RuntimeError, "x requires grad"),
    "weight unpacked": ({"weight": W}, TypeError, "weight must be a PackedWeight.*prepare"),
    "weight dtype": (
        {"weight": PackedWeight(PACKED.data.float(), 24, 48)}, TypeError, "weight.data must be",
    ),
    "weight numpy": (
        {"weight": PackedWeight(PACKED.data.float().numpy(), 24, 48)}, TypeError, "weight.data",
    ),
    "weight device": (
        {"weight": PackedWeight(PACKED.data.to("meta"), 24, 48)}, ValueError, "weight is on meta",
    ),
    "weight strides": (
        {"weight": PackedWeight(PACKED.data[:1].expand(2, -1, -1, -1, -1), 24, 48)},
        ValueError, "weight.data must be contiguous",
    ),
    "weight grad": (
        {"weight": PackedWeight(PACKED.data.clone().requires_grad_(), 24, 48)},
        RuntimeError, "weight requires grad",
    ),
    "bias size": ({"bias": bf16(23)}, ValueError, r"bias must have shape \(24,\)"),
    "bias rank": ({"bias": bf16(1, 24)}, ValueError, r"bias must have shape \(24,\)"),
    "bias dtype": ({"bias": BIAS.float()}, TypeError, "bias must be torch.bfloat16"),
    "bias strides": ({"bias": bf16(48)[::2]}, ValueError, "bias must be contiguous"),
    "bias device": ({"bias": BIAS.to("meta")}, ValueError, "bias is on meta"),
    "bias grad": ({"bias": BIAS.clone().requires_grad_()}, RuntimeError, "bias requires grad"),
    "out no tensor": ({"out": 1}, TypeError, "out must be a torch.Tensor"),
    "out dtype": ({"out": torch.empty(5, 24).half()}, TypeError, "out must be torch.bfloat16 or"),
    "out shape": ({"out": torch.empty(24, 5)}, ValueError, r"out must have shape \(5, 24\)"),
    "out rank": ({"out": torch.empty(1, 5, 24)}, ValueError, "out must have shape"),
    "out device": ({"out": torch.empty(5, 24, device="meta")}, ValueError, "out is on meta"),
    "out column-major": ({"out": torch.empty(24, 5).T}, ValueError, "out with shape"),
    "out rows overlap": (
        {"out": torch.empty(90).as_strided((5, 24), (16, 1))}, ValueError, "out with shape",
    ),
    "out grad": ({"out": torch.empty(5, 24, requires_grad=True)}, RuntimeError, "out requires"),
    "out is x": ({"x": SHARED[:5], "out": SHARED[3:, :24]}, ValueError, "out overlaps x"),
    "out over x as rows": (
        {"x": SHARED[:4], "out": SHARED.view(-1)[100:196].view(4, 24)}, ValueError, "overlaps x",
    ),
    "out over bias": (
        {"bias": SHARED[2, :24], "out": SHARED[:5, :24]}, ValueError, "out overlaps bias",
    ),
    "out over weight": (
        {"out": PACKED.data.view(-1)[-120:].view(5, 24)}, ValueError, "out overlaps weight",
    ),
    "out_dtype": ({"out_dtype": torch.float16}, TypeError, "out_dtype must be"),
    "out and out_dtype": (
        {"out": torch.empty(5, 24), "out_dtype": BF16}, TypeError, "out is torch.float32 but",
    ),
    "config dual": ({"config": Config(2, 1, dual=True)}, ValueError, "config.dual"),
    "config too large": ({"x": bf16(64, 48), "config": Config(16, 1)}, ValueError, "nw=16"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    changed, exception, message = REFUSED[case]
    arguments = {"x": X, "weight": PACKED} | changed
    with pytest.raises(exception, match=message):
        ops.gemv(**arguments)


def test_refuses_what_only_dual_can_get_wrong():
    other = ops.prepare(bf16(24, 47))
    with pytest.raises(ValueError, match=r"same \(N, K\).*'up': \(24, 47\)"):
        ops.gemv_dual(X, PACKED, other)
    with pytest.raises(TypeError, match="up must be a PackedWeight"):
        ops.gemv_dual(X, PACKED, W)
    with pytest.raises(ValueError, match="up_bias must have shape"):
        ops.gemv_dual(X, PACKED, PACKED, up_bias=bf16(5))
    with pytest.raises(TypeError, match="out must be a pair"):
        ops.gemv_dual(X, PACKED, PACKED, fused=False, out=torch.empty(5, 24))
    with pytest.raises(TypeError, match="out must be a torch.Tensor"):
        ops.gemv_dual(X, PACKED, PACKED, out=(torch.empty(5, 24), torch.empty(5, 24)))
    both = torch.empty(5, 24)
    with pytest.raises(ValueError, match=r"out\[1\] overlaps out\[0\]"):
        ops.gemv_dual(X, PACKED, PACKED, fused=False, out=(both, both))
    with pytest.raises(ValueError, match="same dtype and strides"):
        ops.gemv_dual(X, PACKED, PACKED, fused=False, out=(both, torch.empty(5, 48)[:, :24]))


def test_grad_is_no_matter_where_none_is_recorded():
    x = X.clone().requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = torch.empty(5, 24)
            assert not ops.gemv(x, PACKED, out=out).requires_grad


@pytest.mark.parametrize(
    ("weight", "exception", "message"),
    [
        (W.float(), TypeError, "weight must be torch.bfloat16"),
        (W[0], ValueError, r"\[N, K\]"),
        (W[:0], ValueError, "N >= 1"),
        (W.float().numpy(), TypeError, "torch.Tensor"),
    ],
)
def test_prepare_refuses(weight, exception, message):
    with pytest.raises(exception, match=message):
        ops.prepare(weight)


# The CUDA library.


def test_a_missing_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(ops, "_loaded", False)
    monkeypatch.setenv(build.LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(RuntimeError, match="python -m packed_gemv.build"):
        ops.load_library()


def test_a_library_that_does_not_load_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(ops, "_loaded", False)
    library = tmp_path / "packed_gemv.so"
    library.write_text("not a library")
    monkeypatch.setenv(build.LIBRARY_VARIABLE, str(library))
    with pytest.raises(RuntimeError, match="does not load under torch"):
        ops.load_library()


def test_the_cache_follows_the_sources(monkeypatch, tmp_path):
    monkeypatch.delenv(build.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    before = build.default_library()
    assert tmp_path in before.parents and build.default_library() == before
    sources = shutil.copytree(recipe.root, tmp_path / "csrc")
    (sources / "launch.cu").write_text("// changed")
    monkeypatch.setattr(recipe, "root", sources)
    assert build.default_library() != before


def test_arch_names():
    assert build.gencode("sm_90a") == "arch=compute_90a,code=sm_90a"
    assert build.gencode("sm_100f") == "arch=compute_100f,code=sm_100f"
    for name in ("90a", "compute_90", "sm_9", "sm_90a;x"):
        with pytest.raises(ValueError, match="sm_80"):
            build.gencode(name)


def test_build_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.main(["--arch", "sm_90a", "--out", str(tmp_path / "library.so")]) == 1
    assert "nvcc was not found" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        build.main(["--arch", "hopper"])
    assert stopped.value.code == 2


@pytest.fixture
def cuda_compiler(monkeypatch):
    """An nvcc and a g++: the machine's own, or those that lanecheck finds or installs."""
    toolchain = pytest.importorskip("lanecheck.toolchain")
    errors = pytest.importorskip("lanecheck.errors")
    tools = toolchain.Toolchain()
    try:
        environment = tools.compile_environment
    except errors.CannotRun as missing:
        pytest.skip(str(missing))
    for name, value in {**environment, "CUDA_HOME": str(tools.root)}.items():
        monkeypatch.setenv(name, value)


def test_the_binding_needs_only_the_stable_abi(tmp_path, monkeypatch, cuda_compiler):
    """The binding beside a kernel of three stubs: seconds rather than a minute."""
    sources = shutil.copytree(recipe.root, tmp_path / "csrc")
    (sources / "launch.cu").write_text(
        '#include "launch.h"\n'
        "cudaError_t packed_gemv_launch(const PackedGemvArgs*, cudaStream_t) { return {}; }\n"
        "int64_t packed_gemv_workspace_bytes(const PackedGemvArgs*) { return 0; }\n"
    )
    monkeypatch.setattr(recipe, "root", sources)
    library = build.build(["sm_90a"], tmp_path / "out" / "library.so")
    assert list(library.parent.iterdir()) == [library]

    def listed(*command: str) -> list[str]:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    needed = {
        line.split("[")[1].rstrip("]")
        for line in listed("readelf", "-d", str(library))
        if "(NEEDED)" in line
    }
    assert {"libtorch_cpu.so", "libtorch_cuda.so"} <= needed
    assert not any("cudart" in name or "python" in name for name in needed)
    undefined = [line.split()[-1] for line in listed("nm", "-D", "-u", str(library)) if line]
    unstable = [name for name in undefined if name.startswith(("_ZN2at", "_ZN3c10", "_ZN5torch"))]
    assert "aoti_torch_get_current_cuda_stream" in undefined and not unstable
