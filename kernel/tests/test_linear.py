"""PackedLinear and swap_linears, on a CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from packed_gemv import ops  # noqa: E402
from packed_gemv.linear import PackedLinear, swap_linears  # noqa: E402

nn, BF16 = torch.nn, torch.bfloat16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def linear(request):
    """A BF16 layer, so that packing rounds nothing."""
    return nn.Linear(40, 24, bias=request.param).to(BF16).requires_grad_(False)


def wide(linear):
    return copy.deepcopy(linear).float()


@pytest.mark.parametrize("shape", [(40,), (1, 40), (64, 40), (65, 40), (3, 50, 40), (0, 40)])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_forward(linear, shape, dtype):
    x = torch.randn(shape).to(BF16).to(dtype)
    y = PackedLinear.from_linear(linear)(x)
    assert y.shape == (*shape[:-1], 24) and y.dtype == dtype
    torch.testing.assert_close(y, wide(linear)(x.float()).to(dtype))


def test_forward_of_strided_leading_dimensions(linear):
    x = torch.randn(4, 5, 40).to(BF16).transpose(0, 1)
    y = PackedLinear.from_linear(linear)(x)
    torch.testing.assert_close(y, wide(linear)(x.float()).to(BF16))


def test_fp32_weights_are_rounded_to_bf16():
    linear = nn.Linear(40, 24).requires_grad_(False)
    packed = PackedLinear.from_linear(linear)
    assert torch.equal(packed.weight.unpacked(), linear.weight.to(BF16))
    assert torch.equal(packed.bias, linear.bias.to(BF16))


def test_from_linear_shares_no_memory(linear):
    packed = PackedLinear.from_linear(linear)
    before = packed(torch.ones(1, 40))
    for parameter in linear.parameters():
        parameter.zero_()
    assert torch.equal(packed(torch.ones(1, 40)), before)


def test_at_most_64_rows_a_call(linear):
    seen = []

    def gemv(x, weight, bias=None, *, out_dtype=None):
        seen.append((x.shape[0], x.dtype, out_dtype))
        return ops.gemv(x, weight, bias, out_dtype=out_dtype)

    packed = PackedLinear.from_linear(linear)
    packed.gemv = gemv
    packed(torch.randn(2, 75, 40))
    assert seen == [(m, BF16, torch.float32) for m in (64, 64, 22)]


def partitions(layer, walked):
    """The (NW, S), which bits depend on, that the layer's calls walk with for 1 to 64 tokens and more."""
    walked.clear()
    for m in (1, 8, 9, 64, 65):
        layer(torch.randn(m, layer.in_features))
    return {(nw, s) for nw, _, s in walked}


def test_a_batch_invariant_layer_adds_in_one_order_whatever_the_batch(walked):
    linear = nn.Linear(4096, 8).requires_grad_(
        False
    )  # a tuned shape, with more warps for few tokens
    assert len(partitions(PackedLinear.from_linear(linear), walked)) > 1
    invariant = PackedLinear.from_linear(linear, batch_invariant=True)
    model = nn.Sequential(linear)
    swap_linears(model, batch_invariant=True)
    for layer in (invariant, PackedLinear(4096, 8, batch_invariant=True), model[0]):
        assert len(partitions(layer, walked)) == 1
        assert len(partitions(copy.deepcopy(layer), walked)) == 1
    x = torch.randn(3, 4096)
    torch.testing.assert_close(invariant(x), PackedLinear.from_linear(linear)(x))


def test_state_dict(linear):
    packed = PackedLinear.from_linear(linear)
    state = packed.state_dict()
    assert set(state) == {"packed", "bias"} - (set() if linear.bias is not None else {"bias"})
    fresh = PackedLinear(40, 24, bias=linear.bias is not None)
    fresh.load_state_dict(state)
    x = torch.randn(3, 40)
    assert torch.equal(fresh(x), packed(x))
    assert torch.equal(copy.deepcopy(packed)(x), packed(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        PackedLinear(40, 48, bias=linear.bias is not None).load_state_dict(state)


def test_refuses(linear):
    packed = PackedLinear.from_linear(linear)
    with pytest.raises(TypeError, match="x must be torch.bfloat16 or torch.float32"):
        packed(torch.randn(3, 40).half())
    with pytest.raises(ValueError, match=r"x must have shape \[..., 40\]"):
        packed(torch.randn(3, 41))
    with pytest.raises(RuntimeError, match="x requires grad"):
        packed(torch.randn(3, 40, requires_grad=True))
    with pytest.raises(TypeError, match="weight.data must be torch.bfloat16"):
        packed.float()(torch.randn(3, 40))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_model_compiles_without_a_graph_break(batch_invariant):
    model = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 17)).eval()
    swap_linears(model, batch_invariant=batch_invariant)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for m in (3, 5, 70):
            x = torch.randn(m, 40)
            torch.testing.assert_close(compiled(x), model(x))


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first
        self.deep = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(8, 8), nn.ReLU())})
        self.attention = nn.MultiheadAttention(8, 2)  # its projection is a subclass of nn.Linear


def test_swap():
    model = Tree().eval()
    projection = model.attention.out_proj
    assert swap_linears(model) == ["first", "again", "deep.inner.0"]
    assert isinstance(model.deep["inner"][0], PackedLinear) and not model.first.training
    assert model.first is model.again and model.attention.out_proj is projection
    assert swap_linears(model) == []


def test_swap_filter():
    model = Tree()
    assert swap_linears(model, lambda name, _: name.startswith("deep")) == ["deep.inner.0"]
    assert type(model.first) is nn.Linear


def test_swap_needs_a_parent():
    with pytest.raises(TypeError, match="from_linear"):
        swap_linears(nn.Linear(8, 8))
