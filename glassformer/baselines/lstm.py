"""LSTM baselines with the interface of the core models: the same loops train them and generate text.

B rows, S source positions, T target or sequence positions, D d_model, L layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from glassformer.baselines import spec as specs
from glassformer.core.backend import Dropout
from glassformer.core.build import initialize
from glassformer.core.embeddings import TokenInput
from glassformer.core.heads import HeadContext, LanguageModelHead
from glassformer.core.inputs import MaskLike, Masks, infer_mask, tie_weights
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.positions import count_positions
from glassformer.core.spec import XavierSpec
from glassformer.errors import EmptyInputError, MissingValueError, ShapeError, UnsupportedError
from glassformer.generation.step_decoder import PrefillResult


class LSTMState(NamedTuple):
    """The recurrent state of an LSTM: hidden and cell, both (L, B, D)."""

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> LSTMState:
        return LSTMState(self.hidden.index_select(1, rows), self.cell.index_select(1, rows))


class LSTMStack(nn.Module):
    """A stack of L LSTM layers, (B, T, D) -> (B, T, D). If bidirectional, each direction has half the width.

    Each layer is a separate module with `Dropout` in between, because the random state of cuDNN's own dropout
    cannot be reset by a seed, so a run would not be reproducible.

    >>> x, state = LSTMStack(16, 2, dropout=0.1, bidirectional=True)(torch.randn(3, 5, 16))
    >>> x.shape, state.hidden.shape
    (torch.Size([3, 5, 16]), torch.Size([2, 3, 16]))
    """

    def __init__(self, d_model: int, num_layers: int, *, dropout: float, bidirectional: bool = False) -> None:
        super().__init__()
        width = d_model // 2 if bidirectional else d_model
        self.layers = nn.ModuleList(
            nn.LSTM(d_model, width, batch_first=True, bidirectional=bidirectional) for _ in range(num_layers)
        )
        self.dropout = Dropout(dropout)

    @torch.no_grad()
    def init_forget_gate_bias(self) -> None:
        """Set the forget-gate bias to 1 and the other biases to 0, so that the state fades slowly."""
        for name, bias in self.named_parameters():
            if "bias" in name:
                bias.zero_()
                if "bias_ih" in name:
                    bias.chunk(4)[1].fill_(1.0)  # gates in torch's order: input, forget, cell, output

    def forward(
        self, x: Tensor, state: LSTMState | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, LSTMState]:
        """Run the layers over x (B, T, D); return outputs of the same shape and the final state.

        lengths: number of real steps of each row (B,), on the CPU; without it all steps are real.
        """
        packed: Any = x
        if lengths is not None:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        ends: list[tuple[Tensor, Tensor]] = []
        for n, layer in enumerate(self.layers):
            if n and lengths is not None:
                packed = PackedSequence(self.dropout(packed.data), *packed[1:])
            elif n:
                packed = self.dropout(packed)
            packed, end = layer(packed, None if state is None else tuple(part[n : n + 1] for part in state))
            ends.append(end)
        if lengths is not None:
            packed, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        # (directions, B, width) of each layer -> (L, B, D)
        hidden, cell = (
            torch.stack([torch.cat((*part,), -1) for part in parts]) for parts in zip(*ends, strict=True)
        )
        return packed, LSTMState(hidden, cell)


class RowLayout(NamedTuple):
    """Where each token (B, T) goes if every row starts with its first real token, padded on the right."""

    position: Tensor  # (B, T)
    real: Tensor  # (B, T)

    def scatter(self, ids: Tensor) -> Tensor:
        """Rearrange ids (B, T), padded on any side, to (B, T), padded with 0 on the right."""
        batch, steps = ids.shape
        rows = ids.new_zeros(batch, steps + 1)  # padding goes to one more column, which is dropped
        return rows.scatter(1, torch.where(self.real, self.position, steps), ids)[:, :steps]

    def gather(self, x: Tensor) -> Tensor:
        """Rearrange x (B, T, D) to the places of the tokens; values at padding are undefined."""
        return x[torch.arange(len(x), device=x.device)[:, None], self.position]

    def lengths(self) -> Tensor:
        """Count the real tokens of each row (B,), at least 1, on the CPU."""
        return self.real.sum(1).clamp(min=1).cpu()


def _layout(mask: Mask, ids: Tensor) -> RowLayout | None:
    """Return the layout of rows with padding; None if there is none."""
    if mask.allowed is not None or mask.segments is not None:
        hint = "give one document per row and a mask (B, S)"
        raise UnsupportedError("an LSTM", f"a {mask.name} that is more than padding", hint=hint)
    if mask.padding is None:
        return None
    batch, steps = ids.shape
    mask.check(batch=batch, heads=1, queries=steps, keys=steps)
    return RowLayout(count_positions(mask.padding), mask.padding)


@dataclass
class EncodedSource:
    """The encoded source: a hidden state for each token, and the encoder's final state."""

    x: Tensor  # (B, S, D)
    real: Tensor | None  # (B, S); None if nothing is padding
    state: LSTMState

    def attend(self, queries: Tensor) -> Tensor:
        """Attend to the source with Luong's dot-product attention: queries (B, T, D) -> (B, T, D)."""
        x = self.x.to(queries.dtype)
        mask = None if self.real is None else self.real[:, None]
        return F.scaled_dot_product_attention(queries, x, x, attn_mask=mask, scale=1.0)

    def select(self, rows: Tensor) -> EncodedSource:
        real = None if self.real is None else self.real.index_select(0, rows)
        return EncodedSource(self.x.index_select(0, rows), real, self.state.select(rows))


class _LSTMModel(nn.Module):
    """Base class of both LSTM models."""

    head: LanguageModelHead
    tie: Callable[[], None]
    hidden_states: Callable[..., tuple[Tensor, HeadContext]]
    decode: Callable[..., tuple[Tensor, LSTMState]]

    def _token_input(self, vocab_size: int, spec: specs.LSTMSpec) -> TokenInput:
        scale = spec.d_model**0.5
        return TokenInput(
            spec.d_model, vocab_size=vocab_size, scale=scale, dropout=spec.dropout, pad_id=spec.pad_id
        )

    def _initialize(self) -> None:
        if not next(self.parameters()).is_meta:
            initialize(self, XavierSpec())
            for module in self.modules():
                if isinstance(module, LSTMStack):
                    module.init_forget_gate_bias()
        self.tie()

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the logits (B, T, V); the arguments are those of `hidden_states`."""
        logits: Tensor = self.head(*self.hidden_states(*inputs, **options))
        return logits


@dataclass
class LSTMDecoder:
    """Decode step by step. The past is a state of fixed size, so all steps cost the same."""

    model: _LSTMModel
    state: LSTMState
    memory: EncodedSource | None = None

    def step(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None])

    def read(self, ids: Tensor) -> Tensor:
        x, self.state = self.model.decode(ids, self.state, self.memory)
        logits: Tensor = self.model.head(x[:, -1], HeadContext())
        return logits

    def select(self, rows: Tensor) -> None:
        self.state = self.state.select(rows)
        self.memory = None if self.memory is None else self.memory.select(rows)


class LSTMEncoderDecoder(_LSTMModel):
    """LSTM encoder-decoder with a bidirectional encoder; returns the logits (B, T, V) of next target tokens.

    >>> spec = specs.LSTMEncoderDecoderSpec(src_vocab_size=50, tgt_vocab_size=40, d_model=16)
    >>> LSTMEncoderDecoder(spec)(torch.ones(2, 7).long(), torch.ones(2, 5).long()).shape
    torch.Size([2, 5, 40])
    """

    def __init__(self, spec: specs.LSTMEncoderDecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.d_model
        self.src_embed = self._token_input(spec.src_vocab_size, spec)
        self.tgt_embed = self._token_input(spec.tgt_vocab_size, spec)
        self.encoder = LSTMStack(width, spec.num_layers, dropout=spec.dropout, bidirectional=True)
        self.decoder = LSTMStack(width, spec.num_layers, dropout=spec.dropout)
        self.combine = nn.Linear(2 * width, width, bias=False) if spec.attention == "dot" else None
        self.head = LanguageModelHead(width, vocab_size=spec.tgt_vocab_size)
        self._initialize()

    def tie(self) -> None:
        """Tie the weights that the spec names to the target embedding; repeat it after loading weights."""
        if "source" in self.spec.tied:
            tie_weights(self.src_embed, self.tgt_embed, "the target")
        if "head" in self.spec.tied:
            tie_weights(self.tgt_embed, self.head, "the head")

    def hidden_states(
        self,
        src: Tensor,
        tgt: Tensor,
        *masks: Masks | MaskLike,
        kernel: Kernel = "auto",
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) for src (B, S) and tgt (B, T), and the head's context.

        A mask (B, S) or (B, T) is True at real tokens; by default all tokens but the pad id are real.
        kernel: ignored; it exists for compatibility with the core models.
        """
        src_mask, tgt_mask, memory_mask = Masks.of(masks)
        if memory_mask is not None:
            raise UnsupportedError("an LSTM", "memory_mask")
        if src.shape[0] != tgt.shape[0]:
            raise ShapeError("tgt", tgt.shape, f"{src.shape[0]} rows, as in src")
        mask = infer_mask(self.tgt_embed, tgt, tgt_mask, "tgt_mask")
        padding = mask.padding
        if tgt_mask is None and padding is not None:
            # the first token starts the sequence, even if it is the pad token
            padding = torch.cat((torch.ones_like(padding[:, :1]), padding[:, 1:]), 1)
        layout = _layout(replace(mask, padding=padding), tgt)
        memory = self.encode(src, src_mask)
        x, _ = self.decode(tgt if layout is None else layout.scatter(tgt), memory.state, memory)
        return x if layout is None else layout.gather(x), HeadContext(ids=src, padding=padding)

    def encode(self, src: Tensor, src_mask: MaskLike = None) -> EncodedSource:
        """Encode src (B, S): return its hidden states, and the initial state of the decoder."""
        mask = infer_mask(self.src_embed, src, src_mask, "src_mask")
        layout = _layout(mask, src)
        if layout is None:
            x, state = self.encoder(self.src_embed(src).x)
            return EncodedSource(x, None, state)
        lengths = layout.lengths()
        x, state = self.encoder(self.src_embed(layout.scatter(src)).x, lengths=lengths)
        return EncodedSource(
            x, torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None], state
        )

    def decode(
        self, ids: Tensor, state: LSTMState | None, memory: EncodedSource | None = None
    ) -> tuple[Tensor, LSTMState]:
        x, state = self.decoder(self.tgt_embed(ids).x, state)
        if self.combine is not None and memory is not None:
            x = torch.tanh(self.combine(torch.cat((x, memory.attend(x)), -1)))
        return self.decoder.dropout(x), state

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read the source (B, S) and the first target tokens; see `generation.step_decoder`."""
        if not start_ids:
            raise MissingValueError("start_ids", "to start the decoder")
        memory = self.encode(inputs, Mask(padding=None if bool(mask.all()) else mask))
        steps = LSTMDecoder(self, memory.state, memory)
        return PrefillResult(
            steps, steps.read(torch.tensor(start_ids, device=inputs.device).expand(len(inputs), -1))
        )


class LSTMLanguageModel(_LSTMModel):
    """Causal LSTM language model; returns the logits (B, T, V) of next tokens.

    >>> model = LSTMLanguageModel(specs.LSTMLanguageModelSpec(vocab_size=50, d_model=16))
    >>> model(torch.ones(2, 7).long()).shape
    torch.Size([2, 7, 50])
    """

    def __init__(self, spec: specs.LSTMLanguageModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = self._token_input(spec.vocab_size, spec)
        self.decoder = LSTMStack(spec.d_model, spec.num_layers, dropout=spec.dropout)
        self.head = LanguageModelHead(spec.d_model, vocab_size=spec.vocab_size)
        self._initialize()

    def tie(self) -> None:
        """Tie the embedding to the head if the spec says so."""
        if "head" in self.spec.tied:
            tie_weights(self.embed, self.head, "the head")

    def hidden_states(
        self, ids: Tensor, mask: MaskLike = None, *, kernel: Kernel = "auto"
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) for ids (B, T), and the context of the head.

        A mask (B, T) is True at real tokens; by default all tokens but the pad id are real. kernel: ignored;
        it exists for compatibility with the core models.
        """
        known = infer_mask(self.embed, ids, mask, "mask")
        layout = _layout(known, ids)
        x, _ = self.decode(ids if layout is None else layout.scatter(ids), None)
        return x if layout is None else layout.gather(x), HeadContext(ids=ids, padding=known.padding)

    def decode(
        self, ids: Tensor, state: LSTMState | None, memory: EncodedSource | None = None
    ) -> tuple[Tensor, LSTMState]:
        x, state = self.decoder(self.embed(ids).x, state)
        return self.decoder.dropout(x), state

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read the prompts (B, P); see `generation.step_decoder`."""
        if start_ids:
            raise UnsupportedError("a decoder-only model", "start_ids", hint="prepend them to the prompt")
        counts = mask.sum(1)
        if not bool(counts.all()) or not inputs.shape[1]:
            raise EmptyInputError("prompt", hint="start it with the BOS token")
        layout = RowLayout(count_positions(mask), mask)
        x, state = self.decoder(self.embed(layout.scatter(inputs)).x, lengths=layout.lengths())
        last = self.decoder.dropout(x)[torch.arange(len(x), device=x.device), counts - 1]  # (B, D)
        return PrefillResult(LSTMDecoder(self, state), self.head(last, HeadContext()))
