"""A whole step of a pre-norm decoder with rotary positions, made of the kernels and replayed as one graph.

    token -> vector -> [norm, q k v | look, keep k v | out, add | norm, gate, up | down, add] x layers
          -> norm, logits -> the best -> token

B texts, D d_model, H query heads, G key/value heads, K head width, V vocabulary, R turned features.
Five kernels a layer, each of which reads its matrix once. The token goes back in on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.block import Block
from glassformer.core.cache import Cache
from glassformer.core.embeddings import TokenInput
from glassformer.core.errors import GlassformerError
from glassformer.core.feedforward import GatedFeedForward
from glassformer.core.heads import LanguageModelHead
from glassformer.core.model import DecoderOnly
from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.core.positions import RotaryPositions
from glassformer.quick.gpu.best import best
from glassformer.quick.gpu.graph import Captured
from glassformer.quick.gpu.look import look
from glassformer.quick.gpu.norms import Norm
from glassformer.quick.gpu.product import product


@dataclass(frozen=True, kw_only=True)
class Fused:
    """One or more matrices (out, in) laid one below the other, and their biases."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *parts: nn.Linear) -> Fused:
        weights = [part.weight.detach() for part in parts]
        biases = [None if part.bias is None else part.bias.detach() for part in parts]
        if len(parts) == 1:
            return cls(weight=weights[0], bias=biases[0])
        whole = None
        if any(bias is not None for bias in biases):
            held = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            whole = torch.cat(held)
        return cls(weight=torch.cat(weights), bias=whole)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one block multiplies and norms with."""

    norm_self: Norm
    qkv: Fused
    out: Fused
    norm_ffn: Norm
    up: Fused
    down: Fused

    @classmethod
    def of(cls, block: Block) -> Layer:
        own, ffn = block.self_attn, block.ffn
        up = Fused.of(ffn.gate, ffn.up) if isinstance(ffn, GatedFeedForward) else Fused.of(ffn.up)
        assert block.norm_ffn is not None
        return cls(
            norm_self=norm_of(block.norm_self),
            qkv=Fused.of(own.q_proj, own.k_proj, own.v_proj),
            out=Fused.of(own.out_proj),
            norm_ffn=norm_of(block.norm_ffn),
            up=up,
            down=Fused.of(ffn.down),
        )


def norm_of(module: nn.Module) -> Norm:
    """A model's norm as the kernels take it."""
    if isinstance(module, RMSNorm):
        return Norm(kind="rms", weight=module.weight.detach(), eps=module.eps)
    if isinstance(module, LayerNorm):
        bias = None if module.bias is None else module.bias.detach()
        return Norm(kind="layer", weight=module.weight.detach(), bias=bias, eps=module.eps)
    raise GlassformerError(f"the kernels of a step know no norm {type(module).__name__}")


class Step:
    """`batch` texts of one length, written one token each a step; `room` is the most positions of a text.

    The model's matrices are laid side by side once, here; its keys and values lie in `cache`.
    """

    def __init__(self, model: DecoderOnly, *, batch: int, room: int) -> None:
        blocks, turns, embed, head = _checked(model)
        self.model, self.scale = model, embed.scale
        self.table = embed.token.weight.detach()
        device, dtype = self.table.device, self.table.dtype
        self.own = blocks[0].self_attn
        self.layers = [Layer.of(block) for block in blocks]
        final = model.decoder.final_norm
        self.final = None if final is None else norm_of(final)
        bias = None if head.bias is None else head.bias.detach()
        self.head = Fused(weight=head.weight.detach(), bias=bias)
        ffn = blocks[0].ffn
        self.gated = isinstance(ffn, GatedFeedForward)
        self.activation: Any = ffn.activation
        self.cache = Cache.allocate(model.spec, batch, room, dtype=dtype, device=device)
        rotary = turns(torch.arange(room, device=device)[None]).rotary
        assert rotary is not None
        self.turns = torch.stack([table[0, 0] for table in rotary], 1)  # (room, 2, R)
        self.token = torch.zeros(batch, dtype=torch.int64, device=device)
        self.length = torch.zeros(1, dtype=torch.int64, device=device)
        self.written = torch.zeros(room + 1, batch, dtype=torch.int64, device=device)
        self.captured: Captured[None] | None = None

    def logits(self) -> Tensor:
        """The scores (B, V) after `token` (B,), which stands at `length`; its keys are kept there."""
        own = self.own
        heads, groups, width = own.num_heads, own.num_kv_heads, own.head_dim
        batch = len(self.token)
        x = F.embedding(self.token, self.table)
        if self.scale != 1.0:
            x = x * self.scale
        cos, sin = self.turns.index_select(0, self.length)[0]  # (R,) each
        for layer, kept in zip(self.layers, self.cache.layers, strict=True):
            qkv = product(x, layer.qkv.weight, bias=layer.qkv.bias, norm=layer.norm_self)
            q, k, v = qkv.view(batch, 1, heads + 2 * groups, width).split((heads, groups, groups), 2)
            mixed = look(
                q,
                k,
                v,
                kept.k,
                kept.v,
                self.length,
                scale=own.scale,
                rotary=(cos, sin),
                window=own.window,
            )
            joined = mixed.view(batch, heads * width)
            x = product(joined, layer.out.weight, bias=layer.out.bias, plus=x)
            hidden = product(
                x,
                layer.up.weight,
                bias=layer.up.bias,
                norm=layer.norm_ffn,
                activation=self.activation,
                gated=self.gated,
            )
            x = product(hidden, layer.down.weight, bias=layer.down.bias, plus=x)
        return product(x, self.head.weight, bias=self.head.bias, norm=self.final)

    def read(self, prompt: Tensor) -> Tensor:
        """The prompt (B, T) by the model's own forward, into the cache -> the scores after it (B, V)."""
        self.cache.length = 0
        logits: Tensor = self.model(prompt, cache=self.cache)[:, -1]
        self.length.fill_(prompt.shape[1])
        return logits

    def greedy(self, prompt: Tensor, count: int) -> Tensor:
        """The `count` likeliest tokens (B, count) after a prompt (B, T), one by one."""
        room = self.cache.max_len
        if count < 1 or prompt.shape[1] + count > room:
            raise GlassformerError(
                f"{count} tokens after {prompt.shape[1]} do not fit a room of {room}; ask for 1 or more, "
                "and make the step with a larger room"
            )
        with torch.inference_mode():
            if self.captured is None and self.token.is_cuda:
                self.captured = Captured(self.advance)
            self.token.copy_(self.read(prompt).argmax(-1))
            self.written[prompt.shape[1]] = self.token
            for _ in range(count - 1):
                (self.captured or self.advance)()
            return self.written[prompt.shape[1] :][:count].t().clone()

    def advance(self) -> None:
        """One step: `token` is read, the likeliest next one takes its place and is written down."""
        _, tokens, _ = best(self.logits(), 1)
        self.token.copy_(tokens[:, 0])
        self.length.add_(1)
        self.written.index_copy_(0, self.length, self.token[None])


def _checked(model: DecoderOnly) -> tuple[list[Block], RotaryPositions, TokenInput, LanguageModelHead]:
    """The model's parts; a sentence where it is of another kind than this step is made of."""
    blocks = [block for block in model.decoder.blocks if isinstance(block, Block)]
    turns, embed, head = model.decoder.position, model.embed, model.head
    if (
        isinstance(turns, RotaryPositions)
        and isinstance(embed, TokenInput)
        and embed.position is None
        and embed.kind is None
        and embed.norm is None
        and isinstance(head, LanguageModelHead)
        and head.scale == 1.0
        and all(block.wiring == "pre" and block.cross_attn is None for block in blocks)
        and all(block.self_attn.value_dim == block.self_attn.head_dim for block in blocks)
        and blocks
    ):
        return blocks, turns, embed, head
    raise GlassformerError(
        "this step is for decoders with rotary positions, norms before each part and a language model's "
        "head; write with decoding.engine instead"
    )
