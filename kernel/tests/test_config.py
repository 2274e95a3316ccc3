"""Configurations: the rules, how K is shared out, and that every real shape gets one."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packed_gemv import config as c
from packed_gemv.config import Config, UnevenError, select

_SHAPES = json.loads((Path(__file__).parent / "data" / "shapes.json").read_text())
SHAPES = {
    **{
        f"{m}/{layer}": nk
        for m, layers in _SHAPES["models"].items()
        for layer, nk in layers.items()
    },
    **_SHAPES["awkward"],
}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    nb, dual = draw(st.integers(1, 8)), draw(st.booleans())
    return Config(
        nw=draw(st.integers(1, c.max_warps(nb, 1 + dual))),
        u=draw(st.sampled_from(c.supported_trips(nb, 1 + dual))),
        s=draw(st.integers(1, 9)),
        nb=nb,
        dual=dual,
    )


# --- what is accepted


@pytest.mark.parametrize("dual", [False, True])
def test_accepted_is_what_fits_registers_and_shared_memory(dual: bool) -> None:
    mats = 1 + dual
    for nb in range(1, 9):
        warps = next(w for w in (16, 8, 4, 2, 1) if w * nb * mats <= 32)
        for nw in range(0, 18):
            for u in range(0, 10):
                fits = u in (1, 2, 4, 8) and mats * (8 * u + 4 * nb) <= 80
                if 1 <= nw <= warps and fits:
                    assert Config(nw, u, nb=nb, dual=dual).mats == mats
                else:
                    with pytest.raises(ValueError, match=r"^(nw|u)="):
                        Config(nw, u, nb=nb, dual=dual)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nb": 0}, "nb is 1 to 8, not 0"),
        ({"nb": 9}, "nb is 1 to 8, not 9"),
        ({"nw": 17}, "nw=17 is not in 1…16: with nb=1 and 1 matrices the reduction has 32 tiles"),
        ({"nb": 8, "dual": True, "u": 1}, "nw=4 is not in 1…2: with nb=8 and 2 matrices"),
        ({"nw": 0}, "nw=0 is not in 1…16"),
        ({"u": 3}, r"u=3 is not compiled; choose one of \(1, 2, 4, 8\)"),
        (
            {"u": 8, "nb": 5},
            r"u=8 needs too many registers with nb=5 and 1 matrices; .*\(1, 2, 4\)",
        ),
        ({"s": 0}, "s is 1 to 65535, not 0"),
        ({"s": 65536}, "s is 1 to 65535, not 65536"),
    ],
)
def test_a_refusal_names_the_limit(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**{"nw": 4, "u": 4, **arguments})


# --- how K is shared out


@given(configs(), st.integers(1, 20_000))
def test_the_slices_cover_every_block_once_and_in_order(config: Config, k: int) -> None:
    slices = config.slices(k)
    assert len(slices) == config.s * config.nw
    assert list(chain.from_iterable(slices)) == list(range(-(-k // 32)))


@given(configs(), st.integers(1, 20_000))
def test_the_shares_differ_by_one_block_at_most_and_the_longer_come_first(
    config: Config, k: int
) -> None:
    lengths = [len(part) for part in config.slices(k)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(configs(), st.integers(1, 5))
def test_an_even_split_starts_where_two_divisions_say(config: Config, trips: int) -> None:
    blocks_a_warp = config.u * trips
    k = 32 * config.s * config.nw * blocks_a_warp
    config.require_even(k)
    a_slice = k // 32 // config.s
    starts = [i * a_slice + w * blocks_a_warp for i in range(config.s) for w in range(config.nw)]
    assert config.slices(k) == [range(a, a + blocks_a_warp) for a in starts]


@given(configs(), st.integers(1, 200).map(lambda count: 32 * count) | st.integers(1, 6000))
def test_even_means_whole_trips_for_every_warp(config: Config, k: int) -> None:
    lengths = {len(part) for part in config.slices(k)}
    whole = k % 32 == 0 and len(lengths) == 1 and lengths.pop() % config.u == 0
    assert config.is_even(k) == (whole and k // 32 >= config.s * config.nw)


@given(configs(), st.integers(1, 6000), st.sampled_from(c.TRIPS))
def test_the_length_of_a_trip_moves_no_block(config: Config, k: int, u: int) -> None:
    assume(u in c.supported_trips(config.nb, config.mats))
    assert Config(config.nw, u, config.s, config.nb, config.dual).slices(k) == config.slices(k)


@pytest.mark.parametrize(
    ("config", "k", "message"),
    [
        (Config(4, 4), 500, "K=500 is not a multiple of 32"),
        (Config(4, 4, 3), 512, "K/32 = 16 blocks do not split into S = 3 equal shares"),
        (Config(4, 4, 8), 512, "K/32 = 16 blocks do not split into S·NW = 32 equal shares"),
        (Config(3, 1), 512, "K/32 = 16 blocks do not split into S·NW = 3 equal shares"),
        (
            Config(4, 2),
            384,
            "3 K blocks a warp (K/32 = 12 over S·NW = 4) do not split into trips of U = 2: "
            "the last trip would read past the warp's share",
        ),
        (
            Config(4, 8),
            512,
            "4 K blocks a warp (K/32 = 16 over S·NW = 4) do not split into trips of U = 8: "
            "the last trip would read past the warp's share",
        ),
    ],
)
def test_an_uneven_k_is_told_which_rule_it_breaks(config: Config, k: int, message: str) -> None:
    with pytest.raises(UnevenError) as refused:
        config.require_even(k)
    assert str(refused.value) == message
    assert not config.is_even(k)


# --- selection


@pytest.mark.parametrize("dual", [False, True], ids=["single", "dual"])
@pytest.mark.parametrize("m", [1, 13, 64])
def test_every_published_shape_has_a_configuration(m: int, dual: bool) -> None:
    for name, (n, k) in SHAPES.items():
        config = select(m, n, k, dual)
        assert (config.nb, config.dual) == (-(-m // 8), dual), name
        assert sum(map(len, config.slices(k))) == -(-k // 32), name


@given(st.integers(1, 64), st.integers(1, 300_000), st.integers(1, 300_000), st.booleans())
def test_every_shape_has_a_configuration(m: int, n: int, k: int, dual: bool) -> None:
    config = select(m, n, k, dual)
    assert (config.nb, config.dual) == (-(-m // 8), dual)
    assert config == c.for_tokens(config, m)


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 20_000), st.booleans())
def test_the_bits_of_a_token_depend_on_m_only_through_the_warps_that_fit(
    m: int, n: int, k: int, dual: bool
) -> None:
    alone, together = select(1, n, k, dual), select(m, n, k, dual)
    assert together.s == alone.s
    assert together.nw == min(alone.nw, c.max_warps(together.nb, together.mats))


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 20_000), st.booleans())
def test_a_batch_invariant_selection_ignores_m(m: int, n: int, k: int, dual: bool) -> None:
    alone, together = (select(tokens, n, k, dual, batch_invariant=True) for tokens in (1, m))
    assert (together.nw, together.s) == (alone.nw, alone.s)
    assert together.nb == -(-m // 8)


@pytest.mark.parametrize("dual", [False, True], ids=["single", "dual"])
def test_one_batch_invariant_selection_serves_every_m_of_every_tuned_shape(dual: bool) -> None:
    for n, k, _ in c.table():
        chosen = [select(m, n, k, dual, batch_invariant=True) for m in range(1, 65)]
        assert [c.for_tokens(chosen[0], m) for m in range(1, 65)] == chosen
        assert len({(config.nw, config.s) for config in chosen}) == 1
        assert c.for_tokens(chosen[-1], 1).slices(k) == chosen[0].slices(k)


def test_a_selection_that_is_not_batch_invariant_uses_more_warps_for_few_tokens() -> None:
    assert select(1, 8, 4096).nw > select(1, 8, 4096, batch_invariant=True).nw


def test_the_tuned_entry_wins_and_is_cut_to_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {(48, 4096): (16, 8, 2), (48, 32): (1, 1, 1)}
    monkeypatch.setattr(c, "_table", lambda dual: {} if dual else tuned)
    assert select(1, 48, 4096) == Config(16, 8, 2)
    assert select(64, 48, 4096) == Config(4, 4, 2, nb=8)
    assert select(1, 48, 4096, dual=True).s == 1
    assert select(64, 48, 32) == Config(1, 1, nb=8)
    assert list(c.table()) == [(48, 4096, Config(16, 8, 2)), (48, 32, Config(1, 1))]


@pytest.mark.parametrize("dual", [False, True], ids=["single", "dual"])
def test_the_tuned_table_divides_evenly(dual: bool) -> None:
    for n, k, config in c.table(dual):
        assert select(1, n, k, dual) == config
        if k % 32 == 0:
            config.require_even(k)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 16, 32), "m=0 tokens: the kernel takes 1 to 64"),
        ((65, 16, 32), "m=65 tokens"),
        ((1, 0, 32), "n=0, k=32: both are at least 1"),
        ((1, 16, 0), "n=16, k=0: both are at least 1"),
    ],
)
def test_a_size_out_of_range_is_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(*sizes)


def test_for_tokens_changes_the_token_blocks_and_cuts_a_trip_that_is_too_long() -> None:
    assert c.for_tokens(Config(4, 2, 3), 13) == Config(4, 2, 3, nb=2)
    assert c.for_tokens(Config(4, 8, 3), 64) == Config(4, 4, 3, nb=8)
    assert c.for_tokens(Config(2, 4, dual=True), 64) == Config(2, 1, nb=8, dual=True)


@pytest.mark.parametrize("dual", [False, True], ids=["single", "dual"])
def test_for_tokens_refuses_warps_and_tokens_that_do_not_fit(dual: bool) -> None:
    with pytest.raises(ValueError, match=r"nw=16 is not in 1…"):
        c.for_tokens(Config(16, 1, dual=dual), 64)
    with pytest.raises(ValueError, match="nb is 1 to 8, not 9"):
        c.for_tokens(Config(1, 1, dual=dual), 65)
