"""Settings of the kernel's own tests: the same examples on every run and every machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile(
    "packed_gemv", derandomize=True, database=None, deadline=None, max_examples=60
)
settings.load_profile("packed_gemv")
