"""A kernel's host build, loaded: its buffers, its schedule, and what it has to report."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanecheck.errors import CannotRun
from lanecheck.simt.variants import INCLUDE, RUNTIME

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "simt_configure": (None, [c_uint64, c_int, c_int, c_int, c_uint64]),
    "simt_limits": (None, [c_uint64, c_double]),
    "simt_alloc": (c_void_p, [c_char_p, c_size_t, c_size_t, c_int, c_int]),
    "simt_check": (c_int, [c_char_p, c_size_t]),
    "simt_free_all": (None, []),
    "simt_report": (c_char_p, []),
    "simt_clear": (None, []),
    "simt_switches": (c_uint64, []),
    "simt_log_mma": (None, [POINTER(c_uint32), c_size_t]),
    "simt_mma_log": (c_void_p, [POINTER(c_size_t)]),
}

MODELS = {"ampere": 0, "hopper": 1}
SIDES = {"upper": 0, "lower": 1}

#: One executed mma of a warp: where, its number among the warp's, and every lane's registers. A and B
#: hold two BF16 each, the lower half first; C is the accumulator before, D after.
MMA = np.dtype(
    [
        ("block", np.uint32, 3),
        ("warp", np.uint32),
        ("number", np.uint32),
        ("a", np.uint32, (32, 4)),
        ("b", np.uint32, (32, 2)),
        ("c", np.float32, (32, 4)),
        ("d", np.float32, (32, 4)),
    ]
)


@dataclass(frozen=True)
class SimtReport:
    """The first error of a launch. `offset` and `size` are of `buffer`, in bytes."""

    kind: str
    message: str
    buffer: str
    offset: int
    size: int
    access: str
    block: tuple[int, int, int]
    thread: int
    line: int
    file: str
    pc: int

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Buffer:
    """Guarded memory; `view` is good until the library's next `free_all`."""

    name: str
    address: int
    view: NDArray[np.uint8]


class HostLibrary:
    """One loaded library. `twins` are folders whose code is not the kernel's own, for reports."""

    def __init__(self, path: Path | str, twins: Sequence[Path] = ()) -> None:
        self.path = Path(path).resolve()
        self.cdll = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_LOCAL)
        self._simt: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.cdll, name)
            function.restype, function.argtypes = result, arguments
            self._simt[name] = function
        self._foreign = [d.resolve() for d in (INCLUDE, RUNTIME.parent, *twins)]
        self._lines: dict[int, tuple[str, int]] = {}
        self._mma_limit = 0

    def configure(
        self,
        *,
        schedule_seed: int = 0,
        model: str = "hopper",
        resident_ctas: int = 4,
        preempt: bool = False,
        poison_seed: int = 0,
    ) -> None:
        mask = 2**64 - 1
        self._simt["simt_configure"](
            schedule_seed & mask, MODELS[model], resident_ctas, preempt, poison_seed & mask
        )

    def limits(self, *, switches: int = 200_000_000, seconds: float = 10.0) -> None:
        """What a launch may take before it ends with a report of kind `limit`."""
        self._simt["simt_limits"](switches, seconds)

    def alloc(
        self,
        name: str,
        nbytes: int,
        align: int = 16,
        side: str = "upper",
        readonly: bool = False,
    ) -> Buffer:
        """Memory flush against an inaccessible page; `readonly` holds while a launch runs."""
        address = self._simt["simt_alloc"](name.encode(), nbytes, align, SIDES[side], readonly)
        if address is None:
            raise MemoryError(f"no room for {name}: {nbytes} bytes")
        # ctypes keeps every array type it ever made: so few sizes, of which numpy takes the front.
        array = (ctypes.c_uint8 * (1 << nbytes.bit_length())).from_address(address)
        return Buffer(name, address, np.frombuffer(memoryview(array), np.uint8, nbytes))

    def check(self) -> list[str]:
        """One line for each buffer around which something was written."""
        message = ctypes.create_string_buffer(4096)
        self._simt["simt_check"](message, len(message))
        return message.value.decode().splitlines()

    def report(self) -> SimtReport | None:
        text = self._simt["simt_report"]().decode()
        if not text:
            return None
        report = json.loads(text)
        pcs = [int(pc, 16) for pc in re.findall(r"\{(0x[0-9a-f]+)\}", report["message"])]
        self._symbolize([*pcs, report["pc"]])
        file, line = self._lines.get(report["pc"], ("", 0))
        report["message"] = re.sub(
            r"\{(0x[0-9a-f]+)\}", lambda m: self._place(int(m[1], 16)), report["message"]
        )
        report["line"] = report["line"] or line
        report["block"] = tuple(report["block"])
        return SimtReport(**report, file=file)

    def clear(self) -> None:
        self._simt["simt_clear"]()

    def free_all(self) -> None:
        self._simt["simt_free_all"]()

    @property
    def switches(self) -> int:
        """Context switches so far, in all launches."""
        return int(self._simt["simt_switches"]())

    def log_mma(self, block: tuple[int, int, int] | None = None, limit: int = 1 << 14) -> None:
        """From now on, keep the mma of one CTA, or of all; a `limit` of 0 ends that.

        `limit` bounds the memory, at 1.8 KB an mma.
        """
        self._mma_limit = limit
        self._simt["simt_log_mma"](None if block is None else (c_uint32 * 3)(*block), limit)

    def mma_log(self) -> NDArray[Any]:
        """The mma since :meth:`log_mma`, of type :data:`MMA`, in the order of their execution.

        Raises:
            CannotRun: if there were more than the limit, so that the log would have gaps.
        """
        executed = c_size_t()
        address = self._simt["simt_mma_log"](ctypes.byref(executed))
        if executed.value > self._mma_limit:
            raise CannotRun(
                f"{executed.value:,} mma were executed, of which the log holds the first "
                f"{self._mma_limit:,}: log one CTA, or raise the limit"
            )
        return np.frombuffer(ctypes.string_at(address, executed.value * MMA.itemsize), MMA)

    def _place(self, pc: int) -> str:
        file, line = self._lines.get(pc, ("", 0))
        return f"{Path(file).name}:{line}" if file else f"{pc:#x}"

    def _symbolize(self, pcs: Sequence[int]) -> None:
        wanted = sorted({pc for pc in pcs if pc and pc not in self._lines})
        if not wanted:
            return
        command = ["addr2line", "-a", "-i", "-e", str(self.path), *map(hex, wanted)]
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return  # no binutils: the message shows the address instead
        frames: list[tuple[str, int]] = []
        for text in reversed(output.splitlines()):
            if text.startswith("0x"):
                own = [frame for frame in frames if self._is_kernel(frame[0])]
                self._lines[int(text, 16)] = (own or frames or [("", 0)])[-1]
                frames = []
            else:
                file, _, line = text.partition(" (")[0].rpartition(":")
                if line.isdigit() and file != "??":
                    frames.append((file, int(line)))

    def _is_kernel(self, file: str) -> bool:
        """Whether the code is the kernel's, and not what stands in for CUDA's headers."""
        path = Path(file).resolve()
        return not any(path.is_relative_to(folder) for folder in self._foreign)
