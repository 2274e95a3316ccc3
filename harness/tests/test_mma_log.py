"""The log of executed mma: every register of every lane, and nothing else about a launch changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from simt_build import KERNELS, TWINS, WARPS, SplitK

from lanecheck.build import build_host
from lanecheck.errors import CannotRun
from lanecheck.simt import HostLibrary
from lanecheck.toolchain import Toolchain

CTAS, STEPS = 2 * 3, 2  # of SplitK's usual problem


class Recipe:
    """split_k.cu, which only a CPU ever runs."""

    root = KERNELS
    twins = (TWINS,)

    def host(
        self, cxx: Path, flags: Sequence[str], include: Sequence[Path], source: Path, out: Path
    ) -> list[str]:
        folders = [f"-I{folder}" for folder in (*include, source / "host")]
        return [str(cxx), *flags, *folders, "-c", str(source / "split_k.cu"), "-o", str(out)]

    def device(self, *_: object) -> list[str]:
        raise NotImplementedError


@pytest.fixture(scope="module", params=["plain", "hooks"])
def library(request: pytest.FixtureRequest) -> HostLibrary:
    return HostLibrary(build_host(Recipe(), request.param, Toolchain()).path, twins=[TWINS])


@pytest.fixture(autouse=True)
def off(library: HostLibrary):
    library.configure()
    yield
    library.log_mma(limit=0)


@pytest.mark.parametrize("model", ["ampere", "hopper"])
def test_it_holds_every_register_of_every_mma(library, model) -> None:
    library.configure(schedule_seed=3, model=model, preempt=True)
    problem = SplitK(library)
    library.log_mma()
    assert problem.run()
    log = library.mma_log()
    assert len(log) == CTAS * WARPS * STEPS
    log = np.sort(log, order=["block", "warp", "number"]).reshape(2, 3, WARPS, STEPS)
    for (rb, s, warp, number), mma in np.ndenumerate(log):
        assert (*mma["block"], mma["warp"], mma["number"]) == (rb, s, 0, warp, number)
    # Operands in the kernel's layout: [row blocks, parts, steps], then lanes, registers and halves.
    a = np.ascontiguousarray(problem.w).view(np.uint32).reshape(2, 3, WARPS, STEPS, 32, 4)
    b = np.ascontiguousarray(problem.x).view(np.uint32).reshape(3, WARPS, STEPS, 32, 2)
    np.testing.assert_array_equal(log["a"], a)
    np.testing.assert_array_equal(log["b"], np.broadcast_to(b, (2, *b.shape)))
    assert not log["c"][..., 0, :, :].any()
    np.testing.assert_array_equal(log["c"][..., 1, :, :], log["d"][..., 0, :, :])
    sums = log["d"][..., 1, :, :].sum(axis=(1, 2))  # [row blocks, lanes, registers]
    np.testing.assert_array_equal(sums.swapaxes(1, 2).reshape(2, -1), problem.expected)


def test_one_cta_alone(library) -> None:
    problem = SplitK(library)
    library.log_mma((1, 2, 0))
    assert problem.run()
    log = library.mma_log()
    assert len(log) == WARPS * STEPS
    assert (log["block"] == (1, 2, 0)).all()
    library.log_mma((2, 0, 0))
    assert problem.run()
    assert len(library.mma_log()) == 0


def test_too_many_are_an_error_and_not_a_gap(library) -> None:
    library.log_mma(limit=47)
    assert SplitK(library).run()
    with pytest.raises(
        CannotRun, match="48 mma were executed, of which the log holds the first 47"
    ):
        library.mma_log()
    library.log_mma(limit=48)
    assert SplitK(library).run()
    assert len(library.mma_log()) == 48


def test_nothing_is_logged_unless_asked(library) -> None:
    assert SplitK(library).run()
    assert len(library.mma_log()) == 0
    library.log_mma()
    library.log_mma(limit=0)
    assert SplitK(library).run()
    assert len(library.mma_log()) == 0


def test_what_an_error_leaves_is_what_ran_before_it(library) -> None:
    library.configure(schedule_seed=1)
    library.log_mma()
    assert not SplitK(library).run("missing_lane")
    assert {int(number) for number in library.mma_log()["number"]} <= {0, 1}


def test_logging_changes_no_schedule(library) -> None:
    def switches(logged: bool) -> int:
        library.configure(schedule_seed=5, preempt=True)
        library.log_mma(limit=1 << 14 if logged else 0)
        before = library.switches
        assert SplitK(library).run()
        return library.switches - before

    assert switches(logged=True) == switches(logged=False)


def test_a_seeds_schedule_is_the_same_whatever_ran_before(library) -> None:
    def order(seed: int) -> list[tuple[int, ...]]:
        library.configure(schedule_seed=seed, resident_ctas=1 + seed % 6)
        library.log_mma()
        assert SplitK(library).run()
        return [(*mma["block"], mma["warp"]) for mma in library.mma_log()]

    upwards = {seed: order(seed) for seed in range(30)}
    assert {seed: order(seed) for seed in range(29, -1, -1)} == upwards
