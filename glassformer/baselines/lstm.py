"""What stood before the Transformer, to be compared with it: recurrent models under the same outward words.

`hidden_states`, `head`, `forward`, `tie` and `begin` are those of the core's models, so the same loop trains
them and the same decoding writes with them. What a token gets to know of the past passes through one state,
step after step: nothing here runs in parallel over time.

B rows, S source positions, T target or sequence positions, D d_model, L layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.baselines import spec as specs
from glassformer.baselines.recurrent import Laid, Recurrent, State, laid_out
from glassformer.core.embeddings import TokenInput
from glassformer.core.heads import Context, LanguageModelHead
from glassformer.core.init import initialise
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.reading import MaskLike, inferred, share
from glassformer.core.spec import Xavier
from glassformer.errors import GlassformerError
from glassformer.generation.decoder import PrefillResult


def _tokens(vocab_size: int, spec: specs.LSTM) -> TokenInput:
    width = spec.d_model
    return TokenInput(
        width, vocab_size=vocab_size, scale=width**0.5, dropout=spec.dropout, pad_id=spec.pad_id
    )


def _draw(model: nn.Module) -> None:
    """As the core draws its models; the recurrent layers by their own rule, beginning with a long memory."""
    if next(model.parameters()).is_meta:
        return
    initialise(model, Xavier())
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.remember()


def _padding_only(mask: Mask, what: str) -> Mask:
    if mask.allowed is not None or mask.segments is not None:
        raise GlassformerError(
            f"a recurrent model reads every token before the next: {what} can only say what is padding; "
            "give one document a row and a mask (B, S)"
        )
    return mask


class LSTMEncoderDecoder(nn.Module):
    """Reads a source both ways, then writes a target: logits (B, T, V) for each next target token.

    >>> spec = specs.LSTMEncoderDecoder(src_vocab_size=50, tgt_vocab_size=40, d_model=16)
    >>> LSTMEncoderDecoder(spec)(torch.ones(2, 7).long(), torch.ones(2, 5).long()).shape
    torch.Size([2, 5, 40])
    """

    spec: specs.LSTMEncoderDecoder

    def __init__(self, spec: specs.LSTMEncoderDecoder) -> None:
        super().__init__()
        self.spec = spec
        width = spec.d_model
        self.src_embed = _tokens(spec.src_vocab_size, spec)
        self.tgt_embed = _tokens(spec.tgt_vocab_size, spec)
        self.encoder = Recurrent(width, spec.num_layers, dropout=spec.dropout, ways="both")
        self.decoder = Recurrent(width, spec.num_layers, dropout=spec.dropout, ways="forward")
        self.combine = nn.Linear(2 * width, width, bias=False) if spec.attention == "dot" else None
        self.head = LanguageModelHead(width, vocab_size=spec.tgt_vocab_size)
        _draw(self)
        self.tie()

    def tie(self) -> None:
        """Let what the spec calls tied share the target's token matrix (again, after weights are set)."""
        if "source" in self.spec.tied:
            share(self.src_embed, self.tgt_embed, "the target")
        if "head" in self.spec.tied:
            share(self.tgt_embed, self.head, "the head")

    def forward(self, *inputs: Any, **words: Any) -> Tensor:
        """What the head makes of `hidden_states`: logits (B, T, V)."""
        x, context = self.hidden_states(*inputs, **words)
        logits: Tensor = self.head(x, context)
        return logits

    def hidden_states(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: MaskLike = None,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        *,
        src_positions: Tensor | None = None,
        tgt_positions: Tensor | None = None,
        kernel: Kernel = "auto",
    ) -> tuple[Tensor, Context]:
        """src (B, S), tgt (B, T) -> the last layer's vectors (B, T, D), and what else a head may need.

        A mask (B, S) or (B, T) says which tokens are real; without one, padding is read off the pad id.
        Positions and kernel are taken so that the call is the core's; nothing here depends on them.
        """
        if memory_mask is not None:
            raise GlassformerError(
                "a recurrent model's memory has the source's padding; leave memory_mask out"
            )
        if src.shape[0] != tgt.shape[0]:
            raise GlassformerError(
                f"the source has {src.shape[0]} rows and the target {tgt.shape[0]}; give one target a source"
            )
        source = _padding_only(inferred(self.src_embed, src, src_mask, "src_mask"), "src_mask")
        target = _padding_only(inferred(self.tgt_embed, tgt, tgt_mask, "tgt_mask"), "tgt_mask")
        padding = target.padding
        if tgt_mask is None and padding is not None:
            # the first token starts the sequence, even where it is the pad token
            padding = torch.cat((torch.ones_like(padding[:, :1]), padding[:, 1:]), 1)
        laid = laid_out(Mask(padding=padding), tgt, "tgt_mask")
        memory = self.encode(src, source)
        x, _ = self._written(tgt if laid is None else laid.out(tgt), memory, memory.state)
        return x if laid is None else laid.back(x), Context(ids=src, padding=padding)

    def encode(self, src: Tensor, src_mask: MaskLike = None) -> Memory:
        """src (B, S) -> its vectors, and the state for the writer to begin with."""
        mask = _padding_only(inferred(self.src_embed, src, src_mask, "src_mask"), "src_mask")
        laid = laid_out(mask, src, "src_mask")
        if laid is None:
            x, state = self.encoder(self.src_embed(src).x)
            return Memory(x, None, state)
        lengths = laid.lengths()
        x, state = self.encoder(self.src_embed(laid.out(src)).x, lengths=lengths)
        places = torch.arange(x.shape[1], device=x.device)
        return Memory(x, places < lengths.to(x.device)[:, None], state)

    def _written(self, tgt: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """tgt (B, T), no padding before a token -> vectors (B, T, D), and the state after the last."""
        x, state = self.decoder(self.tgt_embed(tgt).x, state)
        if self.combine is not None:
            x = torch.tanh(self.combine(torch.cat((x, memory.seen_from(x)), -1)))
        return self.decoder.dropped(x), state

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read the source (B, S) and the first target tokens; see `generation.decoder`."""
        if not start_ids:
            raise GlassformerError("nothing says how the target begins; give start_ids")
        memory = self.encode(inputs, Mask(padding=None if bool(mask.all()) else mask))
        steps = TargetSteps(self, memory, memory.state)
        first = torch.tensor(start_ids, device=inputs.device).expand(len(inputs), -1)  # (B, starts)
        return PrefillResult(steps, steps.read(first))


@dataclass
class Memory:
    """What was read: a vector for each source token, and the state the reader ended in."""

    x: Tensor  # (B, S, D)
    real: Tensor | None  # (B, S); None where nothing is padding
    state: State

    def seen_from(self, queries: Tensor) -> Tensor:
        """Luong's dot attention: the source weighted by softmax(q . x), (B, T, D)."""
        x = self.x.to(queries.dtype)
        mask = None if self.real is None else self.real[:, None]
        return F.scaled_dot_product_attention(queries, x, x, attn_mask=mask, scale=1.0)

    def select(self, rows: Tensor) -> Memory:
        real = None if self.real is None else self.real.index_select(0, rows)
        return Memory(self.x.index_select(0, rows), real, self.state.select(rows))


@dataclass
class TargetSteps:
    """A target being written; the past is one state, so a step costs the same however long it is."""

    model: LSTMEncoderDecoder
    memory: Memory
    state: State

    def step(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None])

    def read(self, ids: Tensor) -> Tensor:
        """(B, T) further tokens -> logits (B, V) after the last of them."""
        x, self.state = self.model._written(ids, self.memory, self.state)
        logits: Tensor = self.model.head(x[:, -1], Context())
        return logits

    def select(self, rows: Tensor) -> None:
        self.memory, self.state = self.memory.select(rows), self.state.select(rows)


class LSTMLanguageModel(nn.Module):
    """Reads from left to right: logits (B, T, V) for each next token.

    Packed documents (segments) are laid out one a row while they are read: the fused kernel cannot begin
    anew in the middle of a row.

    >>> model = LSTMLanguageModel(specs.LSTMLanguageModel(vocab_size=50, d_model=16))
    >>> model(torch.ones(2, 7).long()).shape
    torch.Size([2, 7, 50])
    """

    spec: specs.LSTMLanguageModel

    def __init__(self, spec: specs.LSTMLanguageModel) -> None:
        super().__init__()
        self.spec = spec
        self.embed = _tokens(spec.vocab_size, spec)
        self.decoder = Recurrent(spec.d_model, spec.num_layers, dropout=spec.dropout, ways="forward")
        self.head = LanguageModelHead(spec.d_model, vocab_size=spec.vocab_size)
        _draw(self)
        self.tie()

    def tie(self) -> None:
        """Let the head share the token matrix where the spec says so."""
        if "head" in self.spec.tied:
            share(self.embed, self.head, "the head")

    def forward(self, *inputs: Any, **words: Any) -> Tensor:
        """What the head makes of `hidden_states`: logits (B, T, V)."""
        x, context = self.hidden_states(*inputs, **words)
        logits: Tensor = self.head(x, context)
        return logits

    def hidden_states(
        self,
        ids: Tensor,
        mask: MaskLike = None,
        *,
        positions: Tensor | None = None,
        kernel: Kernel = "auto",
    ) -> tuple[Tensor, Context]:
        """ids (B, T) -> the last layer's vectors (B, T, D), and what else a head may need.

        A mask (B, T) says which tokens are real, `Mask(segments=...)` which document each is of; without
        one, padding is read off the pad id. Positions and kernel are taken so that the call is the core's;
        nothing here depends on them.
        """
        seen = inferred(self.embed, ids, mask, "mask")
        _padding_only(Mask(padding=seen.padding, allowed=seen.allowed), "mask")
        laid = laid_out(seen, ids, "mask")
        x, _ = self._read(ids if laid is None else laid.out(ids))
        return x if laid is None else laid.back(x), Context(ids=ids, padding=seen.padding)

    def _read(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        x, state = self.decoder(self.embed(ids).x, state, lengths=lengths)
        return self.decoder.dropped(x), state

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read the prompts (B, P); see `generation.decoder`."""
        if start_ids:
            raise GlassformerError("a model without a source goes on from its prompt; put start_ids there")
        counts = mask.sum(1)
        if not bool(counts.all()) or not inputs.shape[1]:
            raise GlassformerError("a prompt is empty; begin it with the model's start token")
        laid = Laid.of(Mask(padding=mask), inputs)
        x, state = self._read(laid.out(inputs), lengths=laid.lengths())
        last = x[torch.arange(len(x), device=x.device), counts - 1]  # (B, D)
        return PrefillResult(PromptSteps(self, state), self.head(last, Context()))


@dataclass
class PromptSteps:
    """What follows a prompt, of which only the state is left."""

    model: LSTMLanguageModel
    state: State

    def step(self, ids: Tensor) -> Tensor:
        x, self.state = self.model._read(ids[:, None], self.state)
        logits: Tensor = self.model.head(x[:, -1], Context())
        return logits

    def select(self, rows: Tensor) -> None:
        self.state = self.state.select(rows)
