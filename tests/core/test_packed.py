"""Packed documents match separate ones."""

from __future__ import annotations

import pytest
import torch

from glassformer import KVCache, Mask
from glassformer.core import spec
from glassformer.core.inputs import Masks, Memory, TextInputs
from glassformer.core.kernels import Kernel
from tests.core.models import INSIDE, POSITIONS, SHAPES, ids, inputs_of, model_of

KERNELS = [(position, "auto") for position in (*POSITIONS, "rounded")]
KERNELS += [("relative", "explicit"), ("relative", "flex")]


@pytest.mark.parametrize(("position", "kernel"), KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_documents_match_separate_documents(
    shape: str, position: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two documents in a row and then padding; of where each token stands nothing is said."""
    monkeypatch.setitem(INSIDE, "rounded", spec.AlibiSpec(rounding="bfloat16"))
    model = model_of(shape, position=position)
    alone = [[part[:1, :cut] for part in inputs_of(shape, seed=cut)] for cut in (3, 5)]
    packed, masks = [], []
    for one, two in zip(*alone, strict=True):
        first, second = one.shape[1], two.shape[1]
        packed.append(torch.cat((one, two, torch.zeros(1, 2).long()), 1))
        segments = torch.tensor([[4] * first + [9] * (second + 2)])
        masks.append(Mask(segments=segments, padding=packed[-1] != 0))
    with torch.no_grad():
        actual = model(*packed, Masks(*masks) if len(masks) > 1 else masks[0], kernel=kernel)
        start = 0
        for inputs in alone:
            expected = model(*inputs)
            torch.testing.assert_close(
                actual[:, start : start + expected.shape[1]], expected, atol=1e-5, rtol=0
            )
            start += expected.shape[1]


def test_packed_documents_continue_from_a_cache() -> None:
    model = model_of("encoder_decoder", position="learned")
    src, tgt = ids(1, 7, seed=1), ids(1, 6, seed=2)
    there, here = torch.tensor([[0] * 3 + [1] * 4]), torch.tensor([[0] * 2 + [1] * 4])
    with torch.no_grad():
        expected = model(src, tgt, Masks(Mask(segments=there), Mask(segments=here)))
        memory, cache = model.encode(src, Mask(segments=there)), KVCache.allocate(model.spec, 1, 6)
        for n in range(6):
            across = Mask(segments=there, query_segments=here[:, n : n + 1])
            own = Mask(segments=here[:, : n + 1])
            step = model.decode(TextInputs(tgt[:, n : n + 1], own), Memory(memory, across), cache=cache)
            torch.testing.assert_close(step[:, 0], expected[:, n], atol=1e-5, rtol=0)
