"""The CUDA operator on this machine's GPU: ``python kernel/tests/gpu_smoke.py``.

Builds the library, loads it, and prints one line a check; ends with 1 if any failed, 2 if it could
not be run. Needs a GPU, nvcc, g++ and a torch with CUDA, and nothing else.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from packed_gemv import build, ops
from packed_gemv.config import Config, supported_trips
from packed_gemv.linear import PackedLinear, swap_linears

BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = ((1, 1), (16, 32), (17, 33), (100, 40), (33, 1000), (512, 512), (4096, 4096), (151, 7168))
TOKENS = (1, 2, 7, 8, 9, 16, 31, 33, 48, 64)


def integers(*shape: int) -> Tensor:
    """BF16 integers from -2 to 2: every sum below is exact in FP32, so one bit decides."""
    return torch.randint(-2, 3, shape, device="cuda").to(BF16)


def reals(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").to(BF16)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    total = x.double() @ weight.double().T
    return total if bias is None else total + bias.double()


def assert_equal(y: Tensor, expected: Tensor) -> None:
    expected = expected.float().to(y.dtype)
    wrong = (y != expected).nonzero()
    assert y.shape == expected.shape, f"shape {tuple(y.shape)}, expected {tuple(expected.shape)}"
    assert not len(wrong), f"{len(wrong)} of {y.numel()} differ, first at {wrong[0].tolist()}"


def assert_close(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Within K additions, each off by at most 2^-22 of the magnitudes, and one rounding to BF16."""
    magnitude = product(x.abs(), weight.abs(), None if bias is None else bias.abs())
    bound = (x.shape[-1] + 2) * 2.0**-22 * magnitude
    expected = product(x, weight, bias)
    if y.dtype == BF16:
        bound = bound + 2.0**-8 * (expected.abs() + bound)
    worst = ((y.double() - expected).abs() - bound).max().item()
    assert worst <= 0, f"{worst} beyond the bound"


def raises(exception: type[Exception], message: str, call: Callable[[], object]) -> None:
    try:
        call()
    except exception as error:
        assert message in str(error), f"expected {message!r} in: {error}"
    else:
        raise AssertionError(f"expected {exception.__name__} with {message!r}")


def exact_integers() -> None:
    for n, k in SHAPES:
        weight, bias = integers(n, k), integers(n)
        packed = ops.prepare(weight)
        for m in TOKENS:
            x = integers(m, k)
            for dtype in (BF16, FP32):
                assert_equal(ops.gemv(x, packed, out_dtype=dtype), product(x, weight))
            assert_equal(ops.gemv(x, packed, bias, out_dtype=FP32), product(x, weight, bias))


def real_values() -> None:
    for n, k in SHAPES:
        x, weight, bias = reals(5, k), reals(n, k), reals(n)
        for dtype in (BF16, FP32):
            y = ops.gemv(x, ops.prepare(weight), bias, out_dtype=dtype)
            assert_close(y, x, weight, bias)


def every_configuration() -> None:
    weight = integers(40, 1056)
    packed = ops.prepare(weight)
    for m in (1, 20, 64):
        x, nb = integers(m, 1056), -(-m // 8)
        for u in supported_trips(nb, 1):
            for nw, s in ((1, 1), (2, 3), (4, 1), (4, 16)):
                y = ops.gemv(x, packed, out_dtype=FP32, config=Config(nw, u, s, nb))
                assert_equal(y, product(x, weight))


def dual() -> None:
    for m, n, k in ((1, 17, 40), (8, 512, 512), (33, 100, 1000)):
        x, gate, up, gate_bias, up_bias = (
            integers(m, k), integers(n, k), integers(n, k), integers(n), integers(n),
        )  # fmt: skip
        gate[:, 8:] = 0  # so that exp stays finite
        packed = ops.prepare(gate), ops.prepare(up)
        biases = {"gate_bias": gate_bias, "up_bias": up_bias}
        for dtype in (BF16, FP32):
            first, second = ops.gemv_dual(x, *packed, **biases, fused=False, out_dtype=dtype)
            assert_equal(first, product(x, gate, gate_bias))
            assert_equal(second, product(x, up, up_bias))
        v, w = product(x, gate, gate_bias), product(x, up, up_bias)
        expected = v / (1 + torch.exp(-v)) * w
        fused = ops.gemv_dual(x, *packed, **biases, out_dtype=FP32)
        torch.testing.assert_close(fused, expected.float(), rtol=4e-6, atol=0)
        fused = ops.gemv_dual(x, *packed, **biases)
        torch.testing.assert_close(fused, expected.to(BF16), rtol=2**-7, atol=0)
        split = Config(2, 1, 3, dual=True)
        assert_equal(
            ops.gemv_dual(x, *packed, **biases, fused=False, out_dtype=FP32, config=split)[1], w
        )


def strides_and_offsets() -> None:
    n, k = 100, 1000
    weight = integers(n, k)
    packed = ops.prepare(weight)
    for offset in (0, 1, 8):
        for pitch in (k, k + 1, k + 8, 3 * k):
            buffer = torch.full((offset + 9 * pitch,), float("nan"), dtype=BF16, device="cuda")
            x = buffer.as_strided((9, k), (pitch, 1), offset)
            x.copy_(integers(9, k))
            for dtype in (BF16, FP32):
                canvas = torch.full((9, n + 7), 9999.0, dtype=dtype, device="cuda")
                out = canvas[:, 3 : 3 + n]
                assert ops.gemv(x, packed, out=out) is out
                assert_equal(out, product(x, weight))
                outside = torch.cat([canvas[:, :3], canvas[:, 3 + n :]], 1)
                assert outside.eq(torch.tensor(9999.0).to(dtype).item()).all(), "wrote outside out"
    x = integers(2, 3, k)
    assert_equal(ops.gemv(x, packed), product(x, weight))
    assert ops.gemv(integers(0, k), packed).shape == (0, n)


def determinism() -> None:
    x, packed = reals(8, 4096), ops.prepare(reals(1024, 4096))
    config = Config(4, 4, 8)
    first = ops.gemv(x, packed, config=config)
    for _ in range(50):
        assert torch.equal(ops.gemv(x, packed, config=config), first)


def side_stream() -> None:
    weight = integers(512, 512)
    packed, stream = ops.prepare(weight), torch.cuda.Stream()
    x, late = torch.zeros(8, 512, dtype=BF16, device="cuda"), integers(8, 512)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a launch on any other stream would read the zeros
        x.copy_(late)
        y = ops.gemv(x, packed, config=Config(4, 2, 2))
    stream.synchronize()
    assert_equal(y, product(late, weight))


def cuda_graph() -> None:
    weight = integers(512, 1024)
    packed, x = ops.prepare(weight), integers(4, 1024)
    configs = Config(4, 2), Config(4, 2, 4)
    torch.cuda.synchronize()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        for config in configs:
            ops.gemv(x, packed, config=config)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ys = [ops.gemv(x, packed, config=config) for config in configs]
    for _ in range(3):
        x.copy_(integers(4, 1024))
        for y in ys:
            y.fill_(float("nan"))
        graph.replay()
        for y in ys:
            assert_equal(y, product(x, weight))


def second_device() -> None:
    weight, x = integers(100, 512).to("cuda:1"), integers(4, 512).to("cuda:1")
    y = ops.gemv(x, ops.prepare(weight), config=Config(4, 2, 2))
    assert y.device.index == 1 and torch.cuda.current_device() == 0
    assert_equal(y, product(x, weight))


def operator_check() -> None:
    x, packed, bias = integers(5, 40), ops.prepare(integers(20, 40)), integers(20)
    operator, w = torch.ops.packed_gemv.gemv.default, packed.data
    walk, y = [4, 2, 1], torch.empty(5, 20, device="cuda")
    torch.library.opcheck(operator, (x, w, None, bias, None, walk, False, y, None))
    torch.library.opcheck(operator, (x, w, w, None, bias, walk, False, y, y.clone()))
    torch.library.opcheck(operator, (x, w, w, bias, None, walk, True, y.bfloat16(), None))


def compiled() -> None:
    packed = ops.prepare(integers(20, 40))
    model = torch.compile(lambda x: ops.gemv(x, packed, out_dtype=FP32) + 1, fullgraph=True)
    for m in (3, 5, 12):
        x = integers(m, 40)
        assert_equal(model(x), product(x, packed.unpacked()) + 1)


def errors() -> None:
    x, packed = integers(5, 40), ops.prepare(integers(20, 40))
    w, y = packed.data, torch.empty(5, 20, device="cuda")
    operator = torch.ops.packed_gemv.gemv

    def direct(x=x, w=w, walk=(4, 2, 1), y=y, bias=None, fused=False):
        return lambda: operator(x, w, None, bias, None, list(walk), fused, y, None)

    raises(ValueError, "weight is on cpu", lambda: ops.gemv(x, ops.prepare(integers(20, 40).cpu())))
    raises(ValueError, "out overlaps x", lambda: ops.gemv(x, packed, out=x[:, :20]))
    raises(RuntimeError, "no kernel was built for M=5", direct(walk=(4, 3, 1)))
    raises(RuntimeError, "walk is out of range", direct(walk=(4, 2, 0)))
    raises(RuntimeError, "x must be BF16", direct(x=integers(40, 5).T))
    raises(RuntimeError, "must be packed", direct(x=integers(5, 65)))
    raises(RuntimeError, "must be packed", direct(y=torch.empty(5, 36, device="cuda")))
    raises(RuntimeError, "y must be [M, N]", direct(y=torch.empty(4, 20, device="cuda")))
    raises(RuntimeError, "every bias", direct(bias=integers(19)))
    raises(RuntimeError, "fused needs w2", direct(fused=True))
    misaligned = torch.empty(w.numel() + 1, dtype=BF16, device="cuda")[1:].view(w.shape)
    raises(RuntimeError, "16 bytes", direct(w=misaligned))
    assert_equal(ops.gemv(x, packed), product(x, packed.unpacked()))  # still well after all that


def linear_layers() -> None:
    model = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 50)).cuda().eval()
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(integers(*parameter.shape))
    x = integers(3, 50, 100)
    expected = model.double()(x.double())
    assert swap_linears(model) == ["0", "2"]
    y = PackedLinear.from_linear(nn.Linear(8, 8)).cuda()(integers(2, 8))
    assert y.dtype == BF16 and y.is_cuda
    hidden = product(x, model[0].weight.unpacked(), model[0].bias)
    assert_equal(model[0](x.float()), hidden)
    rounded = hidden.relu().float().to(BF16)
    assert_close(model(x.float()), rounded, model[2].weight.unpacked(), model[2].bias)
    assert (model(x.float()).double() - expected).norm() <= 2**-6 * expected.norm()


CHECKS = (
    exact_integers, real_values, every_configuration, dual, strides_and_offsets, determinism,
    side_stream, cuda_graph, second_device, operator_check, compiled, errors, linear_layers,
)  # fmt: skip


def host_time() -> str:
    x, packed = reals(1, 512), ops.prepare(reals(512, 512))
    with torch.no_grad():
        for _ in range(200):
            ops.gemv(x, packed)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(2000):
            ops.gemv(x, packed)
        spent = time.perf_counter() - start
    return f"{spent / 2000 * 1e6:.1f} µs of host time a call"


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 2
    start = time.perf_counter()
    try:
        library = build.build(["native"])
    except build.BuildError as error:
        print(f"FAIL build: {error}")
        return 1
    print(f"ok   build ({time.perf_counter() - start:.0f} s): {library}", flush=True)
    torch.manual_seed(0)
    failed = 0
    for check in CHECKS:
        if check is second_device and torch.cuda.device_count() < 2:
            print("skip second_device: one GPU")
            continue
        start = time.perf_counter()
        try:
            check()
            torch.cuda.synchronize()
            print(f"ok   {check.__name__} ({time.perf_counter() - start:.1f} s)", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {check.__name__}: {error}", flush=True)
            traceback.print_exc()
    print(f"note {host_time()}; torch {torch.__version__}, {torch.cuda.get_device_name()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
