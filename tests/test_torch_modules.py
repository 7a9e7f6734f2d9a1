"""`from_torch` matches the torch module under any mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer import Mask, from_torch
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.inputs import Masks, Memory
from glassformer.core.stack import Stack
from glassformer.errors import InvalidValueError, UnsupportedError

D, H, B, T, S = 12, 3, 2, 5, 7
CLOSE = {"atol": 1e-6, "rtol": 1e-6}

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

# what torch's layers are made with
LAYERS: dict[str, dict[str, Any]] = {
    "default": {},
    "pre-norm gelu": {"norm_first": True, "activation": "gelu"},
    "no bias": {"bias": False, "activation": F.gelu},
    "pre-norm no bias": {"bias": False, "norm_first": True, "activation": nn.ReLU()},
    "tanh gelu, large eps": {"activation": nn.GELU(approximate="tanh"), "layer_norm_eps": 1e-2},
    "gelu module, batch first": {"activation": nn.GELU(), "batch_first": True},
    "silu, pre-norm": {"activation": F.silu, "norm_first": True, "layer_norm_eps": 1e-3},
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def randomize_parameters(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in evaluation with no number left at 0 or 1, so that a mistaken bias shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=generator) * 0.1)
    return module.eval()


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def swapped(x: Tensor, module: nn.Module) -> Tensor:
    """(B, T, D) as the module wants it, or what it gives back as (B, T, D)."""
    first = module.batch_first if hasattr(module, "batch_first") else _layer_of(module).batch_first
    return x if first else x.transpose(0, 1)


def _layer_of(module: nn.Module) -> Any:
    layer = module.layers[0] if hasattr(module, "layers") else module
    return layer.self_attn


def padding(length: int) -> Tensor:
    """torch's: True where padded; the first row whole, the second short."""
    return torch.arange(length)[None] >= torch.tensor([[length], [length - 2]])


def banned(queries: int, keys: int, *lead: int) -> Tensor:
    """torch's mask: True where a key is masked out, never a whole row."""
    mask = data(*lead, queries, keys) > 0.3
    mask[..., 0] = False
    return mask


def causal(length: int) -> Tensor:
    return torch.ones(length, length).triu(1).bool()


def assert_same(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> None:
    assert ours.shape == theirs.shape
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    torch.testing.assert_close(ours, theirs, **CLOSE)


def run(module: Any, x: Tensor, mask: Any = None, memory: Memory | None = None) -> Tensor:
    """The output of a converted layer or stack."""
    if isinstance(module, Stack):
        return module(EmbeddingOutput(x, Mask.of(mask)), memory)
    return module(x, module.prepare(x, mask, memory))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kdim", [None, 9])
@pytest.mark.parametrize("batch_first", [True, False])
def test_converted_attention_matches_torch(bias: bool, kdim: int | None, batch_first: bool) -> None:
    options = {"bias": bias, "kdim": kdim, "vdim": kdim, "batch_first": batch_first}
    theirs = randomize_parameters(nn.MultiheadAttention(D, H, **options))
    ours = from_torch(theirs)
    x, memory = data(B, T, D), data(B, S, kdim or D)
    three = banned(T, S, B * H)
    for mine, masks in {
        None: {},
        ~padding(S)[:, None]: {"key_padding_mask": padding(S)},
        ~banned(T, S): {"attn_mask": banned(T, S)},
        data(T, S): {"attn_mask": data(T, S)},  # added to the scores
        ~three.view(B, H, T, S): {"attn_mask": three},
    }.items():
        args = [swapped(t, theirs) for t in (x, memory, memory)]
        reference = swapped(theirs(*args, **masks, need_weights=False)[0], theirs)
        assert_same(ours(x, mine, memory), reference)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_converted_encoder_matches_torch(options: dict[str, Any]) -> None:
    layer = randomize_parameters(nn.TransformerEncoderLayer(D, H, 20, **options))
    final = nn.LayerNorm(D, bias=False) if options.get("norm_first") else None
    stack = randomize_parameters(
        nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False), seed=1
    )
    x, pads = data(B, S, D), padding(S)
    three = banned(S, S, B * H)
    mixed = ~(three.view(B, H, S, S) | pads[:, None, None])
    for theirs in (layer, stack):
        ours = from_torch(theirs)
        word = "mask" if theirs is stack else "src_mask"
        for mine, masks in (
            (None, {}),
            (~pads[:, None], {"src_key_padding_mask": pads}),
            (~causal(S), {word: causal(S)}),
            (Mask(causal=True), {word: causal(S)}),
            (mixed, {word: three, "src_key_padding_mask": pads}),
        ):
            reference = swapped(theirs(swapped(x, theirs), **masks), theirs)
            assert_same(run(ours, x, mine), reference, real=~pads)
        with torch.no_grad():  # torch's own fast path
            assert_same(
                run(ours, x, ~pads[:, None]),
                swapped(theirs(swapped(x, theirs), src_key_padding_mask=pads), theirs),
                ~pads,
            )


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_converted_decoder_matches_torch(options: dict[str, Any]) -> None:
    layer = randomize_parameters(nn.TransformerDecoderLayer(D, H, 20, **options))
    stack = randomize_parameters(nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(D, eps=1e-3)), seed=1)
    x, memory, pads, far = data(B, T, D), data(B, S, D), padding(T), padding(S)
    three = banned(T, S, B * H)
    for theirs in (layer, stack):
        ours = from_torch(theirs)
        for own, across, masks in (
            (None, None, {}),
            (Mask(causal=True), ~far, {"tgt_mask": causal(T), "memory_key_padding_mask": far}),
            (~pads[:, None], None, {"tgt_key_padding_mask": pads}),
            (Mask(causal=True), ~three.view(B, H, T, S), {"tgt_mask": causal(T), "memory_mask": three}),
        ):
            reference = swapped(theirs(swapped(x, theirs), swapped(memory, theirs), **masks), theirs)
            assert_same(run(ours, x, own, Memory.of(memory, across)), reference)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_converted_transformer_matches_torch(options: dict[str, Any]) -> None:
    theirs = randomize_parameters(nn.Transformer(D, H, 2, 3, 20, **options))
    ours = from_torch(theirs)
    src, tgt, pads = data(B, S, D), data(B, T, D), padding(S)
    for masks, mine in (
        ({}, Masks()),
        ({"tgt_mask": causal(T)}, Masks(tgt=Mask(causal=True))),
        (
            {"src_key_padding_mask": pads, "tgt_mask": causal(T), "memory_key_padding_mask": pads},
            Masks(~pads, ~causal(T)),
        ),
        ({"src_key_padding_mask": pads}, Masks(~pads, memory=Mask())),
    ):
        reference = swapped(theirs(swapped(src, theirs), swapped(tgt, theirs), **masks), theirs)
        assert_same(ours(src, tgt, mine), reference)
    theirs, src, tgt = theirs.double(), src.double(), tgt.double()  # no rounding to hide behind
    exact = swapped(theirs(swapped(src, theirs), swapped(tgt, theirs), **masks), theirs)
    torch.testing.assert_close(from_torch(theirs)(src, tgt, mine), exact, atol=1e-12, rtol=0)


def test_dropout_mode_dtype_and_weights_are_copied() -> None:
    theirs = nn.TransformerDecoderLayer(D, H, 20, dropout=0.25).double()
    theirs.self_attn.dropout, theirs.dropout.p = 0.5, 0.125
    ours = from_torch(theirs)
    assert ours.training and not from_torch(theirs.eval()).training
    assert (ours.dropout.p, ours.ffn.dropout.p) == (0.25, 0.125)
    assert (ours.self_attn.dropout, ours.cross_attn.dropout) == (0.5, 0.25)
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    before = ours.self_attn.q_proj.weight.clone()
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.zero_()
    assert torch.equal(ours.self_attn.q_proj.weight, before)
    assert all(p.requires_grad for p in ours.parameters())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nn.MultiheadAttention(D, H, add_bias_kv=True), UnsupportedError),
        (lambda: nn.MultiheadAttention(D, H, add_zero_attn=True), UnsupportedError),
        (lambda: nn.MultiheadAttention(D, H, kdim=8, vdim=6), UnsupportedError),
        (lambda: nn.TransformerEncoderLayer(D, H, 20, activation=torch.sin), InvalidValueError),
        (lambda: nn.Transformer(D, H, custom_encoder=nn.Identity()), InvalidValueError),
        (lambda: nn.Linear(3, 3), InvalidValueError),
    ],
)
def test_modules_that_cannot_be_converted_are_rejected(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        from_torch(make())
