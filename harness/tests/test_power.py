"""The rates of the gate, simulated; and that the simulation deals with processes as it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lanecheck.bench.paired import power
from lanecheck.bench.paired.gate import ALPHA, MARGIN, VERDICTS, Floats, Verdict
from lanecheck.bench.paired.power import SLOW_DOWNS, lognormal, noise, recorded, simulate
from lanecheck.bench.paired.rates import Rate, Simulated, percent
from lanecheck.bench.paired.table import hardest
from lanecheck.errors import BadInput

PAIRS, RUNS = 12, 2000
LEVEL = 33 / 4096
"""P(W+ <= 9) of 12 pairs, the largest that is at most ALPHA."""


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def rates(
    processes: Floats, rng: np.random.Generator, margin: float = MARGIN
) -> dict[float, dict[Verdict, Rate]]:
    found = power.rates(
        power.counts(processes, rng, margin), [*map(str, range(processes.shape[1]))]
    )
    return {each.slow_down: each.verdicts for each in found}


# The gate's rates -----------------------------------------------------------------------------


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


def test_a_coin_deals_all_configs_of_a_pair_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran in the same two processes: what is common to these is common to all verdicts."""
    effects: list[Floats] = []
    decide = power.decide

    def decided(change: Any, *given: Any) -> Any:
        effects.append(change.effect)
        return decide(change, *given)

    monkeypatch.setattr(power, "decide", decided)
    one = lognormal(0.006, 1, PAIRS, 50, rng())
    power.counts(np.repeat(one, 3, axis=1), rng())
    identical = effects[SLOW_DOWNS.index(0.0)]
    assert (identical == identical[:, :1]).all() and len({*identical[:, 0]}) == 50


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


def test_the_margins_docstring_quotes_the_gates_power() -> None:
    """Runs are few: a share is within 6 of 100 of the figure, three of its standard deviations."""
    quoted = {0.006: 0.96, 0.0075: 0.83, 0.01: 0.51}
    for deviation, share in quoted.items():
        found = rates(lognormal(deviation, 20, PAIRS, 600, rng()), rng())
        assert found[0.02][Verdict.SLOW].share == pytest.approx(share, abs=0.06)
    found = rates(lognormal(0.002, 20, PAIRS, 600, rng()), rng())
    assert found[0.0][Verdict.SAME].share == pytest.approx(0.85, abs=0.06)


# By place -------------------------------------------------------------------------------------


def test_by_place_has_the_rates_of_comparisons_of_their_own_on_the_average() -> None:
    """Each pool is as small as can be; the mean over many is the level, and not above it."""
    generator = np.random.default_rng(4)
    shares = []
    for _ in range(300):
        change, control = generator.normal(0, 0.05, (2, 1, 2 * PAIRS))
        found = power.by_place(change, control, PAIRS, 20, 0)
        assert found is not None
        shares.append(found.alarmed / 20)
    assert np.mean(shares) <= 2 * LEVEL + 3 * np.std(shares) / 300**0.5


def test_by_place_shows_a_bias_and_a_control_that_has_one() -> None:
    biased, sound = rng().normal([[[0.03]], [[0.0]]], 0.006, (2, 2, 3 * PAIRS))
    found = power.by_place(biased, sound, PAIRS, RUNS, 0)
    assert found is not None and found.alarmed == found.verdicts[Verdict.SLOW].count > 0.9 * RUNS
    found = power.by_place(sound, biased, PAIRS, RUNS, 0)
    assert found is not None and found.verdicts[Verdict.INSUFFICIENT].share == 1
    assert power.by_place(biased, sound[:, : PAIRS - 1], PAIRS, RUNS, 0) is None


# Recordings -----------------------------------------------------------------------------------


def test_the_config_that_is_slowed_is_found_by_its_own_noise() -> None:
    processes = lognormal(0.002, 2, PAIRS, RUNS, rng())
    processes[:, 1] *= 10
    same, *slowed = power.rates(power.counts(processes, rng()), ["quiet", "noisy"])
    assert same.found == same.missed == {} and same.hardest is None
    for each in slowed:
        assert each.hardest is not None and each.hardest[0] == "noisy"
        assert {rate.runs for rate in each.found.values()} == {RUNS // 2}
        assert sum(r.count for r in each.found.values()) == each.verdicts[Verdict.SLOW].count
    assert slowed[1].found["quiet"].low >= 0.95


def test_where_only_controls_alarm_no_config_is_named() -> None:
    """All misses are INSUFFICIENT: which config was slowed then is chance."""
    processes = lognormal(0.001, 3, PAIRS, RUNS, rng())
    _, _, two, five = power.rates(power.counts(processes, rng()), [*"abc"])
    for each in (two, five):
        assert each.verdicts[Verdict.INSUFFICIENT].count > 0
        assert each.missed == {"a": 0, "b": 0, "c": 0}
        assert each.hardest is None and hardest(each) == "none is missed"


def test_the_share_that_is_found_of_the_hardest_config_leaves_alarms_out() -> None:
    by_config = np.zeros((len(SLOW_DOWNS), 2, len(VERDICTS)), np.int64)
    slow, alarm, other = map(VERDICTS.index, ("SLOW", "INSUFFICIENT", "AMBIGUOUS"))
    by_config[..., slow] = 90
    by_config[:, 0, alarm] = 10  # fewer of these are found, by chance
    by_config[:, 1, [slow, alarm, other]] = 92, 6, 2
    each = power.rates(by_config, ["unlucky", "hard"])[2]
    assert each.missed == {"unlucky": 0, "hard": 2}
    assert each.hardest == ("hard", pytest.approx(92 / 94)) and hardest(each) == "97.9%, hard"
    plain = each.model_dump()
    for change in ({"missed": {"unlucky": 1, "hard": 2}}, {"missed": {"hard": 2}}, {"missed": {}}):
        with pytest.raises(ValidationError, match="not as many slow-downs were missed"):
            Simulated.model_validate({**plain, **change})
    with pytest.raises(ValidationError, match="not as many slow-downs were found"):
        Simulated.model_validate({**plain, "found": {"hard": plain["found"]["hard"]}})
    assert Simulated.model_validate({**plain, "missed": None}).hardest is None  # an old record


@pytest.mark.parametrize("processes", [49, 50, 75])
def test_a_run_uses_no_process_twice_and_pairs_neighbours(processes: int) -> None:
    order = range(1, processes + 1)
    found = recorded([{"a": order, "b": [10 * i for i in order]}], PAIRS, 500, rng())
    assert found.shape == (500, 2, 4 * PAIRS)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], np.log(10))  # one process, both configs
    used = np.round(np.exp(found[:, 0])).astype(int)
    assert all(len(set(run)) == 4 * PAIRS for run in used)
    assert (used[:, 1::2] - used[:, 0::2] == 1).all()
    assert set(used.flat) == set(order)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 12), st.integers(0, 2**32)
)
@settings(max_examples=60)
def test_no_pair_is_of_two_recordings_whatever_their_lengths(
    lengths: list[int], pairs: int, seed: int
) -> None:
    """A process is written as its recording's thousand and its place there."""
    recordings = [{"a": [1000 * (1 + r) + p for p in range(n)]} for r, n in enumerate(lengths)]
    generator = np.random.default_rng(seed)
    if sum((n - 1) // 2 for n in lengths) < 2 * pairs:
        with pytest.raises(BadInput, match=f"two arms of {pairs} pairs need {2 * pairs}"):
            recorded(recordings, pairs, 1, generator)
        return
    used = np.round(np.exp(recorded(recordings, pairs, 20, generator)[:, 0])).astype(int)
    assert (used[:, 1::2] - used[:, 0::2] == 1).all()
    assert (used[:, 1::2] // 1000 == used[:, 0::2] // 1000).all()
    assert all(len(set(run)) == 4 * pairs for run in used)


def test_every_recording_serves() -> None:
    recordings = [{"a": [1000 * (1 + r) + p for p in range(48)]} for r in range(3)]
    used = np.round(np.exp(recorded(recordings, PAIRS, 500, rng())[:, 0])).astype(int)
    assert len(set(used.flat)) == 3 * 48


def test_recordings_give_the_rates_of_their_noise() -> None:
    generator = np.random.default_rng(3)
    recordings = [
        {
            "m=1": (
                level * np.linspace(1, 1.05, 48) * np.exp(generator.normal(0, 0.006, 48))
            ).tolist()
        }
        for level in (9, 9.4, 8.7)  # three GPUs that drift and differ by far more than their noise
    ]
    found = {each.slow_down: each.verdicts for each in simulate(recordings, PAIRS, RUNS, seed=0)}
    assert found[0.0][Verdict.SLOW].high <= ALPHA and found[0.0][Verdict.FAST].high <= ALPHA
    assert found[0.02][Verdict.SLOW].low >= 0.95
    assert 0.5 < noise(recordings)["m=1"] / (0.006 * 2**0.5) < 1.5


@given(st.floats(1e-4, 0.05), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_false_alarms_of_any_lognormal_noise_stay_at_the_level(
    deviation: float, configs: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    processes = lognormal(deviation, configs, PAIRS, 600, generator)
    found = rates(processes, generator, margin=0.0)[0.0]
    assert found[Verdict.SLOW].low <= ALPHA and found[Verdict.FAST].low <= ALPHA


def test_runs_are_simulated_in_turns_of_the_configs_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(power, "AT_ONCE", 100)
    recordings = [{name: [1.0 + i % 7 / 1e4 for i in range(60)] for name in "abc"}]
    for each in simulate(recordings, PAIRS, 1000, seed=0):
        assert {rate.runs for rate in each.verdicts.values()} == {1000}
        assert [rate.runs for rate in each.found.values()] in ([], [334, 333, 333])


def test_a_recording_that_cannot_serve_is_refused() -> None:
    for recordings, reason in [
        ([{"a": [1.0] * 48}], "48 recorded processes make 23 pairs of neighbours; two arms of 12 "),
        ([{"a": [1.0] * 60, "b": [1.0] * 61}], "every config"),
        ([{"a": [1.0] * 60}, {"b": [1.0] * 60}], "every config"),
        ([{}], "every config"),
        ([{"a": [1.0] * 59 + [0.0]}], "not a positive number"),
        ([{"a": [1.0] * 59 + [float("nan")]}], "not a positive number"),
    ]:
        with pytest.raises(BadInput, match=reason):
            recorded(recordings, PAIRS, 10, rng())


# Intervals ------------------------------------------------------------------------------------


def test_the_interval_of_a_rate_is_exact() -> None:
    none = Rate.of(0, 300)
    assert (none.share, none.low) == (0, 0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 300))
    assert _holds(Rate.of(3, 300), 0.01) and not _holds(Rate.of(3, 300), 0.03)


def _holds(rate: Rate, share: float) -> bool:
    return rate.low <= share <= rate.high


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0%"),
        (2e-4, "0.02%"),
        (0.0213, "2.1%"),
        (0.306, "31%"),
        (0.5, "50%"),
        (0.991, "99.1%"),
        (0.99996, "99.996%"),
        (1, "100%"),
    ],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float, text: str) -> None:
    assert percent(share) == text
