"""The CUDA driver, called through ctypes: no CUDA toolkit and no framework is needed to own GPU memory.

A kernel's library brings a CUDA runtime of its own. Both use the device's primary context, so that
addresses and streams mean the same to either.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

import numpy.typing as npt

from lanecheck.errors import CannotRun

_LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """A call of the driver failed; the message names the call and what the driver says of it."""


class _Location(ctypes.Structure):
    """``CUmemLocation``: 1 is a device."""

    _fields_ = [("type", c_int), ("id", c_int)]


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``: type 1 is memory of the location that stays there."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``: flags 3 are read and write."""

    _fields_ = [("location", _Location), ("flags", c_int)]


# The functions that are called, by the names under which the library exports their present versions.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Properties), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Properties), c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class Driver:
    """The driver on one device, whose primary context becomes that of the calling thread.

    Every method raises :class:`CudaError` if the driver refuses; sizes are in bytes.

    Attributes:
        stream: a stream to launch on, which waits for the legacy default stream and the other way.

    Args:
        device: its number among the visible ones. library: the driver's shared library.

    Raises:
        CannotRun: there is no driver, or no such device.
    """

    def __init__(self, device: int = 0, library: str = _LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CannotRun(
                f"no CUDA driver on this machine ({library}): install NVIDIA's, or use --device host"
            ) from error
        for name, types in _SIGNATURES.items():
            getattr(self._library, name).argtypes = types
        number, context, stream = c_int(), c_void_p(), c_void_p()
        try:
            self._call("cuInit", 0)
            self._call("cuDeviceGet", number, device)
            self._call("cuDevicePrimaryCtxRetain", context, number)
            self._call("cuCtxSetCurrent", context)
            self._call("cuStreamCreate", stream, 0)
        except CudaError as error:
            raise CannotRun(f"CUDA does not work on this machine: {error}") from error
        self.stream: int = stream.value or 0
        location = _Location(1, number.value)
        self._properties = _Properties(type=1, location=location)
        self._access = _Access(location, 3)

    def granularity(self) -> int:
        """What the sizes and addresses of mapped memory are multiples of."""
        size = c_size_t()
        self._call("cuMemGetAllocationGranularity", size, self._properties, 0)
        return size.value

    def reserve(self, size: int) -> int:
        """A range of addresses at which nothing is mapped."""
        address = c_uint64()
        self._call("cuMemAddressReserve", address, size, 0, 0, 0)
        return address.value

    def map(self, address: int, size: int) -> None:
        """Put new memory of the device at ``address``, inside a reserved range, until it is unmapped."""
        memory = c_uint64()
        self._call("cuMemCreate", memory, size, self._properties, 0)
        self._call("cuMemMap", address, size, 0, memory, 0)
        self._call("cuMemRelease", memory)  # the mapping keeps it
        self._call("cuMemSetAccess", address, size, self._access, 1)

    def unmap(self, address: int, size: int) -> None:
        """Give back what :meth:`map` put there."""
        self._call("cuMemUnmap", address, size)

    def surrender(self, address: int, size: int) -> None:
        """Give back a reserved range."""
        self._call("cuMemAddressFree", address, size)

    def allocate(self, size: int) -> int:
        """New memory of the device, at a multiple of 256."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", address, size)
        return address.value

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` returned."""
        self._call("cuMemFree_v2", address)

    def upload(self, address: int, source: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the device, before what is launched next."""
        self._call("cuMemcpyHtoDAsync_v2", address, source.ctypes.data, source.nbytes, self.stream)

    def download(self, address: int, into: npt.NDArray[Any]) -> None:
        """Fill a contiguous array from the device; :meth:`synchronize` before looking at it."""
        self._call("cuMemcpyDtoHAsync_v2", into.ctypes.data, address, into.nbytes, self.stream)

    def synchronize(self) -> None:
        """Wait for all that was launched, on whatever stream, and raise what it died of."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; a ctypes object stands for its address where one is wanted."""
        if code := getattr(self._library, name)(*arguments):
            raise CudaError(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        name, meaning = c_char_p(), c_char_p()
        self._library.cuGetErrorName(code, name)
        self._library.cuGetErrorString(code, meaning)
        if name.value is None or meaning.value is None:
            return f"error {code}"
        return f"{name.value.decode()} ({meaning.value.decode()})"
