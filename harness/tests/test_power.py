"""The rates of the gate, simulated; and that the simulation deals with processes as it says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lanecheck.bench.paired.gate import ALPHA, Floats, Verdict
from lanecheck.bench.paired.power import SLOW_DOWNS, Rate, lognormal, rates, recorded
from lanecheck.errors import BadInput

PAIRS, RUNS = 12, 2000
LEVEL = 33 / 4096
"""P(W+ <= 9) of 12 pairs, the largest that is at most ALPHA."""


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# Published rates ------------------------------------------------------------------------------


@pytest.mark.parametrize("configs", [1, 10])
def test_identical_code_is_not_called_slow_and_two_percent_are(configs: int) -> None:
    found = rates(lognormal(0.006, configs, PAIRS, RUNS, rng()), rng())
    assert found[0.0][Verdict.SLOW].high <= ALPHA and found[0.0][Verdict.FAST].high <= ALPHA
    assert found[0.02][Verdict.SLOW].low >= 0.95
    assert found[0.05][Verdict.SLOW].low >= 0.95


def test_quiet_processes_show_that_identical_code_is_the_same() -> None:
    found = rates(lognormal(0.002, 1, PAIRS, RUNS, rng()), rng())
    assert found[0.0][Verdict.SAME].low >= 0.95
    assert found[0.01][Verdict.SLOW].low >= 0.95


def test_without_a_margin_the_level_is_that_of_the_exact_test() -> None:
    found = rates(lognormal(0.006, 1, PAIRS, 20_000, rng()), rng(), margin=0.0)[0.0]
    sound = 1 - 2 * LEVEL  # controls that do not alarm
    assert _holds(found[Verdict.INSUFFICIENT], 2 * LEVEL)
    assert _holds(found[Verdict.SLOW], LEVEL * sound)
    assert _holds(found[Verdict.FAST], LEVEL * sound)


def _drift(processes: Floats) -> Floats:
    """Each process is 1 % slower than the one before it."""
    return processes + 0.01 * np.arange(processes.shape[-1])


def _order(processes: Floats) -> Floats:
    """The second of two is 3 % slower than the first."""
    return processes + 0.03 * (np.arange(processes.shape[-1]) % 2)


def _spikes(processes: Floats) -> Floats:
    """One process in ten takes a fifth longer."""
    return processes + 0.2 * (rng().random(processes.shape) < 0.1)


def _walk(processes: Floats) -> Floats:
    """Neighbours are alike: noise adds up."""
    return np.cumsum(processes, axis=-1)


@pytest.mark.parametrize("disturb", [_drift, _order, _spikes, _walk])
def test_random_order_keeps_the_level_under_every_disturbance(
    disturb: Callable[[Floats], Floats],
) -> None:
    processes = disturb(lognormal(0.006, 1, PAIRS, 10_000, np.random.default_rng(1)))
    found = rates(processes, rng(), margin=0.0)[0.0]
    assert found[Verdict.SLOW].low <= LEVEL and found[Verdict.FAST].low <= LEVEL
    assert found[Verdict.INSUFFICIENT].low <= 2 * LEVEL


def test_a_larger_slow_down_is_seen_more_often() -> None:
    found = rates(lognormal(0.01, 1, PAIRS, RUNS, rng()), rng())
    shares = [found[slow_down][Verdict.SLOW].share for slow_down in SLOW_DOWNS]
    assert shares == sorted(shares) and shares[0] < shares[1] < shares[2] < shares[3]


def test_each_config_is_slowed_in_its_turn() -> None:
    processes = lognormal(0.002, 2, PAIRS, RUNS, rng())
    processes[:, 1] *= 100  # no change of this config can be seen
    assert _holds(rates(processes, rng())[0.05][Verdict.SLOW], (1 - 2 * LEVEL) / 2)


def test_the_shares_of_the_verdicts_sum_to_one_and_the_seed_decides_them() -> None:
    found = rates(lognormal(0.006, 2, PAIRS, 200, rng()), rng())
    for shares in found.values():
        assert sum(rate.share for rate in shares.values()) == pytest.approx(1)
    assert rates(lognormal(0.006, 2, PAIRS, 200, rng()), rng()) == found


def test_pairs_that_could_never_speak_are_refused() -> None:
    with pytest.raises(BadInput, match="12 pairs, but 41 gated configs need 13"):
        rates(lognormal(0.006, 41, PAIRS, 2, rng()), rng())


# Recordings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [49, 50, 75])
def test_a_run_uses_no_process_twice_and_pairs_neighbours(processes: int) -> None:
    order = range(1, processes + 1)
    found = recorded({"a": order, "b": [10 * i for i in order]}, PAIRS, 500, rng())
    assert found.shape == (500, 2, 4 * PAIRS)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], np.log(10))  # one process, both configs
    used = np.round(np.exp(found[:, 0])).astype(int)
    assert all(len(set(run)) == 4 * PAIRS for run in used)
    assert (used[:, 1::2] - used[:, 0::2] == 1).all()
    assert set(used.flat) >= set(order[:-1])


def test_a_recording_gives_the_rates_of_its_noise() -> None:
    times = 9 * np.exp(np.random.default_rng(3).normal(0, 0.006, 97))
    drifting = times * np.linspace(1, 1.05, 97)
    found = rates(recorded({"m=1": drifting.tolist()}, PAIRS, RUNS, rng()), rng())
    assert found[0.0][Verdict.SLOW].high <= ALPHA and found[0.0][Verdict.FAST].high <= ALPHA
    assert found[0.02][Verdict.SLOW].low >= 0.95


def test_a_recording_that_cannot_serve_is_refused() -> None:
    for medians, reason in [
        ({"a": [1.0] * 48}, "48 recorded processes; two arms of 12 pairs need 49"),
        ({"a": [1.0] * 60, "b": [1.0] * 61}, "every config"),
        ({}, "every config"),
        ({"a": [1.0] * 59 + [0.0]}, "not a positive number"),
        ({"a": [1.0] * 59 + [float("nan")]}, "not a positive number"),
    ]:
        with pytest.raises(BadInput, match=reason):
            recorded(medians, PAIRS, 10, rng())


# Intervals ------------------------------------------------------------------------------------


def test_the_interval_of_a_rate_is_exact() -> None:
    none = Rate.of(0, 300)
    assert (none.share, none.low) == (0, 0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 300))
    assert _holds(Rate.of(3, 300), 0.01) and not _holds(Rate.of(3, 300), 0.03)


def _holds(rate: Rate, share: float) -> bool:
    return rate.low <= share <= rate.high
