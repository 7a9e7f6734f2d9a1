"""The call of the paper's model: its masks, its defaults, its words, and what it says to bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import glassformer
from glassformer import GlassformerError, Mask
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


def original(**words: Any) -> Any:
    torch.manual_seed(0)
    return glassformer.build("original", **{**WORDS, **words}).eval()


def batch() -> tuple[Tensor, Tensor]:
    src, tgt = ids(B, S, seed=1), ids(B, T, seed=2)
    src[1, 5:] = 0
    src[2, 3:] = 0
    tgt[2, 4:] = 0
    return src, tgt


def test_the_paper_sizes() -> None:
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


def test_logits_come_in_the_promised_shape_and_the_target_is_causal() -> None:
    model = original()
    src, tgt = batch()
    logits = model(src, tgt)
    assert logits.shape == (B, T, V)
    later = tgt.clone()
    later[:, 3:] = later[:, 3:] % (V - 1) + 1
    assert torch.equal(later[:, :3], tgt[:, :3]) and (later[:, 3:] != tgt[:, 3:]).any()
    torch.testing.assert_close(model(src, later)[:, :3], logits[:, :3])
    assert not torch.allclose(model(src, later)[:, 3:], logits[:, 3:])


def test_padding_read_off_the_pad_id_is_the_mask_given_and_the_row_alone() -> None:
    model = original()
    src, tgt = batch()
    logits = model(src, tgt)
    real, written = src != 0, tgt != 0
    torch.testing.assert_close(model(src, tgt, real, written, real), logits)
    torch.testing.assert_close(model(src, tgt, Mask(padding=real), Mask(padding=written)), logits)
    for row in range(B):
        alone = model(src[row : row + 1][:, real[row]], tgt[row : row + 1][:, written[row]])
        torch.testing.assert_close(alone[0], logits[row, written[row]], atol=1e-5, rtol=0)


def test_a_target_that_starts_with_the_pad_token_starts_there() -> None:
    model = original(start_id=0)
    src, tgt = batch()
    tgt[:, 0] = 0
    written = tgt != 0
    written[:, 0] = True
    logits = model(src, tgt)
    torch.testing.assert_close(logits, model(src, tgt, tgt_mask=written))
    assert not torch.allclose(logits, model(src, tgt, tgt_mask=tgt != 0))


@pytest.mark.parametrize("position", POSITIONS)
def test_every_form_of_a_mask_is_the_same_mask(position: str) -> None:
    model = original(position=position)
    src, tgt = ids(B, S, seed=1), ids(B, T, seed=2)
    positions = {"src_positions": torch.arange(S)[None], "tgt_positions": torch.arange(T)[None]}
    real = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1, 0, 1, 1, 0, 1, 1]]).bool()
    written = torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1, 1, 0, 1, 1]]).bool()
    wanted = model(src, tgt, real, written, real, **positions)

    def forms(mask: Tensor, queries: int) -> list[Tensor]:
        wide = mask[:, None, :].expand(-1, queries, -1)
        return [wide, wide[:, None], wide[:, None].expand(-1, H, -1, -1)]

    every = zip(forms(real, S), forms(written, T), forms(real, T), strict=True)
    for masks in every:
        torch.testing.assert_close(model(src, tgt, *masks, **positions), wanted, atol=1e-5, rtol=0)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


WRONG: list[tuple[dict[str, Any], type[GlassformerError], dict[str, Any]]] = [
    ({"src_mask": ones(B, S + 1)}, ShapeError, {"what": "src_mask", "shape": [B, S + 1]}),
    ({"tgt_mask": ones(1, T)}, ShapeError, {"what": "tgt_mask", "shape": [1, T]}),
    ({"memory_mask": ones(B, S, T)}, ShapeError, {"what": "memory_mask", "shape": [B, 1, S, T]}),
    ({"src_mask": torch.ones(B, S)}, InvalidValueError, {"name": "src_mask.dtype"}),
    ({"src": torch.full((B, S), 31)}, InvalidValueError, {"name": "token id", "value": 31}),
    ({"src": torch.ones(B, S)}, ShapeError, {"shape": [B, S]}),
    ({"tgt": ids(B, 21)}, InputTooLongError, {"length": 21, "limit": 20}),
    ({"tgt": ids(B + 1, T)}, ShapeError, {"what": "the target"}),
    ({"kernel": "fast"}, UnknownNameError, {"kind": "kernel", "name": "fast"}),
]


@pytest.mark.parametrize(("given", "kind", "fields"), WRONG)
def test_inputs_that_do_not_fit_are_refused(
    given: dict[str, Any], kind: type[GlassformerError], fields: dict[str, Any]
) -> None:
    src, tgt = batch()
    with pytest.raises(kind) as caught:
        original()(**{"src": src, "tgt": tgt, **given})
    assert caught.value.fields.items() >= fields.items()


@pytest.mark.parametrize(
    "words",
    [
        {"num_head": 4},
        {"d_model": 66},
        {"norm": "both"},
        {"position": "polar"},
        {"tied": ("head", "source")},
    ],
    ids=str,
)
def test_models_that_cannot_be_built_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(GlassformerError):
        original(**words)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        glassformer.build("orignal")
    assert caught.value.name == "orignal" and "'original'" in str(caught.value)


CHOICES = [{"norm": norm} for norm in ("pre", "post")]
CHOICES += [{"position": position} for position in POSITIONS]
CHOICES += [{"activation": a} for a in ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh")]
CHOICES += [{"tied": tied, "tgt_vocab_size": 31} for tied in (("head",), ("source",), ("source", "head"))]


@pytest.mark.parametrize("words", CHOICES, ids=str)
def test_every_choice_trains_a_step(words: dict[str, Any]) -> None:
    model = original(**words, dropout=0.0).train()
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


def test_kernels_agree_on_whole_models() -> None:
    for shape in ("encoder_decoder", "decoder_only", "encoder_only"):
        model, inputs = model_of(shape, num_kv_heads=2, window=3), inputs_of(shape)
        wanted = model(*inputs, kernel="explicit")
        torch.testing.assert_close(model(*inputs, kernel="sdpa"), wanted, atol=1e-5, rtol=0)
        with torch.no_grad():
            torch.testing.assert_close(model(*inputs, kernel="flex"), wanted, atol=1e-5, rtol=0)
