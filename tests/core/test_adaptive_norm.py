"""Adaptive layer norm (adaLN-Zero) fits into a block as a norm and a factor that read the condition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.feedforward import FeedForward
from glassformer.core.masks import Mask
from glassformer.core.norms import Conditional, LayerNorm
from glassformer.core.stack import Stack
from glassformer.inference.linear import PackedLinear
from glassformer.inference.prepare import packed_copy

D, C = 12, 10


class Modulation(nn.Module):
    """Vectors (B, 1, D) from the condition: a projection of each block, or a table on a shared projection."""

    def __init__(self, shared: bool, first: int, number: int) -> None:
        super().__init__()
        self.first, self.number = first, number
        self.project = None if shared else nn.Linear(C, number * D)
        self.table = nn.Parameter(torch.randn(number, D)) if shared else None

    def forward(self, condition: Tensor) -> Iterator[Tensor]:
        if self.project is not None:
            vectors = self.project(F.silu(condition)).unflatten(-1, (self.number, D))
        else:
            vectors = condition.unflatten(-1, (6, D))[:, self.first : self.first + self.number] + self.table
        return iter(vectors[:, :, None].unbind(1))


class AdaptiveNorm(Conditional):
    def __init__(self, shared: bool, first: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D, elementwise_affine=False)
        self.modulation = Modulation(shared, first, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.modulation(condition)
        return self.norm(x) * (1 + scale) + shift


class Gate(Conditional):
    def __init__(self, shared: bool, first: int) -> None:
        super().__init__()
        self.modulation = Modulation(shared, first, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return x * next(self.modulation(condition))


def stack_of(shared: bool, layers: int = 2) -> Stack:
    torch.manual_seed(0)

    def block() -> Block:
        norms, gates = count(0, 3), count(2, 3)  # shift, scale and gate of attention, then of feed-forward
        return Block(
            self_attn=MultiHeadAttention(D, 3),
            ffn=FeedForward(D, 20, activation="gelu"),
            norm=lambda: AdaptiveNorm(shared, next(norms)),
            layer_scale=lambda: Gate(shared, next(gates)),
            wiring="pre",
        )

    return Stack([block() for _ in range(layers)], final_norm=LayerNorm(D)).eval()


def formula(stack: Stack, x: Tensor, condition: Tensor, shared: bool, *, gated: bool = True) -> Tensor:
    """The block of DiT, written out: six vectors modulate each layer."""
    for block in stack.blocks:
        parts = (block.norm_self, block.scale_self_attn, block.norm_ffn, block.scale_ffn)
        if shared:
            table = torch.cat([part.modulation.table for part in parts])
            vectors = (condition.unflatten(-1, (6, D)) + table).unbind(1)
        else:
            projections = [part.modulation.project(F.silu(condition)) for part in parts]
            vectors = torch.cat(projections, -1).split(D, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = (vector[:, None] for vector in vectors)
        gate1, gate2 = (gate1, gate2) if gated else (1.0, 1.0)
        x = x + gate1 * block.self_attn(F.layer_norm(x, (D,)) * (1 + scale1) + shift1)
        x = x + gate2 * block.ffn(F.layer_norm(x, (D,)) * (1 + scale2) + shift2)
    return stack.final_norm(x)


@pytest.mark.parametrize("shared", [False, True])
def test_adaptive_norms_and_gates_match_the_formula(shared: bool) -> None:
    stack = stack_of(shared)
    x, condition = torch.randn(3, 5, D), torch.randn(3, 6 * D if shared else C)
    actual = stack(EmbeddingOutput(x, Mask(), condition=condition))
    expected = formula(stack, x, condition, shared)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)
    parameters = list(stack.parameters())
    grads, wanted = (torch.autograd.grad(y.square().sum(), parameters) for y in (actual, expected))
    for mine, theirs in zip(grads, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(actual, formula(stack, x, condition, shared, gated=False), atol=1e-2)
    assert not torch.allclose(actual, formula(stack, x, condition.flip(0), shared), atol=1e-2)


@pytest.mark.parametrize("shared", [False, True])
def test_adaptive_layers_prepare_for_inference(shared: bool) -> None:
    stack = stack_of(shared)
    x, condition = torch.randn(3, 5, D), torch.randn(3, 6 * D if shared else C)
    source = EmbeddingOutput(x, Mask(), condition=condition)
    with torch.no_grad():
        packed = packed_copy(stack, PackedLinear)
        torch.testing.assert_close(packed.forward(source), stack(source), atol=1e-5, rtol=1e-5)


def test_zero_gates_make_a_block_the_identity() -> None:
    stack = stack_of(shared=False, layers=1)
    for gate in (stack.blocks[0].scale_self_attn, stack.blocks[0].scale_ffn):
        nn.init.zeros_(gate.modulation.project.weight)
        nn.init.zeros_(gate.modulation.project.bias)
    x, condition = torch.randn(2, 5, D), torch.randn(2, C)
    stack.final_norm = None
    assert torch.equal(stack(EmbeddingOutput(x, Mask(), condition=condition)), x)
