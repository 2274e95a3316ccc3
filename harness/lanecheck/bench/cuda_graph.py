"""What the driver knows of the L2 and of a CUDA graph, and torch does not tell."""

from __future__ import annotations

import ctypes

_PERSISTING_L2_CACHE_SIZE = 6  # of cuda.h's CUlimit
_KERNEL = 0  # of CUgraphNodeType
_ACCESS_POLICY_WINDOW = 1  # of CUlaunchAttributeID
_PERSISTING = 2  # of CUaccessProperty


class _Window(ctypes.Structure):
    """cuda.h's CUaccessPolicyWindow, in the 64 bytes of a CUlaunchAttributeValue."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_char * 36),
    ]


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def persisting_limit() -> int | None:
    """Bytes of the L2 that persisting accesses may keep, in the current context; None if it does not tell.

    A driver sets some aside by itself: 11.25 of an H200's 60 MiB.
    """
    size = ctypes.c_size_t()
    code = _driver().cuCtxGetLimit(ctypes.byref(size), _PERSISTING_L2_CACHE_SIZE)
    return None if code else size.value


def persisting_launches(graph: int) -> int | None:
    """Kernels of a captured graph, given by its handle, that ask the L2 to keep a range of addresses, be it
    by their own attributes or by their stream's; None if the driver does not tell."""
    driver, count = _driver(), ctypes.c_size_t()
    if driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)):
        return None
    nodes = (ctypes.c_void_p * count.value)()
    if driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)):
        return None
    kind, window, found = ctypes.c_int(), _Window(), 0
    for node in map(ctypes.c_void_p, nodes):
        if driver.cuGraphNodeGetType(node, ctypes.byref(kind)):
            return None
        if kind.value == _KERNEL:
            if driver.cuGraphKernelNodeGetAttribute(
                node, _ACCESS_POLICY_WINDOW, ctypes.byref(window)
            ):
                return None
            found += window.size > 0 and _PERSISTING in (window.hit, window.miss)
    return found
