"""A subject of your own: copy, rename, fill in. Every method is called by Lanecheck, none by you.

Run it with

    lanecheck fuzz --subject THIS_FILE.py:SUBJECT --cases 200

As it stands it judges numpy's own matrix product, so it works before you change a line.
"""

from __future__ import annotations

import numpy as np

from lanecheck.bench.plan import MOVED, held_bytes
from lanecheck.errors import BadInput
from lanecheck.subject import Product, Subject, Tensor
from lanecheck.values import real_values, rounded_bits


class MyKernel(Subject):
    # The first word of every case line.
    name = "my_kernel"
    # How to compile it: an object with `root`, `device()` and `host()` (see lanecheck.build.Recipe),
    # or None for a Python callable, as here. Weights that your kernel wants repacked are tensors of role
    # "packed", computed in derive() from those of role "source".
    recipe = None
    # Folder of deliberate faults, one YAML file each (see lanecheck.faults.catalogue), or None.
    faults = None
    # Regular expressions that must each match some SASS instruction of every kernel.
    instructions = ()

    def draw(self, draw):
        """The axes of a case: anything that changes what the kernel does. Simplest values first."""
        return {
            "m": draw.integer(1, 16),
            "n": draw.integer(1, 64),
            "k": draw.integer(1, 256),
            "out": draw.choice(("fp32", "bf16")),
        }

    def tensors(self, params):
        """Every operand. Raise BadInput for axes you do not take: a replay line may hold any."""
        m, n, k = params["m"], params["n"], params["k"]
        if min(m, n, k) < 1:
            raise BadInput(f"m={m} n={n} k={k}: each is at least 1")
        if params["out"] not in ("fp32", "bf16"):
            raise BadInput(f"out={params['out']}: it is fp32 or bf16")
        return [
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "input"),
            Tensor("y", (m, n), params["out"], "output"),
        ]

    def terms(self, params):
        """How many products one output sums: integers are drawn so that such sums are exact."""
        return params["k"]

    def launch(self, library, params, buffers, stream):
        """Run the kernel: `library` is the ctypes.CDLL of your recipe, buffers[name].address a pointer.

        Return what went wrong at launch, or None. This one works on the arrays directly.
        """
        y = buffers["y"].elements
        x, w = real_values(buffers["x"].elements), real_values(buffers["w"].elements)
        with np.errstate(invalid="ignore"):  # some cases hold infinities and NaN
            y[...] = rounded_bits(x @ w.T, y.dtype)
        return None

    def reference(self, params, inputs):
        """The outputs in float64."""
        with np.errstate(invalid="ignore"):
            return {"y": real_values(inputs["x"]) @ real_values(inputs["w"]).T}

    def products(self, params):
        """The matrix products that the outputs consist of. Most oracles ask for these."""
        return [Product(output="y", x="x", w="w")]

    def bench_params(self):
        """The shapes worth timing, for

            lanecheck compare BASE HEAD --device host --subject THIS_FILE.py:SUBJECT

        and, once there is a recipe, for lanecheck bench and lanecheck compare on a GPU. gate_params(device)
        may name others to gate a change by, sweep_params() every shape of lanecheck bench --sweep, each with
        the seconds that a peer may take to tune for it.
        """
        return [{"m": m, "n": 64, "k": 256, "out": "fp32"} for m in (1, 16)]

    def traffic(self, params):
        """Bytes that one launch must move: each input, packed tensor and output once."""
        return sum(held_bytes(each) for each in self.tensors(params) if each.role in MOVED)

    # If your kernel declares its order of additions, predict(), order(), resized(), exposed() and finish()
    # of lanecheck.subject.Subject turn it into exact bits, an error bound, batch invariance, and a verdict
    # of its own for another order. landmarks() names cases that chance would not draw.


SUBJECT = MyKernel()
