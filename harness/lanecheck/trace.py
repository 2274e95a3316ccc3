"""A failing case looked at closely: where the first wrong element comes from, and its data to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from lanecheck.cases import Case
from lanecheck.oracles.compare import first
from lanecheck.subject import Bits, Params, Subject, load
from lanecheck.tensorcore import TensorCore
from lanecheck.trial import Target, observe


class Explains(Protocol):
    """A subject that can say how one of its output elements is computed."""

    def explain(
        self,
        params: Params,
        inputs: Mapping[str, Bits],
        core: TensorCore,
        output: str,
        index: tuple[int, ...],
    ) -> Iterator[str]: ...


def trace(case: Case, target: Target) -> Iterator[str]:
    """For each capability, the first element whose bits are not the predicted ones, explained.

    Runs the case in this process.
    """
    subject = load(target.subject)
    for capability, observation in observe(subject, case, target):
        predicted = subject.predict(case.params, observation.inputs, observation.core)
        if predicted is None:
            yield f"on {capability}: the subject predicts no bits, so there is nothing to trace"
            continue
        wrong = [
            name for name, bits in predicted.items() if (observation.outputs[name] != bits).any()
        ]
        if not wrong:
            yield f"on {capability}: every bit is the predicted one"
            continue
        name = wrong[0]
        index = first(observation.outputs[name] != predicted[name])
        yield f"on {capability}:"
        if explain := getattr(subject, "explain", None):
            lines = explain(case.params, observation.inputs, observation.core, name, index)
            yield from (f"  {line}" for line in lines)
        else:
            yield f"  {name}[{', '.join(map(str, index))}] differs first"


def export(case: Case, target: Target, path: Path) -> None:
    """Store a case's bits as one ``.npz``: ``line``, ``in/NAME``, and for each capability
    ``CC/out/NAME`` and ``CC/predicted/NAME``."""
    subject: Subject = load(target.subject)
    arrays: dict[str, np.ndarray] = {"line": np.array(case.line)}
    for capability, observation in observe(subject, case, target):
        arrays |= {f"in/{name}": bits for name, bits in observation.inputs.items()}
        arrays |= {f"{capability}/out/{name}": bits for name, bits in observation.outputs.items()}
        predicted = subject.predict(case.params, observation.inputs, observation.core) or {}
        arrays |= {f"{capability}/predicted/{name}": bits for name, bits in predicted.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
