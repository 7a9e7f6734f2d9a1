"""The paper's model matches torch's Transformer between a hand-written embedding and head."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.core.inputs import Memory
from tests.families.harness import BATCH, LENGTH, token_batch

V1, V2 = 41, 37
# norm, activation, sizes (odd on purpose), what is shared
CASES: list[dict[str, Any]] = [
    {"d_model": 24, "num_heads": 4, "d_ff": 37, "num_layers": 2},
    {"d_model": 35, "num_heads": 5, "d_ff": 50, "num_layers": 1, "norm": "pre"},
    {"d_model": 24, "num_heads": 3, "d_ff": 37, "num_layers": 3, "activation": "gelu", "pad_id": 7},
    {"d_model": 20, "num_heads": 2, "d_ff": 11, "num_layers": 2, "norm": "pre", "activation": "gelu"},
    {"d_model": 24, "num_heads": 6, "d_ff": 64, "num_layers": 2, "tied": ("head",), "norm_eps": 1e-3},
    {"d_model": 24, "num_heads": 1, "d_ff": 37, "num_layers": 2, "tied": ("source", "head"), "norm": "pre"},
]


def theirs_of(kwargs: dict[str, Any]) -> nn.Transformer:
    """torch's modules of the same sizes, every number drawn anew; the paper has no norm at a stack's end."""
    sizes = (kwargs["d_model"], kwargs["num_heads"], kwargs["d_ff"])
    options = {
        "activation": kwargs.get("activation", "relu"),
        "norm_first": kwargs.get("norm") == "pre",
        "batch_first": True,
        "layer_norm_eps": kwargs.get("norm_eps", 1e-5),
    }
    ends = [
        nn.LayerNorm(sizes[0], options["layer_norm_eps"]) if options["norm_first"] else None for _ in "ab"
    ]
    count, reads = kwargs["num_layers"], nn.TransformerEncoderLayer(*sizes, **options)
    encoder = nn.TransformerEncoder(reads, count, ends[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), count, ends[1])
    full = nn.Transformer(*sizes[:2], custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    with torch.no_grad():
        for value in full.parameters():
            value.copy_(torch.randn_like(value) * (0.8 / value.shape[-1] ** 0.5 if value.dim() > 1 else 0.1))
    return full.eval()


@pytest.fixture(params=range(len(CASES)))
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    torch.manual_seed(request.param)
    kwargs = CASES[request.param]
    target = V1 if "source" in kwargs.get("tied", ()) else V2
    ours = glassformer.build(
        "original", **kwargs, src_vocab_size=V1, tgt_vocab_size=target, max_len=20, dropout=0.1
    )
    theirs = theirs_of(kwargs)
    state = glassformer.from_torch(theirs).state_dict()
    left = ours.load_state_dict(state, strict=False)
    assert not left.unexpected_keys
    assert all(name.startswith(("src_embed", "tgt_embed", "head")) for name in left.missing_keys)
    return ours.eval(), theirs


def waves(places: Tensor, width: int) -> Tensor:
    """sin(t / 10000^(2i/D)) and cos in turn, (B, T) -> (B, T, D)."""
    table = torch.zeros(*places.shape, width)
    for i in range(width):
        angle = places.double() / 10000 ** (2 * (i // 2) / width)
        table[..., i] = angle.cos() if i % 2 else angle.sin()
    return table


def by_hand(ours: Any, theirs: nn.Transformer, src: Tensor, real: Tensor, tgt: Tensor) -> Tensor:
    """embed, times the root of D, plus waves; torch's Transformer; the output matrix."""
    width = ours.spec.encoder.d_model
    places = (real.long().cumsum(-1) - 1).clamp(min=0)
    memory = ours.src_embed.token.weight[src] * math.sqrt(width) + waves(places, width)
    written = ours.tgt_embed.token.weight[tgt] * math.sqrt(width)
    written = written + waves(torch.arange(tgt.shape[1])[None], width)
    causal = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
    x = theirs(
        memory,
        written,
        tgt_mask=causal,
        src_key_padding_mask=~real,
        memory_key_padding_mask=~real,
    )
    bias = getattr(ours.head, "bias", None)
    return x @ ours.head.weight.T + (0 if bias is None else bias)


def batches(ours: Any, side: str) -> tuple[Tensor, Tensor, Tensor]:
    pad = ours.src_embed.pad_id
    src, real = token_batch(V1, {pad}, side)
    tgt, _ = token_batch(ours.head.weight.shape[0], {pad}, "none", seed=2)
    return src.masked_fill(~real, pad), real, tgt


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_logits_gradients_and_cached_steps_match_the_reference(pair: Any, side: str) -> None:
    """Padding is read off the pad id; gradients are those of the token matrices."""
    ours, theirs = pair
    src, real, tgt = batches(ours, side)
    expected, actual = by_hand(ours, theirs, src, real, tgt), ours(src, tgt)
    assert actual.shape == (BATCH, LENGTH, ours.head.weight.shape[0])
    assert (actual - expected).abs().max() < 1e-5
    matrices = {ours.src_embed.token.weight, ours.tgt_embed.token.weight}
    for matrix in matrices:
        mine, other = (
            torch.autograd.grad((x**2).mean(), matrix, retain_graph=True)[0] for x in (actual, expected)
        )
        assert (mine - other).abs().max() < 1e-4
    with torch.no_grad():
        cache = glassformer.KVCache.allocate(ours.spec, BATCH, LENGTH)
        memory = Memory.of(ours.encode(src), real)
        steps = [ours.decode(tgt[:, [n]], memory, cache=cache) for n in range(LENGTH)]
    assert (torch.cat(steps, 1) - expected).abs().max() < 1e-5


def test_original_is_saved_in_our_layout(pair: Any, tmp_path: Path) -> None:
    ours, _ = pair
    folder = glassformer.save(ours, tmp_path)
    assert {p.name for p in folder.iterdir()} == {"spec.json", "model.safetensors", "checksums.json"}
    again = glassformer.load(folder)
    assert again.spec == ours.spec
    src, _, tgt = batches(ours, "right")
    with torch.no_grad():
        assert torch.equal(again.model(src, tgt), ours(src, tgt))
