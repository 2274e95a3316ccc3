"""Lanecheck proves a tensor-core CUDA kernel right, bit for bit, on every GPU architecture it ships to."""

__version__ = "0.1.0"
