"""The order in which a kernel adds, as data: what its predicted bits, its error bound and its summation
tree all follow from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Order:
    """How every output element of a launch is summed.

    Chains of mma, each from +0, are added in FP32: the chains of one fold from left to right, then the
    folds from left to right, then the bias if there is one.

    Attributes:
        steps: ``[L, 16]``, the k that each slot of each mma stands for; K and above is padding, a
            product of zero.
        chains: consecutive runs of steps, in the order in which a chain takes them; one may be empty.
        folds: indices of chains. Shared memory, say, adds the warps of each slice of K, and the slices
            are then added to one another.
    """

    steps: npt.NDArray[np.int64]
    chains: tuple[range, ...]
    folds: tuple[tuple[int, ...], ...]
