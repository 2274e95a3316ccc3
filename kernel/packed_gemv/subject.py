"""What Lanecheck needs to know of this kernel. Nothing else in this package knows the harness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lanecheck.errors import BadInput
from lanecheck.native import mma_chains
from lanecheck.order import Order
from lanecheck.real import Call, Missing, RealRun
from lanecheck.subject import Bits, Buffer, Draw, Params, Product, Subject, Tensor
from lanecheck.tensorcore import TensorCore
from lanecheck.trace import Walk
from packed_gemv import abi, benchmarks, recipe, tracing
from packed_gemv import landmarks as named
from packed_gemv.config import MAX_TOKENS, Config, max_warps, select, supported_trips
from packed_gemv.emulator import Problem, bf16_to_float64, emulate, fused, stored, warp_walk
from packed_gemv.fragments import K_BLOCK, LANES, ROWS, TOKENS, real_k
from packed_gemv.landmarks import Launch
from packed_gemv.layout import PackedWeight, blocks

# What each number of a case may be; Config knows of nw, u and s. The kernel indexes rows and columns in 32
# bits, so launch.cu takes 2^30 of them. Rows may lie further apart than that: what bounds a pad is memory,
# as it does an offset, whose every element is filled. No alignment beyond an element's is asked of either.
_SIZE, _FLAG = range(1, 2**30 + 1), range(2)
_DOMAIN = {
    "m": range(1, MAX_TOKENS + 1),
    **{"n": _SIZE, "k": _SIZE, "dual": _FLAG, "fused": _FLAG, "bias": _FLAG},
    **{"xpad": range(2**30 + 1), "xoff": range(2**12 + 1), "ypad": range(2**30 + 1)},
}
# Of a case's tensors: half of the addresses that host execution reserves, four times what a landmark spans.
_MOST_BYTES = 2**35


class BitExact:
    """The emulator's arithmetic on a modelled tensor core."""

    def __init__(self, core: TensorCore) -> None:
        self._core = core

    def chains(self, a: Any, b: Any, slices: list[range]) -> npt.NDArray[np.float32]:
        return mma_chains(self._core, a, b, slices)

    def exact(self) -> bool:
        return False


def _faults() -> Path:
    """The catalogue: inside the installed package, beside it in a checkout."""
    package = Path(__file__).parent
    return next(f for f in (package / "faults", package.parent / "faults") if f.is_dir())


class PackedGemv(Subject):
    """The packed GEMV as a subject: one launch for any M, N, K, Config, layout and epilogue."""

    name = "packed_gemv"
    recipe: ModuleType = recipe
    faults = _faults()
    instructions = (r"HMMA\.16816\.F32\.BF16", r"LDG\.E\.\S*128")

    # How many mma a drawn case may take: keeps host execution at hundreds of cases a second.
    _BUDGETS = (16, 48, 144)

    def draw(self, draw: Draw) -> dict[str, int | str]:
        dual = draw.choice((0, 0, 1))
        some = TOKENS * draw.integer(1, MAX_TOKENS // TOKENS) - draw.integer(0, TOKENS - 1)
        m = draw.choice((1, draw.integer(1, TOKENS), some, some))
        nb, mats = blocks(m, TOKENS), 1 + dual
        units = max(2, draw.choice(self._BUDGETS) // (2 * nb * mats))  # (row block, K block) pairs
        nw = min(draw.choice((1, 2, 4, draw.integer(1, 16))), max_warps(nb, mats))
        u = draw.choice(supported_trips(nb, mats))
        s = draw.choice((1, 1, 2, draw.integer(1, 5)))
        if draw.choice((0, 1)):  # every warp makes whole trips, whatever that costs
            nw, s = draw.integer(1, min(nw, 2)), draw.integer(1, min(s, 2))
            trips = draw.integer(1, 3)
            k_blocks, row_blocks = nw * u * s * trips + draw.integer(0, u), 1
        else:
            k_blocks = draw.integer(1, min(24, units))
            row_blocks = draw.integer(1, max(1, min(6, units // k_blocks)))
        step = draw.choice((8, 8, 1))  # 8 elements are 16 bytes, without which x is read singly
        k = K_BLOCK * k_blocks - draw.choice((0, step * draw.integer(0, 31 // step)))
        n = 16 * row_blocks - draw.choice((0, draw.integer(0, 15)))
        return {
            "m": m,
            "n": n,
            "k": k,
            "nw": nw,
            "u": u,
            "s": s,
            "dual": dual,
            "fused": dual and draw.choice((0, 1)),
            "bias": draw.choice((0, 1)),
            "out": draw.choice(("fp32", "fp32", "bf16")),
            "xpad": draw.choice((0, step * draw.integer(1, 24 // step))),
            "xoff": draw.choice((0, step * draw.integer(1, 24 // step))),
            "ypad": draw.choice((0, draw.integer(1, 20))),
        }

    def tensors(self, params: Params) -> list[Tensor]:
        _require_domain(params)
        p = {name: value for name, value in params.items() if isinstance(value, int)}
        config = self._config(params)
        m, n, k, nb, mats = p["m"], p["n"], p["k"], config.nb, config.mats
        rb, kb = blocks(n, 16), blocks(k, K_BLOCK)
        out: Literal["fp32", "bf16"] = "fp32" if params["out"] == "fp32" else "bf16"
        each = range(mats)
        tensors = [Tensor("x", (m, k), "bf16", "input", k + p["xpad"], p["xoff"])]
        tensors += [Tensor(f"w{i}", (n, k), "bf16", "source") for i in each]
        tensors += [Tensor(f"packed{i}", (rb, kb, 2, LANES, 8), "bf16", "packed") for i in each]
        if p["bias"]:
            tensors += [Tensor(f"bias{i}", (n,), "bf16", "input", align=2) for i in each]
        for i in range(1 if p["fused"] else mats):
            size = 4 if out == "fp32" else 2
            tensors.append(Tensor(f"y{i}", (m, n), out, "output", n + p["ypad"], align=size))
        if p["s"] > 1:
            floats = rb * p["s"] * mats * nb * 128
            tensors.append(Tensor("workspace", (4 * (floats + rb),), "byte", "workspace"))
        _require_room(tensors)
        return tensors

    def terms(self, params: Params) -> int:
        return int(params["k"]) + 1

    def derive(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        return {
            f"packed{i}": PackedWeight.of(inputs[f"w{i}"]).data
            for i in range(1 + int(params["dual"]))
        }

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        addresses = {name: buffer.address for name, buffer in buffers.items()}
        code = abi.launch(library, _scalars(params), addresses, stream)
        return f"packed_gemv_launch returned CUDA error {code}" if code else None

    def reference(
        self, params: Params, inputs: Mapping[str, Bits]
    ) -> dict[str, npt.NDArray[np.float64]]:
        x = bf16_to_float64(inputs["x"])
        sums = []
        for i in range(1 + int(params["dual"])):
            total = x @ bf16_to_float64(inputs[f"w{i}"]).T
            if params["bias"]:
                total = total + bf16_to_float64(inputs[f"bias{i}"])
            sums.append(total)
        if params["fused"]:
            gate, up = sums
            sums = [gate / (1 + np.exp(-gate)) * up]
        return {f"y{i}": total for i, total in enumerate(sums)}

    def products(self, params: Params) -> list[Product]:
        fused = bool(params["fused"])
        return [
            Product(
                output="y0" if fused else f"y{i}",
                x="x",
                w=f"w{i}",
                bias=f"bias{i}" if params["bias"] else None,
                plain=not fused,
            )
            for i in range(1 + int(params["dual"]))
        ]

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits] | None:
        outputs = emulate(self._problem(params, inputs), self._config(params), BitExact(core))
        return {f"y{i}": bits for i, bits in enumerate(outputs)}

    def order(self, params: Params) -> Order:
        k, config = int(params["k"]), self._config(params)
        starts = K_BLOCK * np.arange(blocks(k, K_BLOCK))
        steps = np.stack([starts[:, None] + real_k(step) for step in (0, 1)], axis=1)
        warps = range(config.nw)
        return Order(
            steps=steps.reshape(-1, 16),
            chains=tuple(range(2 * run.start, 2 * run.stop) for run in config.slices(k)),
            folds=tuple(tuple(s * config.nw + warp for warp in warps) for s in range(config.s)),
        )

    def kernel_of(self, params: Params) -> tuple[int | str, ...]:
        """(nb, mats, vec, U, split, fused, bias, out); U is 0 where no warp makes a whole trip.

        ``vec`` is launch.cu's choice between 16-byte and single loads of x; the latter know only U = 1.
        """
        p = {name: value for name, value in params.items() if isinstance(value, int)}
        rows = p["k"] % 8 == 0 and (p["m"] == 1 or (p["k"] + p["xpad"]) % 8 == 0)
        vec = rows and p["xoff"] % 8 == 0
        u = p["u"] if vec else 1
        longest = blocks(blocks(p["k"], K_BLOCK), p["nw"] * p["s"])  # K blocks of the first warp
        return (
            *(blocks(p["m"], TOKENS), 1 + p["dual"], int(vec), u if u <= longest else 0),
            *(int(p["s"] > 1), p["fused"], p["bias"], params["out"]),
        )

    def exposed(self, params: Params) -> Params | None:
        return {**params, "fused": 0, "out": "fp32"}

    def finish(
        self, params: Params, sums: Mapping[str, npt.NDArray[np.float32]]
    ) -> dict[str, Bits]:
        biased = [sums[name] for name in sorted(sums)]
        outputs = fused(biased) if params["fused"] else biased
        bits = stored(outputs, params["out"] == "fp32")
        return {f"y{i}": each for i, each in enumerate(bits)}

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        """Bits depend on (K blocks, NW, S) alone: U, of which a larger M allows less, changes none."""
        old_k, mats = int(params["k"]), 1 + int(params["dual"])
        m, n, k = m or int(params["m"]), n or int(params["n"]), k or old_k
        nb = blocks(m, TOKENS)
        if blocks(k, K_BLOCK) != blocks(old_k, K_BLOCK) or nb > MAX_TOKENS // TOKENS:
            return None
        if int(params["nw"]) > max_warps(nb, mats):
            return None
        u = min(int(params["u"]), max(supported_trips(nb, mats)))
        return {**params, "m": m, "n": n, "k": k, "u": u}

    def locate(self, params: Params, output: str, index: tuple[int, ...]) -> str:
        """Which lanes compute an output element."""
        return tracing.locate(self._config(params), output, index)

    def walks(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
    ) -> Iterator[Walk]:
        """What the registers of every warp that adds to an output element should hold."""
        problem, config = self._problem(params, inputs), self._config(params)
        row_block = index[1] // ROWS
        for part in range(config.s * config.nw):
            s, warp = divmod(part, config.nw)
            walk = warp_walk(problem, config, BitExact(core), row_block, part)
            held = tracing.WarpRegisters(problem, walk, row_block)
            yield Walk((row_block, s), warp, held.titles, held.words, held.where)

    def explain(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
        left: Mapping[str, Bits],
    ) -> Iterator[str]:
        """The sums on the way from the accumulators to an output element, and which of them it holds."""
        problem, config = self._problem(params, inputs), self._config(params)
        return tracing.explain(problem, config, BitExact(core), output, index, left)

    def reproduction(self, params: Params) -> str:
        """C++ that launches through the kernel's C ABI; see :mod:`lanecheck.reproduce`."""
        return abi.as_cpp(_scalars(params))

    def landmarks(self, device: str) -> dict[str, Iterator[Params]]:
        """By group; the host's are those that it runs in minutes, in a few gigabytes."""
        groups = {"configurations": named.configurations(), "strides": named.strides()}
        if device == "cuda":
            groups["shapes"] = named.shapes()
            groups["matrices"] = named.matrices()
            groups["sizes"] = named.sizes()
        return {name: map(_params, launches) for name, launches in groups.items()}

    def bench_params(self) -> list[Params]:
        return [_params(launch) for launch in benchmarks.usual()]

    def sweep_params(self) -> list[tuple[Params, float]]:
        """Every tuned shape for each of some numbers of tokens, and the seconds for which it is worth to wait
        until a peer is tuned."""
        return [(_params(launch), patience) for launch, patience in benchmarks.tuned()]

    def gate_params(self, device: str) -> list[Params]:
        """The shapes of gate.yaml, each as :func:`select` configures it."""
        return [_params(launch) for launch in benchmarks.gated(device)]

    def traffic(self, params: Params) -> int:
        m, n, k, mats = *(int(params[axis]) for axis in "mnk"), 1 + int(params["dual"])
        weights = mats * 16 * blocks(n, 16) * K_BLOCK * blocks(k, K_BLOCK)
        outputs = (1 if params["fused"] else mats) * m * n
        bf16 = weights + m * k + (mats * n if params["bias"] else 0)
        return 2 * bf16 + (4 if params["out"] == "fp32" else 2) * outputs

    def real(self, call: Call) -> RealRun:
        """all-MiniLM-L6-v2 with every linear layer through ``call``; see :mod:`lanecheck.real`."""
        try:
            import torch

            from packed_gemv import realmodel
        except ImportError as error:
            raise Missing(f"pip install 'packed_gemv[torch,model]' ({error})") from error

        def gemv(name: str, x: Any, weight: PackedWeight, bias: Any) -> Any:
            m, n, k = len(x), weight.n, weight.k
            params = _params(Launch(m, n, k, select(m, n, k), bias=True))
            inputs = {"x": x, "w0": weight.unpacked(), "bias0": bias}
            outputs = call(params, {name: _bits(tensor) for name, tensor in inputs.items()})
            return torch.from_numpy(outputs["y0"].view(np.float32)).to(torch.bfloat16)

        try:
            run = realmodel.run(gemv)
        except realmodel.MissingModelError as error:
            raise Missing(str(error)) from error
        return RealRun("all-MiniLM-L6-v2", run.layers, run.cosines)

    @staticmethod
    def _problem(params: Params, inputs: Mapping[str, Bits]) -> Problem:
        mats = range(1 + int(params["dual"]))
        return Problem(
            x=inputs["x"],
            weights=tuple(PackedWeight.of(inputs[f"w{i}"]) for i in mats),
            bias=tuple(inputs.get(f"bias{i}") for i in mats),
            fused=bool(params["fused"]),
            out_fp32=params["out"] == "fp32",
        )

    @staticmethod
    def _config(params: Params) -> Config:
        try:
            return Config(
                nw=int(params["nw"]),
                u=int(params["u"]),
                s=int(params["s"]),
                nb=blocks(int(params["m"]), TOKENS),
                dual=bool(params["dual"]),
            )
        except ValueError as error:
            raise BadInput(str(error)) from error


def _params(launch: Launch) -> Params:
    config = launch.config
    sizes = {"m": launch.m, "n": launch.n, "k": launch.k}
    walk = {"nw": config.nw, "u": config.u, "s": config.s}
    epilogue = {"dual": int(config.dual), "fused": 0, "bias": int(launch.bias)}
    layout = {"xpad": launch.xpad, "xoff": 0, "ypad": launch.ypad}
    out = "fp32" if launch.out_fp32 else "bf16"
    return {**sizes, **walk, **epilogue, **layout, "out": out}


def _scalars(params: Params) -> dict[str, int]:
    """What :mod:`packed_gemv.abi` takes of a case."""
    sizes = {name: int(params[name]) for name in ("m", "n", "k", "nw", "u", "s", "fused")}
    ldx, ldy = sizes["k"] + int(params["xpad"]), sizes["n"] + int(params["ypad"])
    return {**sizes, "ldx": ldx, "ldy": ldy, "out_fp32": int(params["out"] == "fp32")}


def _require_domain(params: Params) -> None:
    """Refuse a launch that cannot be: its failure would be no fault of the kernel's.

    Raises:
        BadInput: naming the first axis that is wrong.
    """
    for axis, allowed in _DOMAIN.items():
        if params[axis] not in allowed:
            raise BadInput(f"{axis}={params[axis]}: it is {allowed[0]} to {allowed[-1]}")
    if int(params["fused"]) > int(params["dual"]):
        raise BadInput("fused=1 dual=0: fused takes two weights; give dual=1 or fused=0")
    if params["out"] not in ("fp32", "bf16"):
        raise BadInput(f"out={params['out']}: it is fp32 or bf16")


def _require_room(tensors: list[Tensor]) -> None:
    """Refuse tensors that host execution would find no addresses for.

    Raises:
        BadInput: naming the largest of them.
    """
    spans = {tensor.name: tensor.span * tensor.item.itemsize for tensor in tensors}
    total = sum(spans.values())
    if total > _MOST_BYTES:
        raise BadInput(
            f"the tensors span {total:,} bytes, most of them {max(spans, key=spans.__getitem__)}; at most "
            f"{_MOST_BYTES:,} are possible: make n, k, s or a pad smaller"
        )


def _bits(tensor: Any) -> Bits:
    """The bits of a BF16 torch tensor."""
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


SUBJECT = PackedGemv()
