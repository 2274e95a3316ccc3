"""The landmarks are where they are said to be: every tuned launch, and past each limit of an index."""

from __future__ import annotations

from collections import Counter

from packed_gemv import landmarks
from packed_gemv.config import MAX_TOKENS, table


def test_every_tuned_configuration_meets_every_m_alone_and_dual():
    tuned = {(config.nw, config.u, config.s) for _, _, config in table()}
    seen = {(each.m, each.config.dual) for each in landmarks.configurations()}
    assert seen == {(m, dual) for m in range(1, MAX_TOKENS + 1) for dual in (False, True)}
    assert len(list(landmarks.configurations())) == len(tuned) * 2 * MAX_TOKENS


def test_of_every_tuned_shape_a_thousand_outputs_are_seen():
    outputs: Counter[tuple[int, int]] = Counter()
    for each in landmarks.shapes():
        outputs[each.n, each.k] += each.m * each.n
    assert outputs.keys() == {(n, k) for n, k, _ in table()}
    assert min(outputs.values()) >= 1024


def test_matrices_hold_a_million_outputs_of_long_sums():
    launches = list(landmarks.matrices())
    assert min(each.k for each in launches) >= 4096
    assert sum(each.m * each.n for each in launches) >= 10**6


def test_strides_pass_31_bits_in_bytes_and_in_elements():
    launches = list(landmarks.strides())
    for pad, dtypes in (("xpad", {2}), ("ypad", {2, 4})):
        apart = [(getattr(each, pad) * (each.m - 1), each) for each in launches]
        assert any(elements > 2**31 for elements, _ in apart)
        assert any(2**29 < elements <= 2**31 for elements, _ in apart)
        sizes = {4 if each.out_fp32 else 2 for elements, each in apart if elements}
        assert dtypes <= sizes


def test_sizes_pass_2_to_the_31_weights_and_65535_row_blocks():
    launches = list(landmarks.sizes())
    assert max(each.n * each.k for each in launches) > 2**31
    assert max(-(-each.n // 16) for each in launches) > 65535
