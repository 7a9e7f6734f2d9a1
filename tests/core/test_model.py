"""The encoder-decoder model: shapes, masks, defaults, and errors for bad inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import glassformer
from glassformer import GlassformerError, Mask
from glassformer.core.inputs import Masks, TextInputs
from glassformer.errors import InputTooLongError, InvalidValueError, ShapeError, UnknownNameError
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


def test_presets_have_the_sizes_of_the_paper() -> None:
    with torch.device("meta"):
        model = glassformer.build("original", src_vocab_size=37000, tied=("source", "head"))
    block = model.decoder.blocks[5]
    assert len(model.encoder.blocks) == len(model.decoder.blocks) == 6
    assert (block.self_attn.num_heads, block.self_attn.head_dim) == (8, 64)
    assert block.ffn.up.weight.shape == (2048, 512)
    # 37000 x 512 shared three ways, 6 x (4 + 8) d^2 + 6 x (8 + 8) d^2, biases and norms
    encoder = 12 * 512**2 + (4 + 1) * 512 + 2048 + 4 * 512
    decoder = 16 * 512**2 + (8 + 1) * 512 + 2048 + 6 * 512
    assert sum(p.numel() for p in model.parameters()) == 37000 * 512 + 6 * (encoder + decoder)


def test_error_about_tied_modules_names_the_choices() -> None:
    with pytest.raises(InvalidValueError) as error:
        glassformer.build("original", src_vocab_size=31, tied=("target", "head"))
    assert error.value.name.endswith("tied") and all(x in error.value.expected for x in ("source", "head"))


def test_logits_have_the_documented_shape_and_target_is_causal() -> None:
    model = original()
    src, tgt = batch()
    logits = model(src, tgt)
    assert logits.shape == (B, T, V)
    later = tgt.clone()
    later[:, 3:] = later[:, 3:] % (V - 1) + 1
    assert torch.equal(later[:, :3], tgt[:, :3]) and (later[:, 3:] != tgt[:, 3:]).any()
    torch.testing.assert_close(model(src, later)[:, :3], logits[:, :3])
    assert not torch.allclose(model(src, later)[:, 3:], logits[:, 3:])


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


WRONG: list[tuple[dict[str, Any], type[GlassformerError], dict[str, Any]]] = [
    ({"masks": ones(B, S + 1)}, ShapeError, {"what": "src_mask", "shape": [B, S + 1]}),
    ({"masks": Masks(tgt=ones(B, T))}, ShapeError, {"what": "tgt_mask", "shape": [B, T]}),
    ({"masks": Masks(memory=ones(B, S, T))}, ShapeError, {"what": "memory_mask", "shape": [B, S, T]}),
    ({"masks": torch.full((B, S), 2)}, InvalidValueError, {"name": "src_mask"}),
    ({"src": torch.full((B, S), 31)}, InvalidValueError, {"name": "token id", "value": 31}),
    ({"src": torch.ones(B, S)}, InvalidValueError, {"name": "ids.dtype", "value": "torch.float32"}),
    ({"src": torch.ones(S).long()}, ShapeError, {"what": "ids", "shape": [S]}),
    ({"tgt": ids(B, 21)}, InputTooLongError, {"length": 21, "limit": 20}),
    ({"tgt": ids(B + 1, T)}, ShapeError, {"what": "the target"}),
    ({"kernel": "fast"}, UnknownNameError, {"kind": "kernel", "name": "fast"}),
]


@pytest.mark.parametrize(("args", "kind", "fields"), WRONG)
def test_mismatched_inputs_are_rejected(
    args: dict[str, Any], kind: type[GlassformerError], fields: dict[str, Any]
) -> None:
    src, tgt = batch()
    with pytest.raises(kind) as caught:
        inputs = {"src": src, "tgt": tgt, **args}
        given = (inputs.pop("src"), inputs.pop("tgt"), inputs.pop("masks", None))
        original()(*given, **inputs)
    assert caught.value.fields.items() >= fields.items()


@pytest.mark.parametrize(
    "options",
    [
        {"num_head": 4},
        {"d_model": 66},
        {"norm": "both"},
        {"position": "polar"},
        {"tied": ("head", "source")},
    ],
    ids=str,
)
def test_invalid_specs_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(GlassformerError):
        original(**options)


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        glassformer.build("orignal")
    assert caught.value.name == "orignal" and "'original'" in str(caught.value)


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
