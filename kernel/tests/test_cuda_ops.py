"""The operator on a GPU: what it computes, to the bit, and how it keeps torch's rules."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from on_gpu import (  # noqa: E402
    BF16,
    FP32,
    Launches,
    assert_bits,
    delay,
    integers,
    poisoned,
    product,
    reals,
    together,
)

from packed_gemv import ops  # noqa: E402
from packed_gemv.config import Config, max_warps, select, supported_trips  # noqa: E402
from packed_gemv.layout import PackedWeight, pack  # noqa: E402
from packed_gemv.linear import PackedLinear, swap_linears  # noqa: E402

pytestmark = pytest.mark.usefixtures("cuda")
nn = torch.nn

SHAPES = [(1, 1), (16, 32), (17, 33), (100, 40), (33, 1000), (512, 512), (4096, 4096), (151, 7168)]
SPLIT = Config(4, 2, 3)


@pytest.fixture
def second_gpu(cuda) -> str:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    return "cuda:1"


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# What it computes.


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_integer_sums_are_exact(n, k):
    weight, bias = integers(n, k), integers(n)
    packed = ops.prepare(weight)
    for m in (1, 2, 7, 8, 9, 16, 31, 33, 48, 64):
        x = integers(m, k)
        for dtype in (BF16, FP32):
            assert_bits(ops.gemv(x, packed, out_dtype=dtype), product(x, weight))
            assert_bits(ops.gemv(x, packed, bias, out_dtype=dtype), product(x, weight, bias))


@pytest.mark.parametrize("k", [1056, 1051], ids=["16-byte loads", "2-byte loads"])
@pytest.mark.parametrize("dual", [False, True], ids=["one weight", "two weights"])
@pytest.mark.parametrize("nb", range(1, 9))
def test_every_kernel_gives_the_exact_sums(nb, dual, k):
    mats = 1 + dual
    x, *weights = integers(8 * nb - 3, k), *(integers(40, k) for _ in range(mats))
    packed = [ops.prepare(weight) for weight in weights]
    sums = [product(x, weight) for weight in weights]
    for u in supported_trips(nb, mats):
        for nw, s in ((1, 1), (2, 3), (max_warps(nb, mats), 1), (max_warps(nb, mats), 16)):
            config = Config(nw, u, s, nb, dual)
            if dual:
                ys = ops.gemv_dual(x, *packed, fused=False, out_dtype=FP32, config=config)
            else:
                ys = (ops.gemv(x, *packed, out_dtype=FP32, config=config),)
            for y, expected in zip(ys, sums):
                assert_bits(y, expected)


def test_any_weight_is_read_out_by_a_one():
    weight = reals(512, 96)
    y = ops.gemv(torch.eye(96, device="cuda")[:64].to(BF16), ops.prepare(weight), out_dtype=FP32)
    assert_bits(y, weight.T[:64].float())


def test_any_x_is_read_out_by_a_one():
    x = reals(64, 96)
    y = ops.gemv(x, ops.prepare(torch.eye(96, device="cuda").to(BF16)), out_dtype=FP32)
    assert_bits(y, x.float())


def test_trips_change_no_bit():
    x, packed = reals(8, 4096), ops.prepare(reals(256, 4096))
    ys = [ops.gemv(x, packed, out_dtype=FP32, config=Config(4, u, 5)) for u in (1, 2, 4, 8)]
    for y in ys[1:]:
        assert_bits(y, ys[0])


@pytest.mark.parametrize("s", [1, 5])
def test_the_bits_of_a_token_do_not_depend_on_the_tokens_beside_it(s):
    x, packed = reals(64, 4096), ops.prepare(reals(256, 4096))
    nw = select(64, 256, 4096, batch_invariant=True).nw
    whole = ops.gemv(x, packed, out_dtype=FP32, config=Config(nw, 1, s))
    for m in (1, 2, 7, 8, 9, 33, 63):
        y = ops.gemv(x[:m], packed, out_dtype=FP32, config=Config(nw, 1, s))
        assert_bits(y, whole[:m])


@pytest.mark.parametrize("config", [None, Config(2, 1, 3, dual=True)], ids=["tuned", "split"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 17, 40), (8, 512, 512), (33, 100, 1000)])
def test_two_weights_with_biases(m, n, k, config):
    x, gate, up = integers(m, k), integers(n, k), integers(n, k)
    biases = {"gate_bias": integers(n), "up_bias": integers(n)}
    packed = ops.prepare(gate), ops.prepare(up)
    first, second = product(x, gate, biases["gate_bias"]), product(x, up, biases["up_bias"])
    for dtype in (BF16, FP32):
        options = {"out_dtype": dtype, "config": config, "fused": False}
        ys = ops.gemv_dual(x, *packed, **biases, **options)
        assert_bits(ys[0], first)
        assert_bits(ys[1], second)


@pytest.mark.parametrize("config", [None, Config(2, 1, 3, dual=True)], ids=["tuned", "split"])
def test_fused_silu_where_it_is_exact(config):
    """Gates are multiples of 128, whose silu is the gate itself or a zero of the sign of -1."""
    x, gate, up = integers(9, 500), 128 * integers(40, 500), integers(40, 500)
    packed = ops.prepare(gate), ops.prepare(up)
    v, w = product(x, gate), product(x, up)
    expected = torch.where(v > 0, v, torch.where(v < 0, -0.0, 0.0)) * w
    for dtype in (BF16, FP32):
        y = ops.gemv_dual(x, *packed, out_dtype=dtype, config=config)
        assert_bits(y, expected)


def test_more_slices_than_there_is_to_share():
    x, weight = integers(3, 4000), integers(40, 4000)
    y = ops.gemv(x, ops.prepare(weight), config=Config(2, 1, 65535), out_dtype=FP32)
    assert_bits(y, product(x, weight))


@pytest.mark.parametrize("shape", [(0, 48), (2, 0, 48), (48,), (2, 1, 4, 48)])
def test_leading_dimensions(shape):
    x, weight = integers(*shape), integers(24, 48)
    y = ops.gemv(x, ops.prepare(weight), config=SPLIT)
    assert_bits(y, product(x.view(-1, 48), weight).view(*shape[:-1], 24))


# Where its tensors lie.


@pytest.mark.parametrize("offset", [0, 1, 8], ids="x from element {}".format)
@pytest.mark.parametrize("pitch", [1000, 1001, 1008, 3000], ids="rows {} apart".format)
def test_strided_x_and_out(offset, pitch):
    weight = integers(100, 1000)
    packed = ops.prepare(weight)
    x = poisoned(offset + 9 * pitch, dtype=BF16).as_strided((9, 1000), (pitch, 1), offset)
    x.copy_(integers(9, 1000))
    for dtype in (BF16, FP32):
        for config in (None, SPLIT):
            canvas = torch.full((9, 107), 9984.0, dtype=dtype, device="cuda")
            out = canvas[:, 3:103]
            assert ops.gemv(x, packed, out=out, config=config) is out
            assert_bits(out, product(x, weight))
            assert canvas[:, :3].eq(9984).all() and canvas[:, 103:].eq(9984).all()


@pytest.mark.parametrize("units", [1, 3, 5], ids="{} units of 16 bytes in".format)
def test_contiguous_views_at_odd_16_byte_offsets(units):
    def moved(tensor):
        room = tensor.new_full((8 * units + tensor.numel() + 8,), float("nan"))
        view = room[8 * units : 8 * units + tensor.numel()].view(tensor.shape)
        assert view.data_ptr() % 32 == 16
        return view.copy_(tensor)

    x, weight, bias = integers(5, 512), integers(80, 512), integers(80)
    packed = PackedWeight(moved(pack(weight)), 80, 512)
    out = moved(torch.zeros(5, 80, dtype=BF16, device="cuda"))
    for config in (None, SPLIT):
        ops.gemv(moved(x), packed, moved(bias), out=out.fill_(float("nan")), config=config)
        assert_bits(out, product(x, weight, bias))


def test_weights_of_more_than_2_to_the_31_elements():
    n, k = 65552, 32800
    _needs_memory(6)
    data = torch.zeros(n // 16, k // 32, 2, 32, 8, dtype=BF16, device="cuda")
    first, last = integers(16, k), integers(16, k)
    data[0], data[-1] = pack(first)[0], pack(last)[0]
    x = integers(3, k)
    for config in (None, SPLIT):
        y = ops.gemv(x, PackedWeight(data, n, k), out_dtype=FP32, config=config)
        assert_bits(y[:, :16], product(x, first))
        assert_bits(y[:, -16:], product(x, last))
        assert not y[:, 16:-16].any()


def test_rows_more_than_2_to_the_31_elements_apart():
    pitch, weight = 2**27, integers(100, 64)
    _needs_memory(10)
    rooms = [torch.empty(16 * pitch + 100, dtype=BF16, device="cuda") for _ in range(2)]
    x, out = (room.as_strided((17, n), (pitch, 1)) for room, n in zip(rooms, (64, 100)))
    x.copy_(integers(17, 64))
    for config in (None, SPLIT):
        ops.gemv(x, ops.prepare(weight), out=out.fill_(float("nan")), config=config)
        assert_bits(out, product(x, weight))


def _needs_memory(gigabytes: int) -> None:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory")


# Modes of torch.


def test_inference_mode():
    x, weight = integers(5, 512), integers(40, 512)
    with torch.inference_mode():
        packed, out = ops.prepare(weight), poisoned(5, 40)
        y = ops.gemv(x, packed, config=SPLIT)
        ops.gemv(x, packed, out=out)
    assert y.is_inference() and not y.requires_grad
    for result in (y, out, ops.gemv(x, packed)):
        assert_bits(result, product(x, weight))


@pytest.mark.parametrize("low", [torch.float16, BF16])
def test_autocast_changes_no_bit(low):
    x, weight = reals(5, 500), reals(40, 500)
    packed, layer = ops.prepare(weight), PackedLinear.from_linear(_linear(500, 40).cuda())
    expected = ops.gemv(x, packed, out_dtype=FP32), layer(x.float()), layer(x)
    with torch.autocast("cuda", dtype=low):
        ys = ops.gemv(x, packed, out_dtype=FP32), layer(x.float()), layer(x)
    for y, same in zip(ys, expected):
        assert y.dtype == same.dtype
        assert_bits(y, same)


@pytest.mark.parametrize("default", [torch.float64, torch.float16, BF16])
def test_the_default_dtype_does_not_matter(default):
    x, weight = integers(5, 512), integers(40, 512)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        y, wide = ops.gemv(x, ops.prepare(weight)), ops.gemv(x, ops.prepare(weight), out_dtype=FP32)
    finally:
        torch.set_default_dtype(before)
    assert y.dtype == BF16 and wide.dtype == FP32
    assert_bits(y, product(x, weight))
    assert_bits(wide, product(x, weight))


def test_the_schema_and_the_fake_keep_torchs_rules():
    x, packed, bias = integers(5, 40), ops.prepare(integers(20, 40)), integers(20)
    operator, w = torch.ops.packed_gemv.gemv.default, packed.data
    walk, y = [4, 2, 3], torch.empty(5, 20, device="cuda")
    torch.library.opcheck(operator, (x, w, None, bias, None, walk, False, y, None))
    torch.library.opcheck(operator, (x, w, w, None, bias, walk, False, y, y.clone()))
    torch.library.opcheck(operator, (x, w, w, bias, None, walk, True, y.bfloat16(), None))


# torch.compile.


def test_a_compiled_function_writes_what_it_is_given_and_nothing_else(fresh_compiler):
    weight = integers(20, 40)
    packed = ops.prepare(weight)

    def model(x, out):
        before = out + 0
        ops.gemv(x, packed, out=out)
        between = out + 0
        ops.gemv(2 * x, packed, out=out)
        return before, between

    compiled = torch.compile(model, fullgraph=True)
    for m in (3, 9, 12):  # the second makes M dynamic
        x, out = integers(m, 40), torch.full((m, 20), 7.0, device="cuda")
        before, between = compiled(x, out)
        assert before.eq(7).all()
        assert_bits(between, product(x, weight))
        assert_bits(out, 2 * product(x, weight))


def test_a_compiled_function_reads_the_strides_it_is_given(fresh_compiler):
    weight = integers(20, 40)
    packed = ops.prepare(weight)

    def model(wide, tall):
        narrowed, turned = (wide * 2)[:, 8:48], (tall * 2).T.contiguous()
        return [ops.gemv(x, packed, out_dtype=FP32) for x in (narrowed, turned)]

    compiled = torch.compile(model, fullgraph=True)
    for m in (5, 8):
        wide, tall = integers(m, 60), integers(40, m)
        narrowed, turned = compiled(wide, tall)
        assert_bits(narrowed, product(2 * wide[:, 8:48], weight))
        assert_bits(turned, product(2 * tall.T, weight))


def test_a_model_compiled_into_cuda_graphs(fresh_compiler):
    model = _integer_model()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):  # warm-up, capture, replays
        x = integers(3, 100).float()
        torch.compiler.cudagraph_mark_step_begin()
        assert_bits(compiled(x), _expected(model, x))


# Layers.


def _linear(k: int, n: int) -> nn.Linear:
    linear = nn.Linear(k, n).requires_grad_(False)
    linear.weight.copy_(integers(n, k))
    linear.bias.copy_(integers(n))
    return linear


def _integer_model(device: str = "cuda") -> nn.Module:
    model = nn.Sequential(_linear(100, 300), nn.ReLU(), _linear(300, 50)).to(device).eval()
    assert swap_linears(model) == ["0", "2"]
    return model


def _expected(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    first, _, second = model
    hidden = product(x, first.weight.unpacked(), first.bias).relu().float().to(BF16)
    return product(hidden, second.weight.unpacked(), second.bias)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("shape", [(40,), (64, 40), (65, 40), (3, 50, 40), (0, 40)])
def test_a_layer_takes_any_number_of_rows(shape, dtype):
    linear = _linear(40, 24).cuda()
    x = integers(*shape).to(dtype)
    y = PackedLinear.from_linear(linear)(x)
    assert y.dtype == dtype
    assert_bits(y, product(x, linear.weight, linear.bias))


def test_a_layer_takes_leading_dimensions_of_any_strides():
    linear, x = _linear(40, 24).cuda(), integers(4, 5, 40).transpose(0, 1)
    assert_bits(PackedLinear.from_linear(linear)(x), product(x, linear.weight, linear.bias))


def test_a_model_with_swapped_layers():
    model, x = _integer_model(), integers(3, 50, 100).float()
    assert_bits(model(x), _expected(model, x))


def test_a_layer_packed_on_the_cpu_moves_to_the_gpu_and_back():
    model, x = _integer_model("cpu"), integers(5, 100, device="cpu").float()
    expected = _expected(model, x)
    for device in ("cpu", "cuda", "cpu", "cuda"):
        y = model.to(device)(x.to(device))
        assert y.device.type == device
        assert_bits(y.cpu(), expected)


def test_a_copied_or_loaded_layer_computes_with_its_own_weights():
    layer, x = PackedLinear.from_linear(_linear(100, 40)).cuda(), integers(5, 100)
    expected = layer(x)
    copied, loaded = copy.deepcopy(layer), PackedLinear(100, 40, device="cuda")
    loaded.load_state_dict(layer.state_dict())
    layer.packed.zero_()
    assert_bits(copied(x), expected)
    assert_bits(loaded(x), expected)
    assert_bits(layer(x), layer.bias.expand(5, 40))


# What it refuses.


def test_the_front_refuses_other_devices_and_overlap():
    x, packed = integers(5, 40), ops.prepare(integers(20, 40))
    with pytest.raises(ValueError, match="weight is on cpu but x is on cuda:0"):
        ops.gemv(x, ops.prepare(integers(20, 40, device="cpu")))
    with pytest.raises(ValueError, match="bias is on cpu"):
        ops.gemv(x, packed, integers(20, device="cpu"))
    with pytest.raises(ValueError, match="out overlaps x"):
        ops.gemv(x, packed, out=x[:, :20])


def test_the_operator_refuses_what_would_leave_its_tensors():
    x, packed = integers(5, 40), ops.prepare(integers(20, 40))
    w, y = packed.data, torch.empty(5, 20, device="cuda")
    shifted = torch.empty(w.numel() + 1, dtype=BF16, device="cuda")[1:].view(w.shape)
    for message, changed in {
        "no kernel was built for M=5": {"walk": [4, 3, 1]},
        "walk is out of range": {"walk": [4, 2, 0]},
        "walk must be": {"walk": [4, 2, 1, 1]},
        "x must be BF16": {"x": integers(40, 5).T},
        "at most 64 tokens": {"x": integers(65, 40), "y": torch.empty(65, 20, device="cuda")},
        "must be packed": {"x": integers(5, 65)},
        "every weight must be contiguous": {"w": w.cpu()},
        "with N of y": {"y": torch.empty(5, 36, device="cuda")},
        "y must be": {"y": torch.empty(4, 20, device="cuda")},
        "every output must be BF16": {"y": y.double()},
        "every output must be .M, N.": {"y": torch.empty(20, 5, device="cuda").T},
        "every bias": {"bias": integers(19)},
        "fused needs w2": {"fused": True},
        "y2 is for two weights": {"w2": w},
        "16 bytes": {"w": shifted},
    }.items():
        arguments = {
            "x": x, "w": w, "w2": None, "bias": None, "bias2": None, "walk": [4, 2, 1],
            "fused": False, "y": y, "y2": None,
        }  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            torch.ops.packed_gemv.gemv(**{**arguments, **changed})
    assert_bits(ops.gemv(x, packed), product(x, packed.unpacked()))  # still well after all that


# Several GPUs.


def test_tensors_on_a_gpu_that_is_not_current(second_gpu):
    x, weight, bias = (
        integers(*shape, device=second_gpu) for shape in ((4, 512), (100, 512), (100,))
    )
    for config in (None, SPLIT):
        y = ops.gemv(x, ops.prepare(weight), bias, config=config)
        assert torch.cuda.current_device() == 0 and str(y.device) == second_gpu
        assert_bits(y, product(x, weight, bias))


def test_the_stream_is_the_current_one_of_the_tensors_gpu(second_gpu):
    weight, late = integers(100, 512, device=second_gpu), integers(4, 512, device=second_gpu)
    packed, x = ops.prepare(weight), torch.zeros_like(late)
    torch.cuda.synchronize(second_gpu)
    with torch.cuda.stream(torch.cuda.Stream(second_gpu)):
        delay(20)
        x.copy_(late)
        with torch.cuda.device(0):
            y = ops.gemv(x, packed, config=SPLIT)
        torch.cuda.current_stream().synchronize()
    assert_bits(y, product(late, weight))


def test_a_graph_on_a_gpu_that_is_not_current(second_gpu):
    weight, x = integers(100, 512, device=second_gpu), integers(4, 512, device=second_gpu)
    packed, graph = ops.prepare(weight), torch.cuda.CUDAGraph()
    ops.gemv(x, packed, config=SPLIT)
    torch.cuda.synchronize(second_gpu)
    capture = torch.cuda.Stream(second_gpu)
    with torch.cuda.graph(graph, stream=capture), torch.cuda.device(0):
        y = ops.gemv(x, packed, config=SPLIT)
    x.copy_(integers(4, 512, device=second_gpu))
    graph.replay()
    torch.cuda.synchronize(second_gpu)
    assert_bits(y, product(x, weight))


def test_two_gpus_at_once(second_gpu):
    works = [Launches(8, 256, 4096, Config(4, 4, 16), device=d) for d in ("cuda:0", second_gpu)]
    # Each default stream is held back on its own, and both devices are waited for at the end.
    with torch.cuda.device(second_gpu), together(), torch.cuda.device(0), together():
        for i in range(len(works[0])):
            for work in works:
                work.launch(i)
    for work in works:
        work.check()


def test_a_layer_moves_between_gpus(second_gpu):
    model, x = _integer_model(), integers(5, 100).float()
    expected = model(x)
    for device in (second_gpu, "cuda:0", second_gpu):
        y = model.to(device)(x.to(device))
        assert str(y.device) == device
        assert_bits(y.to("cuda:0"), expected)


def test_tensors_on_two_gpus_are_refused(second_gpu):
    x, packed = integers(5, 40), ops.prepare(integers(20, 40, device=second_gpu))
    with pytest.raises(ValueError, match="weight is on cuda:1 but x is on cuda:0"):
        ops.gemv(x, packed)
    y = torch.empty(5, 20, device="cuda")
    with pytest.raises(RuntimeError, match="every weight must be contiguous BF16 on x's device"):
        torch.ops.packed_gemv.gemv(x, packed.data, None, None, None, [4, 2, 1], False, y, None)
