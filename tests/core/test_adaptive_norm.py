"""Adaptive layer norm (adaLN-Zero): a norm and a factor in a block that read the condition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core import spec
from glassformer.core.build import build_stack
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.masks import Mask
from glassformer.core.stack import Stack
from glassformer.inference.linear import PackedLinear
from glassformer.inference.prepare import packed_copy

D = 12
WIDTHS = {"layer": D, "shared": 7 * D}  # of the condition: shared vectors, and what they are computed from


def stack_of(modulation: Any, layers: int = 2) -> Stack:
    torch.manual_seed(0)
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=3),
        feed_forward=spec.FeedForwardSpec(d_ff=20, activation="gelu"),
        norm=spec.AdaptiveNormSpec(eps=1e-5, modulation=modulation),
        wiring="pre",
    )
    norm = spec.LayerNormSpec()
    stack = build_stack(spec.StackSpec(d_model=D, num_layers=layers, block=block, final_norm=norm)).eval()
    for name, value in stack.named_parameters():
        if "modulation" in name:
            value.data.normal_(std=0.5)
    return stack


def formula(stack: Any, x: Tensor, condition: Tensor, *, gated: bool = True) -> Tensor:
    """The block of DiT, written out: six vectors modulate each layer."""
    for block in stack.blocks:
        parts = (block.norm_self, block.scale_self_attn, block.norm_ffn, block.scale_ffn)
        if parts[0].modulation.shared:
            table = torch.cat([part.modulation.table for part in parts])
            vectors = (condition.unflatten(-1, (7, D))[:, :6] + table).unbind(1)
        else:
            projections = [part.modulation.project(F.silu(condition)) for part in parts]
            vectors = torch.cat(projections, -1).split(D, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = (vector[:, None] for vector in vectors)
        gate1, gate2 = (gate1, gate2) if gated else (1.0, 1.0)
        x = x + gate1 * block.self_attn(F.layer_norm(x, (D,)) * (1 + scale1) + shift1)
        x = x + gate2 * block.ffn(F.layer_norm(x, (D,)) * (1 + scale2) + shift2)
    return stack.final_norm(x)


@pytest.mark.parametrize("modulation", WIDTHS)
def test_adaptive_norms_and_gates_match_the_formula(modulation: str) -> None:
    stack = stack_of(modulation)
    x, condition = torch.randn(3, 5, D), torch.randn(3, WIDTHS[modulation])
    actual = stack(EmbeddingOutput(x, Mask(), condition=condition))
    expected = formula(stack, x, condition)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
    parameters = list(stack.parameters())
    grads, wanted = (torch.autograd.grad(y.square().sum(), parameters) for y in (actual, expected))
    for mine, theirs in zip(grads, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(actual, formula(stack, x, condition, gated=False), atol=1e-2)
    assert not torch.allclose(actual, formula(stack, x, condition.flip(0)), atol=1e-2)


@pytest.mark.parametrize("modulation", WIDTHS)
def test_adaptive_layers_prepare_for_inference(modulation: str) -> None:
    stack = stack_of(modulation)
    x, condition = torch.randn(3, 5, D), torch.randn(3, WIDTHS[modulation])
    source = EmbeddingOutput(x, Mask(), condition=condition)
    with torch.no_grad():
        packed = packed_copy(stack, PackedLinear)
        torch.testing.assert_close(packed.forward(source), stack(source), atol=1e-5, rtol=1e-5)


def test_a_fresh_block_is_the_identity() -> None:
    torch.manual_seed(0)
    block = stack_of("layer").blocks[0]
    for part in block.modules():
        if getattr(part, "initializes_itself", False):
            part.reset_parameters()
    x = torch.randn(2, 5, D)
    context = block.prepare(x)._replace(condition=torch.randn(2, D))
    assert torch.equal(block(x, context), x)
