"""A launch through the kernel's C ABI, ``csrc/launch.h``: called from Python, or written down in C++.

Both take the scalars of ``PackedGemvArgs`` by the names of its fields, and its pointers by those of the
tensors: ``x``, ``packed0``, ``packed1``, ``bias0``, ``bias1``, ``y0``, ``y1``, ``workspace``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any


class Args(ctypes.Structure):
    """``PackedGemvArgs``."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("w", ctypes.c_void_p * 2),
        ("bias", ctypes.c_void_p * 2),
        ("y", ctypes.c_void_p * 2),
        ("workspace", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "ldx", "ldy")),
        *((name, ctypes.c_int32) for name in ("nw", "u", "s", "fused", "out_fp32")),
    ]


def launch(
    library: Any, scalars: Mapping[str, int], addresses: Mapping[str, int], stream: int
) -> int:
    """Call the library; a tensor without an address is null.

    Returns:
        A CUDA error code, 0 if there is none.
    """
    args = Args(x=addresses.get("x"), workspace=addresses.get("workspace"), **scalars)
    for i in range(2):
        args.w[i] = addresses.get(f"packed{i}")
        args.bias[i] = addresses.get(f"bias{i}")
        args.y[i] = addresses.get(f"y{i}")
    code: int = library.packed_gemv_launch(ctypes.byref(args), ctypes.c_void_p(stream))
    return code


def as_cpp(scalars: Mapping[str, int]) -> str:
    """The same as C++ that defines ``int launch()``, over ``void* buffer(const char* name)``."""
    lines = [f"  args.{name} = {value};\n" for name, value in scalars.items()]
    return f"""#include <launch.h>

int launch() {{
  PackedGemvArgs args = {{}};
  args.x = buffer("x");
  args.workspace = buffer("workspace");
  for (int i = 0; i < 2; i++) {{
    args.w[i] = buffer(i ? "packed1" : "packed0");
    args.bias[i] = buffer(i ? "bias1" : "bias0");
    args.y[i] = buffer(i ? "y1" : "y0");
  }}
{"".join(lines)}  return packed_gemv_launch(&args, nullptr);
}}
"""
