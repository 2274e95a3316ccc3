"""Host execution of unmodified CUDA source: fibers for threads, guarded memory, a random schedule.

A kernel's file is compiled by a C++ compiler with `INCLUDE` on its path, and linked with `RUNTIME`
into one shared library, which `HostLibrary` loads. There are three ways to build it:

- *plain*, for volume: a wrong schedule shows by its wrong results;
- *hooks*, for synchronisation: every memory access is checked for races and bounds;
- *asan*, for arrays: AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from lanecheck.simt.library import MMA, Buffer, HostLibrary, SimtReport
from lanecheck.simt.variants import INCLUDE, RUNTIME, VARIANTS, HostVariant

__all__ = [
    "INCLUDE",
    "MMA",
    "RUNTIME",
    "VARIANTS",
    "Buffer",
    "HostLibrary",
    "HostVariant",
    "SimtReport",
]
