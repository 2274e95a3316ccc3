"""A failing case looked at closely: the first mma whose registers are not as they should be.

What each register should hold comes from the subject, which derives it from its specification. What it
held is logged by host execution. If every mma is as it should be, the fault is after them, and the subject
says through which sums its outputs come about.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from lanecheck.cases import Case
from lanecheck.errors import CannotRun
from lanecheck.gpu import choose
from lanecheck.observation import POISON, Observation
from lanecheck.oracles.compare import first, first_difference
from lanecheck.simt import VARIANTS, HostLibrary
from lanecheck.subject import Bits, Buffer, Params, Subject, load
from lanecheck.tensorcore import TensorCore
from lanecheck.toolchain import find_cxx
from lanecheck.trial import Target, launcher, observe


@dataclass(frozen=True)
class Walk:
    """What the registers of one warp should hold at each of its L mma, in the order of their execution.

    Attributes:
        cta: its block index, one to three numbers. warp: its number in there.
        titles: which mma each is, in words.
        registers: by operand, in the order of comparison: ``A`` and ``C`` and ``D`` ``[L, 32, 4]``, ``B``
            ``[L, 32, 2]``, as uint32; masked where no output depends on them.
        where: what a register is logically, such as ``x[2, 68…69]``: of operand, mma, lane and register.
    """

    cta: tuple[int, ...]
    warp: int
    titles: Sequence[str]
    registers: Mapping[str, np.ma.MaskedArray[Any, np.dtype[np.uint32]]]
    where: Callable[[str, int, int, int], str]

    @property
    def name(self) -> str:
        return f"warp {self.warp}, CTA ({_commas(self.cta)})"


@runtime_checkable
class Explains(Protocol):
    """A subject that can say how one of its output elements is computed."""

    def locate(self, params: Params, output: str, index: tuple[int, ...]) -> str:
        """Who computes it."""

    def walks(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
    ) -> Iterator[Walk]:
        """Every warp whose mma it depends on, in the order in which they are added."""

    def explain(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
        left: Mapping[str, Bits],
    ) -> Iterator[str]:
        """The sums on the way to it, given what the launch ``left`` in its outputs and, on the host, in
        its workspaces."""


def trace(case: Case, target: Target) -> Iterator[str]:
    """For each capability, the first element whose bits are not the predicted ones, and why.

    Runs the case in this process; see :func:`traced`.
    """
    subject = load(target.subject)
    choose(target.gpus)
    for capability, observation in observe(subject, case, target):
        lines = _capability(subject, case, replace(target, capabilities=(capability,)), observation)
        yield f"on {capability}: {next(lines)}"
        yield from (f"  {line}" for line in lines)


def traced(case: Case, target: Target) -> list[str]:
    """:func:`trace`, in a process of its own where the target's library needs one (asan).

    Raises:
        CannotRun: if that process ends early.
    """
    variant = VARIANTS[target.variant] if target.device == "host" and target.library else None
    if variant is None or not variant.preload:
        return list(trace(case, target))
    environment = variant.environment(str(find_cxx(os.environ)))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=pickle.dumps((case, target)),
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
    )
    if done.returncode:
        raise CannotRun("the case ends its process, so there is nothing to trace")
    return done.stdout.decode().splitlines()


def _capability(
    subject: Subject, case: Case, target: Target, observation: Observation
) -> Iterator[str]:
    predicted = subject.predict(case.params, observation.inputs, observation.core)
    if predicted is None:
        yield "the subject predicts no bits, so there is nothing to trace"
        return
    wrong = [
        (colour, run, difference)
        for colour, run in enumerate(observation.runs)
        if (difference := first_difference(run.outputs, predicted))
    ]
    if not wrong:
        yield "every bit is the predicted one"
        return
    colour, run, difference = wrong[0]
    again = "launched again, under another schedule and other poison: " if colour else ""
    yield again + difference
    yield from (f"reported: {problem.message}" for problem in run.problems)
    name = next(name for name, bits in predicted.items() if (run.outputs[name] != bits).any())
    index = first(run.outputs[name] != predicted[name])
    held = run.outputs[name][index]
    if held in POISON[colour].values():
        yield f"{name}[{_commas(index)}] was never written"
    elif where := _meant(held, predicted):
        yield f"that is what {where} should be"
    if not isinstance(subject, Explains):
        return

    asked = (case.params, observation.inputs, observation.core, name, index)
    yield subject.locate(case.params, name, index)
    left: Mapping[str, Bits] = run.outputs
    if target.device != "host" or target.library is None:
        yield "mma are logged on the host only; what should have been summed:"
    elif colour:
        yield "the first launch was right, and with it every mma; what should have been summed:"
    else:
        walks = list(subject.walks(*asked))
        logs = {cta: _logged(subject, case, target, cta, walks) for cta in _ctas(walks)}
        _, left = next(iter(logs.values()))
        records = {cta: records for cta, (records, _) in logs.items()}
        ended = any(problem.kind != "canary" for problem in run.problems)
        said = first_wrong(walks, records, ended)
        executed = sum(map(len, records.values()))
        if said or ended:
            yield said or f"until then every mma was as expected ({executed} executed)"
            return
        yield f"each of the {executed} mma is as expected: the fault is after them"
    yield from subject.explain(*asked, left)


def _ctas(walks: Sequence[Walk]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(walk.cta for walk in walks))


def _meant(held: np.generic, predicted: Mapping[str, Bits]) -> str | None:
    """The only element that should hold these bits, if there is one."""
    places = [(name, at) for name, bits in predicted.items() for at in np.argwhere(bits == held)]
    return f"{places[0][0]}[{_commas(places[0][1])}]" if len(places) == 1 else None


def _commas(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


# The log ----------------------------------------------------------------------------------------


class _Watched:
    """A subject that keeps a copy of what its launch leaves in memory."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.left: dict[str, Bits] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        said = self._subject.launch(library, params, buffers, stream)
        for name, buffer in buffers.items():
            if buffer.elements is not None:
                self.left[name] = buffer.elements.copy()
        return said


def _logged(
    subject: Subject, case: Case, target: Target, cta: tuple[int, ...], walks: Sequence[Walk]
) -> tuple[npt.NDArray[Any], Mapping[str, Bits]]:
    """The mma of one CTA in the case's first launch, which the seed makes the same each time, and what
    the launch left."""
    expected = sum(len(walk.titles) for walk in walks if walk.cta == cta)
    watched = _Watched(subject)
    assert target.library is not None
    library = HostLibrary(target.library)
    x, y, z = (*cta, 0, 0)[:3]
    with launcher(cast(Subject, watched), case, target) as launch:
        library.log_mma((x, y, z), limit=2 * expected + 1024)
        try:
            launch()
            return library.mma_log(), watched.left
        finally:
            library.log_mma(limit=0)


# The comparison ---------------------------------------------------------------------------------


def first_wrong(
    walks: Sequence[Walk], records: Mapping[tuple[int, ...], npt.NDArray[Any]], ended: bool
) -> str | None:
    """What is wrong first in the order of the walks, in words; that mma are missing is not, where an error
    ``ended`` the launch."""
    for walk in walks:
        log = records[walk.cta]
        log = log[log["warp"] == walk.warp]
        said = _divergence(walk, log, walks) or (None if ended else _miscount(walk, log))
        if said:
            return said
    return None


def _divergence(walk: Walk, log: npt.NDArray[Any], walks: Sequence[Walk]) -> str | None:
    """The first register of a warp's mma that is not as it should be, in words."""
    for i in range(min(len(log), len(walk.titles))):
        for operand, registers in walk.registers.items():
            want, held = registers[i], log[operand.lower()][i].view(np.uint32)
            wrong = (want != held).filled(False)
            if not wrong.any():
                continue
            lane, register = first(wrong)
            where = walk.where(operand, i, lane, register)
            source = _source(operand, held[:, register], lane, [walk, *walks])
            return (
                f"mma {i} of {walk.name} ({walk.titles[i]}): lane {lane} (g {lane >> 2}, "
                f"t {lane & 3}), {operand} register {register} holds "
                f"{_shown(operand, held[lane, register], source)}, expected "
                f"{_shown(operand, want.data[lane, register], where)}{_CAUSES[operand]}"
            )
    return None


def _miscount(walk: Walk, log: npt.NDArray[Any]) -> str | None:
    """How many mma of a warp are missing, or are too many, in words."""
    executed, expected = len(log), len(walk.titles)
    if executed == expected:
        return None
    end = f": none from {walk.titles[executed]} on" if executed < expected else ""
    return f"{walk.name} executed {executed} mma, expected {expected}{end}"


_CAUSES = {
    "A": "",
    "B": "",
    "C": "; A and B are right, and this is not what they should have been added to",
    "D": "; A, B and C are right, and this is not their result",
}


def _source(
    operand: str, held: npt.NDArray[np.uint32], lane: int, walks: Sequence[Walk]
) -> str | None:
    """What a lane's register really holds, if it is something that another mma or register should.

    Args:
        held: the register in all 32 lanes: of several candidates, the one that explains most of them is
            taken.
    """
    if operand not in "AB" or not held[lane]:
        return None
    for walk in walks:
        alike = walk.registers[operand].data == held[:, None]  # [L, 32, registers]
        lanes = np.where(alike[:, lane], alike.sum(axis=1), 0)
        if lanes.any():
            mma, register = np.unravel_index(lanes.argmax(), lanes.shape)
            return walk.where(operand, int(mma), lane, int(register))
    for walk in walks:
        places = np.argwhere(walk.registers[operand].data == held[lane])
        if len(places):
            return walk.where(operand, *places[0].tolist())
    return None


def _shown(operand: str, word: np.uint32, where: str | None) -> str:
    """``0x3F80BF80 (x[2, 72…73] = -1, 1)``: of two halves the lower one first."""
    words = [word << np.uint32(16), word & np.uint32(0xFFFF0000)] if operand in "AB" else [word]
    values = ", ".join(f"{value:.9g}" for value in np.array(words, np.uint32).view(np.float32))
    return f"0x{word:08X} ({f'{where} = ' if where else ''}{values})"


if __name__ == "__main__":
    for line in trace(*pickle.load(sys.stdin.buffer)):
        print(line)
