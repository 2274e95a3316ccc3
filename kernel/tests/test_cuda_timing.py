"""Every way to time wrongly that the benchmark must notice, done for real on a GPU; and honest timing.

What is launched on a side stream is not captured, so the benchmark finds a cached output. The same faults are
done on the CPU in the harness's tests, without GPU and kernel; there persisting L2 is only reported.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lanecheck.bench import race, telemetry  # noqa: E402
from lanecheck.bench.asking import Asking  # noqa: E402
from lanecheck.bench.ceiling import Ceiling, build  # noqa: E402
from lanecheck.bench.cuda_rig import CudaHeld, CudaRig  # noqa: E402
from lanecheck.bench.device import described  # noqa: E402
from lanecheck.bench.doubts import Fault, doubts  # noqa: E402
from lanecheck.bench.model import Row  # noqa: E402
from lanecheck.bench.plan import Workload  # noqa: E402
from lanecheck.bench.timing import Chain  # noqa: E402
from lanecheck.build import build_device  # noqa: E402
from lanecheck.matrix import Arch  # noqa: E402
from lanecheck.subject import Buffer, Params  # noqa: E402
from lanecheck.toolchain import Toolchain  # noqa: E402
from lanecheck.trial import Target  # noqa: E402
from packed_gemv.subject import SUBJECT, PackedGemv  # noqa: E402

pytestmark = pytest.mark.usefixtures("cuda")

ACCESS_POLICY_WINDOW, PERSISTING = 1, 2  # of CUlaunchAttributeID and CUaccessProperty
PERSISTING_L2_CACHE_SIZE = 6  # of CUlimit


class Cheat(PackedGemv):
    """The kernel, honest until it is benchmarked."""

    benchmarked = False

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        if self.benchmarked:
            return self.cheat(library, params, buffers, stream)
        return super().launch(library, params, buffers, stream)

    def cheat(self, *given: Any) -> str | None:
        return super().launch(*given)


class Sleeps(Cheat):
    def cheat(self, *given: Any) -> str | None:
        time.sleep(0.002)
        return super().cheat(*given)


class Returns(Cheat):
    """Computes each output once, and leaves it there."""

    def __init__(self) -> None:
        self.computed: set[int] = set()

    def cheat(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
        y = buffers["y0"].address
        if y in self.computed:
            return None
        self.computed.add(y)
        return super().cheat(library, params, buffers, stream)


class Beside(Cheat):
    """Works on a stream that nobody times."""

    def cheat(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
        self.side = getattr(self, "side", None) or torch.cuda.Stream()
        return super().cheat(library, params, buffers, self.side.cuda_stream)


class Skips(Cheat):
    """Half of K."""

    def cheat(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
        return super().cheat(library, {**params, "k": int(params["k"]) // 2}, buffers, stream)


class Keeps(Cheat):
    """Asks the L2 to keep the weights, for all that follows on the stream."""

    def cheat(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
        window = (ctypes.c_uint64 * 8)(buffers["packed0"].address, 1 << 20)
        ctypes.memmove(ctypes.byref(window, 16), (ctypes.c_float * 1)(1.0), 4)
        ctypes.memmove(ctypes.byref(window, 20), (ctypes.c_int * 2)(PERSISTING, 0), 8)
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuStreamSetAttribute(ctypes.c_void_p(stream), ACCESS_POLICY_WINDOW, window)
        assert code == 0
        return super().cheat(library, params, buffers, stream)


class SetsAside(Cheat):
    """Has more of the L2 set aside for what is to stay in it."""

    def cheat(self, *given: Any) -> str | None:
        if not torch.cuda.is_current_stream_capturing():
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuCtxSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(20 << 20))
        return super().cheat(*given)


class Thins(Cheat):
    """Makes half of the weights zero."""

    def cheat(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
        driver, weights = ctypes.CDLL("libcuda.so.1"), int(params["n"]) * int(params["k"])
        driver.cuMemsetD2D8Async(
            *(ctypes.c_uint64(buffers["packed0"].address), ctypes.c_size_t(4), ctypes.c_ubyte(0)),
            *(ctypes.c_size_t(2), ctypes.c_size_t(weights // 2), ctypes.c_void_p(stream)),
        )
        return super().cheat(library, params, buffers, stream)


class OneCopy(CudaRig):
    """Has all copies at one place."""

    def hold(self, tensor: Any, values: Any, copies: int) -> CudaHeld:
        held = super().hold(tensor, values, copies)
        held.addresses = held.addresses[:1] * copies
        return held


class Hasty(CudaRig):
    """Stops the host's clock without waiting for the GPU."""

    def chain(self, launches: Any, turns: int | None = None) -> Chain:
        chain = super().chain(launches, turns)

        def hasty() -> float:
            start = time.perf_counter_ns()
            chain.enqueue()
            return (time.perf_counter_ns() - start) / 1e3

        chain.time = hasty  # type: ignore[method-assign]
        return chain


@pytest.fixture(scope="module")
def library() -> Any:
    major, minor = torch.cuda.get_device_capability()
    code = f"arch=compute_{major}{minor},code=sm_{major}{minor}"
    arch = Arch(
        name="here", gencode=(code,), loads_on=(f"{major}.{minor}",), min_ctk="11.0", role="native"
    )
    return build_device(SUBJECT.recipe, arch, Toolchain()).path


def timed(library: Any, subject: Cheat, rig_of: type[CudaRig] = CudaRig) -> Row:
    """One row of the record, without peers."""
    environment, uuid = described()
    with telemetry.watch(uuid) as held_back:
        rig = rig_of(library, environment.l2_bytes)
        params = SUBJECT.gate_params("cuda")[8]  # of tens of megabytes
        workload = Workload(subject, params, 3)  # type: ignore[arg-type]
        ceiling = Ceiling(build(environment.capability, Toolchain()), environment.sms)
        rng = random.Random(0)
        rivals = partial(
            race.rivals, ceiling, rig, workload, Asking(0.0).alone("not the matter here"), rng
        )

        def enter(copies: int) -> race.Rivals:
            subject.benchmarked = True
            return rivals(copies)

        target = Target("packed_gemv.subject:SUBJECT", "cuda", (environment.capability,), library)
        return race.row(workload, target, rig, enter, 5, rng, held_back)


def faults(found: Row) -> set[Fault]:
    """Those that its record shows; and that they void it."""
    assert found.timing and found.timing.facts, found.void
    shown = doubts(found.timing.facts)
    assert (found.void is None) is (not shown)
    return {doubt.fault for doubt in shown}


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        (Sleeps, Fault.SLEEP),
        (Returns, Fault.CACHED),
        (Beside, Fault.CACHED),
        (Skips, Fault.SKIPPED),
        (Keeps, Fault.PERSISTING),
        (SetsAside, Fault.PERSISTING),
        (Thins, Fault.SPARSE),
        (Thins, Fault.ALTERED),
    ],
)
def test_a_cheating_launch_is_flagged(library: Any, subject: type[Cheat], fault: Fault) -> None:
    assert fault in faults(timed(library, subject()))


def test_copies_that_are_one_are_flagged(library: Any) -> None:
    assert Fault.WARM in faults(timed(library, Cheat(), OneCopy))


def test_a_timer_that_does_not_wait_is_flagged(library: Any) -> None:
    assert Fault.UNSYNCHRONIZED in faults(timed(library, Cheat(), Hasty))


def test_honest_timing_is_not_flagged(library: Any) -> None:
    assert [timed(library, Cheat()).void for _ in range(5)] == [None] * 5
