"""Blocks, feed-forward layers, norms and stacks match their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import build, spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward
from glassformer.core.inputs import Memory
from glassformer.core.masks import Mask
from glassformer.core.norms import make_norm
from glassformer.errors import InvalidValueError, UnsupportedError

D = 16


def block_of(wiring: spec.Wiring, cross: bool = False, norm: spec.NormSpec | None = None) -> Block:
    torch.manual_seed(1)
    attention = spec.AttentionSpec(num_heads=4)
    what = spec.BlockSpec(
        attention=attention,
        cross_attention=attention if cross else None,
        feed_forward=spec.GatedFeedForwardSpec(d_ff=20),
        norm=norm or spec.LayerNormSpec(),
        wiring=wiring,
        dropout=0.3,
    )
    model = build.build_block(what, D).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("wiring", ["pre", "post", "parallel", "parallel_split"])
def test_block_matches_the_formula_of_its_wiring(wiring: spec.Wiring, cross: bool) -> None:
    if cross and wiring.startswith("parallel"):
        with pytest.raises(UnsupportedError):
            block_of(wiring, cross)
        return
    b = block_of(wiring, cross)
    x, memory, mask = torch.randn(2, 5, D), torch.randn(2, 7, D), Mask(causal=True)

    def attend(y: Tensor) -> Tensor:
        return b.self_attn(y, mask)

    match wiring:
        case "pre":
            y = x + attend(b.norm_self(x))
            y = y + b.cross_attn(b.norm_cross(y), k_v=memory) if cross else y
            expected = y + b.ffn(b.norm_ffn(y))
        case "post":
            y = b.norm_self(x + attend(x))
            y = b.norm_cross(y + b.cross_attn(y, k_v=memory)) if cross else y
            expected = b.norm_ffn(y + b.ffn(y))
        case "parallel":
            n = b.norm_self(x)
            assert b.norm_ffn is None
            expected = x + attend(n) + b.ffn(n)
        case _:
            expected = x + attend(b.norm_self(x)) + b.ffn(b.norm_ffn(x))
    torch.testing.assert_close(b(x, b.prepare(x, mask, memory if cross else None)), expected)


def test_norm_that_is_a_module_instead_of_a_function_is_an_error() -> None:
    with pytest.raises(InvalidValueError) as error:
        Block(self_attn=MultiHeadAttention(8, 2), ffn=FeedForward(8, 16), norm=nn.LayerNorm(8))
    assert (error.value.name, error.value.value) == ("norm", "LayerNorm")


def test_feed_forward_matches_its_formula() -> None:
    x = torch.randn(2, 5, D)
    gated = block_of("pre").ffn
    torch.testing.assert_close(gated(x), gated.down(F.silu(gated.gate(x)) * gated.up(x)))
    inside = {
        "relu": lambda y: y.clamp(min=0),
        "gelu": lambda y: y * (1 + torch.erf(y / 2**0.5)) / 2,
        "gelu_tanh": lambda y: y / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3))),
        "silu": lambda y: y / (1 + torch.exp(-y)),
        "quick_gelu": lambda y: y / (1 + torch.exp(-1.702 * y)),
        "tanh": lambda y: (torch.exp(2 * y) - 1) / (torch.exp(2 * y) + 1),
    }
    for name, formula in inside.items():
        what = spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=4),
            feed_forward=spec.FeedForwardSpec(d_ff=8, activation=name),
        )
        plain = build.build_block(what, D).ffn
        torch.testing.assert_close(plain(x), plain.down(formula(plain.up(x))))


def test_norms_match_their_formulas() -> None:
    x = torch.randn(3, 5, D) * 2 + 1
    layer = make_norm(spec.LayerNormSpec(eps=0.1), D)
    spread = (x.var(-1, keepdim=True, unbiased=False) + 0.1).sqrt()
    torch.testing.assert_close(layer(x), (x - x.mean(-1, keepdim=True)) / spread)
    rms = make_norm(spec.RMSNormSpec(eps=0.1), D)
    torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt())
    batch = make_norm(spec.BatchNormSpec(eps=0.1), D)
    flat = x.flatten(0, 1)
    expected = (x - flat.mean(0)) / (flat.var(0, unbiased=False) + 0.1).sqrt()
    torch.testing.assert_close(batch(x), expected)
    assert not torch.allclose(batch.eval()(x), expected)


@pytest.mark.parametrize("final", [None, spec.LayerNormSpec(), spec.RMSNormSpec()])
def test_stack_applies_its_blocks_and_final_norm(final: spec.NormSpec | None) -> None:
    torch.manual_seed(0)
    what = spec.StackSpec(
        d_model=D,
        num_layers=3,
        causal=True,
        final_norm=final,
        block=spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=4, window=2),
            feed_forward=spec.FeedForwardSpec(d_ff=20),
            wiring="pre",
        ),
    )
    model = build.build_stack(what)
    x = expected = torch.randn(2, 6, D)
    for one in model.blocks:
        expected = one(expected, one.prepare(expected, Mask(causal=True, window=2)))
    if final is not None:
        expected = model.final_norm(expected)
    torch.testing.assert_close(model(x), expected)
    shorter = model(x[:, :4])  # causal: what comes later changes nothing
    torch.testing.assert_close(shorter, expected[:, :4])


def test_cross_attention_has_its_own_heads_and_window() -> None:
    torch.manual_seed(0)
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=4),
        cross_attention=spec.AttentionSpec(num_heads=2, window=2),
        feed_forward=spec.FeedForwardSpec(d_ff=20),
    )
    model = build.build_stack(spec.StackSpec(d_model=D, num_layers=1, block=block)).eval()
    x, memory, mask = torch.randn(3, 6, D), torch.randn(3, 7, D), torch.rand(3, 2, 6, 7) < 0.8
    seen, (block,) = Memory.of(memory, mask), model.blocks
    together = model(x, seen)
    torch.testing.assert_close(together, block(x, block.prepare(x, memory=seen)))
    model.blocks[0].cross_attn.window = None
    assert not torch.allclose(together, model(x, seen))
