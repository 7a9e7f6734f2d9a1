"""The encoder-decoder model: shapes, masks, defaults, and errors for bad inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import glassformer
from glassformer import Mask
from glassformer.core.inputs import Masks, TextInputs
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.families.original import POSITIONS
from tests.core.models import ids, inputs_of, model_of

B, S, T, H, V = 3, 7, 5, 4, 29
WORDS: dict[str, Any] = {
    "d_model": 64,
    "num_heads": H,
    "d_ff": 96,
    "num_layers": 2,
    "src_vocab_size": 31,
    "tgt_vocab_size": V,
    "max_len": 20,
    "dropout": 0.1,
}


def original(**options: Any) -> Any:
    torch.manual_seed(0)
    return glassformer.build("original", **{**WORDS, **options}).eval()


def batch() -> tuple[Tensor, Tensor]:
    src, tgt = ids(B, S, seed=1), ids(B, T, seed=2)
    src[1, 5:] = 0
    src[2, 3:] = 0
    tgt[2, 4:] = 0
    return src, tgt


def test_inferred_padding_matches_explicit_mask_and_unpadded_row() -> None:
    model = original()
    src, tgt = batch()
    logits = model(src, tgt)
    real, written = src != 0, tgt != 0
    torch.testing.assert_close(model(src, tgt, Masks(real, Mask(padding=written), real)), logits)
    torch.testing.assert_close(model(src, tgt, Masks(Mask(padding=real), Mask(padding=written))), logits)
    for row in range(B):
        alone = model(src[row : row + 1][:, real[row]], tgt[row : row + 1][:, written[row]])
        torch.testing.assert_close(alone[0], logits[row, written[row]], atol=1e-5, rtol=0)


def test_target_may_start_with_the_pad_token() -> None:
    model = original(start_id=0)
    src, tgt = batch()
    tgt[:, 0] = 0
    written = tgt != 0
    written[:, 0] = True
    logits = model(src, tgt)
    torch.testing.assert_close(logits, model(src, tgt, Masks(tgt=Mask(padding=written))))
    assert not torch.allclose(logits, model(src, tgt, Masks(tgt=Mask(padding=tgt != 0))))


@pytest.mark.parametrize("position", POSITIONS)
def test_scores_of_a_mask_are_added_to_those_of_the_positions(position: str) -> None:
    model = original(position=position)
    src, tgt = ids(B, S, seed=1), ids(B, T, seed=2)
    expected = model(src, tgt)
    same = [torch.randn(1, 1, n, 1).expand(-1, -1, -1, keys) for n, keys in ((S, S), (T, T), (T, S))]
    # the softmax ignores what all keys share
    given = model(src, tgt, Masks(*(Mask(bias=scores) for scores in same)))
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)
    other = model(src, tgt, Masks(*(Mask(bias=torch.randn_like(scores)) for scores in same)))
    assert (other - expected).abs().max() > 1e-3


@pytest.mark.parametrize("position", POSITIONS)
def test_mask_shapes_are_equivalent(position: str) -> None:
    model = original(position=position)
    src, tgt = ids(B, S, seed=1), ids(B, T, seed=2)
    inputs = (
        TextInputs(src, positions=torch.arange(S)[None]),
        TextInputs(tgt, positions=torch.arange(T)[None]),
    )
    real = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1, 0, 1, 1, 0, 1, 1]]).bool()
    written = torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1, 1, 0, 1, 1]]).bool()
    expected = model(*inputs, Masks(real, Mask(padding=written), real))
    causal = ones(T, T).tril()

    def forms(mask: Tensor, queries: int, also: Tensor | bool = True) -> list[Tensor]:
        wide = mask[:, None, :].expand(-1, queries, -1) & also
        every = [wide, wide[:, None], wide[:, None].expand(-1, H, -1, -1)]
        scores = torch.zeros(wide.shape).masked_fill(~wide, -torch.inf)
        return [mask[:, None], mask[:, None, None], *every, wide.int(), wide.float(), scores]

    everything = (ones(B, S), ones(B, 1, T), ones(B, S))
    for n, open_mask in enumerate(everything):  # each of the masks has an effect
        others = [open_mask if n == m else mask for m, mask in enumerate((real, Mask(padding=written), real))]
        assert (model(*inputs, Masks(*others)) - expected).abs().max() > 1e-3
    every = zip(forms(real, S), forms(written, T, causal), forms(real, T), strict=True)
    for masks in every:
        torch.testing.assert_close(model(*inputs, Masks(*masks)), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", Masks._fields)
def test_masks_of_an_encoder_decoder_by_keyword_are_explained(name: str) -> None:
    model, src = glassformer.tiny("t5"), torch.ones(2, 3).long()
    with pytest.raises(UnknownNameError) as caught:
        model(src, src, **{f"{name}_mask": src > 0})
    assert "Masks(" in caught.value.hint
    with pytest.raises(InvalidValueError) as many:
        model(src, src, None, None, None, None)
    assert many.value.value == 4


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


CHOICES = [{"norm": norm} for norm in ("pre", "post")]
CHOICES += [{"position": position} for position in POSITIONS]
CHOICES += [{"activation": a} for a in ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh")]
CHOICES += [{"tied": tied, "tgt_vocab_size": 31} for tied in (("head",), ("source",), ("source", "head"))]


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_every_position_norm_and_wiring_trains(options: dict[str, Any]) -> None:
    model = original(**options, dropout=0.0).train()
    src, tgt = batch()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss() -> Tensor:
        logits = model(src, tgt[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)

    before = loss()
    before.backward()
    for name, value in model.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all(), name
    optimiser.step()
    assert loss() < before


def test_kernels_agree_on_models() -> None:
    for shape in ("encoder_decoder", "decoder_only", "encoder_only"):
        model, inputs = model_of(shape, num_kv_heads=2, window=3), inputs_of(shape)
        expected = model(*inputs, kernel="explicit")
        torch.testing.assert_close(model(*inputs, kernel="sdpa"), expected, atol=1e-5, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(model(*inputs, kernel="flex"), expected, atol=1e-5, rtol=0)
