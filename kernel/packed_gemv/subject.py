"""What Lanecheck needs to know of this kernel. Nothing else in this package knows the harness."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lanecheck.errors import BadInput
from lanecheck.native import mma_chains
from lanecheck.real import Call, Missing, RealRun
from lanecheck.subject import Bits, Buffer, Draw, Params, Tensor
from lanecheck.tensorcore import TensorCore
from packed_gemv import recipe
from packed_gemv.config import MAX_TOKENS, Config, max_warps, select, supported_trips
from packed_gemv.emulator import Problem, bf16_to_float64, emulate, warp_sums
from packed_gemv.fragments import D_COLUMN, D_ROW, K_BLOCK, LANES, ROWS, TOKENS
from packed_gemv.layout import PackedWeight, blocks

# (N, K): q, k and v, o, gate and up, down of Llama-3.1-8B; the pooler of a 4096-wide encoder.
_BENCH_SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4096, 8192))


class Args(ctypes.Structure):
    """``PackedGemvArgs`` of csrc/launch.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("w", ctypes.c_void_p * 2),
        ("bias", ctypes.c_void_p * 2),
        ("y", ctypes.c_void_p * 2),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "ldx", "ldy")),
        *((name, ctypes.c_int32) for name in ("nw", "u", "s", "fused", "out_fp32")),
    ]


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


class PackedGemv:
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
        p = {name: value for name, value in params.items() if isinstance(value, int)}
        config = self._config(params)
        m, n, k, nb, mats = p["m"], p["n"], p["k"], config.nb, config.mats
        if not 1 <= m <= MAX_TOKENS or n < 1 or k < 1:
            raise BadInput(f"m={m} n={n} k={k}: m is 1 to {MAX_TOKENS}, n and k are at least 1")
        if params["out"] not in ("fp32", "bf16"):
            raise BadInput(f"out={params['out']}: it is fp32 or bf16")
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
        def address(name: str) -> int | None:
            return buffers[name].address if name in buffers else None

        args = Args(x=address("x"), workspace=address("workspace"))
        for i in range(2):
            args.w[i] = address(f"packed{i}")
            args.bias[i] = address(f"bias{i}")
            args.y[i] = address(f"y{i}")
        for name in ("m", "n", "k", "nw", "u", "s", "fused"):
            setattr(args, name, params[name])
        args.ldx = int(params["k"]) + int(params["xpad"])
        args.ldy = int(params["n"]) + int(params["ypad"])
        args.out_fp32 = params["out"] == "fp32"
        code = library.packed_gemv_launch(ctypes.byref(args), ctypes.c_void_p(stream))
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

    def sums(self, params: Params) -> bool:
        return not params["fused"]

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits] | None:
        outputs = emulate(self._problem(params, inputs), self._config(params), BitExact(core))
        return {f"y{i}": bits for i, bits in enumerate(outputs)}

    def explain(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
    ) -> Iterator[str]:
        """Where an output element is computed, and what each warp should have summed for it."""
        (token, row), config = index, self._config(params)
        (row_block, tile_row), (nb, column) = divmod(row, ROWS), divmod(token, TOKENS)
        ((lane, register),) = np.argwhere((tile_row == D_ROW) & (column == D_COLUMN))
        yield (
            f"{output}[{token}, {row}] is accumulator {register} of lane {lane} (g {lane >> 2}, "
            f"t {lane & 3}), token block {nb}, CTAs ({row_block}, 0…{config.s - 1})"
        )
        sums = warp_sums(self._problem(params, inputs), config, BitExact(core))
        for part, run in enumerate(config.slices(int(params["k"]))):
            s, warp = divmod(part, config.nw)
            span = f"K blocks {run.start}…{run.stop - 1}" if run else "no K block"
            values = " and ".join(f"{total[part, token, row]:.9g}" for total in sums)
            yield f"  slice {s}, warp {warp}, {span}: should sum to {values}"

    def bench_params(self) -> list[Params]:
        return [self._plain(m, n, k, select(m, n, k)) for n, k in _BENCH_SHAPES for m in (1, 8)]

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
            config = select(m, n, k)
            params = self._plain(m, n, k, config) | {"bias": 1, "out": "fp32"}
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
    def _plain(m: int, n: int, k: int, config: Config) -> dict[str, int | str]:
        sizes = {"m": m, "n": n, "k": k, "nw": config.nw, "u": config.u, "s": config.s}
        rest = dict.fromkeys(("dual", "fused", "bias", "xpad", "xoff", "ypad"), 0)
        return {**sizes, **rest, "out": "bf16"}

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


def _bits(tensor: Any) -> Bits:
    """The bits of a BF16 torch tensor."""
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)


SUBJECT = PackedGemv()
