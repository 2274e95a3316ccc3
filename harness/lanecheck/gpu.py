"""The GPUs of this machine, as its driver names them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lanecheck.errors import CannotRun
from lanecheck.matrix import Device, Matrix


@dataclass(frozen=True)
class Gpu:
    """One GPU: its product name, compute capability and the driver's identifier."""

    name: str
    cc: str
    uuid: str


def detect() -> list[Gpu]:
    """Every GPU the driver shows and CUDA_VISIBLE_DEVICES leaves; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,compute_cap,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"lanecheck: nvidia-smi fails, so no GPU is used: {error}", file=sys.stderr)
        return []
    rows = (line.split(", ") for line in done.stdout.splitlines() if ", " in line)
    return visible([Gpu(*row) for row in rows], os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: list[Gpu], names: str | None) -> list[Gpu]:
    """Those that the value of CUDA_VISIBLE_DEVICES names, in its order; all if there is none.

    A name is the beginning of an identifier, or a place among ``gpus``: that is nvidia-smi's, and CUDA's
    where they are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID. As in CUDA, the first that names none ends it.
    """
    if names is None:
        return gpus
    found: dict[str, Gpu] = {}
    for name in (each.strip() for each in names.split(",")):
        these = [gpu for gpu in gpus if name and gpu.uuid.lower().startswith(name.lower())]
        named = gpus[int(name) :] if name.isdecimal() else these
        if not named:
            break
        found[named[0].uuid] = named[0]
    return list(found.values())


def choose(uuids: Sequence[str]) -> None:
    """Let this process see the first of these GPUs alone, whichever CUDA would take by itself; before
    anything here looks for one. Nothing without any."""
    if uuids:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuids[0]


def unit(uuid: str) -> str:
    """A digest that tells one GPU from another without naming it.

    Args:
        uuid: as the driver or as torch writes it, with ``GPU-`` before it or without.
    """
    return hashlib.sha256(uuid.removeprefix("GPU-").lower().encode()).hexdigest()[:16]


def matched(gpus: list[Gpu], matrix: Matrix) -> dict[str, list[Gpu]]:
    """The GPUs of each of the matrix's devices that is here: same capability, and the product's name
    holds the device's."""
    here = {
        device.name: [gpu for gpu in gpus if _is(gpu, device)]
        for device in matrix.devices.values()
        if device.gpu
    }
    return {name: found for name, found in here.items() if found}


def _is(gpu: Gpu, device: Device) -> bool:
    """Whether ``rtx3090`` is in ``NVIDIA GeForce RTX 3090``, as a word and not as part of another."""
    words = re.sub(r"(?<=[a-z])(?=\d)", " ?", re.escape(device.name))
    product = rf"\b{words}\b(?! ?(ti|super|d|laptop)\b)"
    return gpu.cc == device.cc and re.search(product, gpu.name.lower()) is not None


@contextmanager
def reserved(digest: str, name: str, what: str) -> Iterator[None]:
    """Have a GPU to this timing, as long as others of this machine ask too.

    Args:
        digest: the GPU's :func:`unit`. name: the product's.
        what: lanecheck does, for whoever finds the GPU taken.

    Raises:
        CannotRun: if another timing has it.
    """
    path = Path(tempfile.gettempdir()) / f"lanecheck-gpu-{digest}.lock"
    with suppress(OSError):  # another user's: a lock needs no more than to read it
        path.touch(0o666)
    try:
        file = path.open("rb")
    except OSError as error:
        raise CannotRun(f"cannot read {path} ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = file.read().decode("utf-8", "replace").strip() or "another process"
            raise CannotRun(
                f"{name} is taken by {holder}, and each would disturb the other: wait for it, or "
                "choose another GPU"
            ) from None
        try:
            with suppress(OSError):
                path.write_text(f"process {os.getpid()}, lanecheck {what}\n")
            yield
        finally:
            with suppress(OSError):
                path.write_text("")
