"""Stability: the same launch gives the same bits again.

A case runs twice: under two schedules of its warps and CTAs, with other contents in every output element
beforehand, and in every workspace element too or, in half of the cases, with what the first launch left
there. On the host the schedules are drawn from the seed; on a GPU they are the
device's. A difference needs no reference: a race, an uninitialised read, an accumulation into what was
there, or atomic additions in the order of arrival.

Sees: results that depend on timing or on what memory held.

Cannot see: a race that no schedule tried decides otherwise; what is wrong each time in the same way.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.oracles.compare import first_difference
from lanecheck.verdict import Outcome, Verdict

NAME = "stability"


def judge(observation: Observation) -> Verdict | None:
    once, *others = observation.runs
    for again in others:
        difference = first_difference(again.outputs, once.outputs)
        if difference is not None:
            text = f"launched again, under another schedule and other poison: {difference}"
            return Verdict(NAME, Outcome.FAIL, text)
    return Verdict(NAME, Outcome.PASS) if others else None
