"""The architectures: encoder-decoder, encoder-only and decoder-only, from the same modules.

Every model is called with its inputs and their masks. `hidden_states` runs everything up to the last layer,
and `forward` also applies the head. A loss that never materializes all logits starts from the hidden states.

Inputs are tensors, or `TextInputs`, `ImageInputs`, `SeriesInputs` and `LatentInputs` with what belongs to
them. In a mask,
true or 1 = may attend: (B, S), (B, 1|T, S) or (B, 1|H, 1|T, S), or a `Mask`. Without one, padding is inferred
from the pad id. kernel: one of `core.kernels.KERNELS`.

B batch, T target or sequence positions, S source positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import (
    MaskLike,
    Masks,
    Memory,
    ModelInputs,
    TextInputs,
    cross_mask,
    embed_inputs,
    infer_mask,
    last_columns,
    tensor_of,
    tie_weights,
)
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.stack import Stack
from glassformer.errors import MissingValueError, ShapeError, explain_torch_names

if TYPE_CHECKING:
    from glassformer.core.vision.stages import Stages
    from glassformer.generation.config import GenerationOptions


class Model(nn.Module):
    """Base of models."""

    spec: specs.ModelSpec
    head: Any

    def tie(self) -> None:
        """Tie the weights that `spec.tied` lists; call again after parameters are replaced."""


class GenerativeModel(Model):
    """Base of models that can generate: those with a language-model head."""

    @explain_torch_names
    def generate(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[list[int]]:
        """Generate from sources or prompts (B, S); return each row's new token ids, without the end token.

        The rows are lists, because they have different lengths; with `num_return_sequences` N, the N rows of
        each input are adjacent, best first. attention_mask (B, S): 1 for real tokens; by default
        padding is inferred from the pad id. `options` have the names of transformers; `max_new_tokens` or
        `max_length` is required.
        """
        from glassformer.generation.engine import generate_ids  # here: generation imports core

        return generate_ids(self, input_ids, attention_mask, eos_token_id, options)


class EncoderDecoder(GenerativeModel):
    """Encoder-decoder: with a language-model head, logits (B, T, V) for each next target token.

    src_embed, tgt_embed: input embeddings of encoder and decoder
    connector: projects the encoder's output to the width of the decoder

    >>> import torch
    >>> from glassformer.core.build import build_model
    >>> from glassformer.families.original import original
    >>> model = build_model(original(d_model=16, num_heads=4, d_ff=64, num_layers=2, src_vocab_size=50))
    >>> model(torch.ones(2, 7).long(), torch.ones(2, 5).long()).shape
    torch.Size([2, 5, 50])
    """

    spec: specs.EncoderDecoderSpec

    def __init__(
        self,
        spec: specs.EncoderDecoderSpec,
        *,
        src_embed: nn.Module,
        tgt_embed: nn.Module,
        encoder: Stack | Stages,
        decoder: Stack,
        head: nn.Module,
        connector: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.encoder, self.connector, self.decoder = encoder, connector, decoder
        self.head = head
        self.tie()

    @property
    def decoder_embed(self) -> nn.Module:
        """The embedding of the decoder's tokens."""
        return self.tgt_embed

    def tie(self) -> None:
        """Tie the weights that `spec.tied` lists; call again after parameters are replaced."""
        if "source" in self.spec.tied:
            tie_weights(self.src_embed, self.tgt_embed, "the target")
        if "head" in self.spec.tied:
            tie_weights(self.tgt_embed, self.head, "the head")

    @explain_torch_names
    def forward(
        self,
        src: ModelInputs,
        tgt: Tensor | TextInputs | None = None,
        *masks: Masks | MaskLike,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Any:
        """src (B, S), tgt (B, T) -> the head's output: logits (B, T, V) for a language model.

        masks: those of the source, the target and the memory, in this order, or `Masks` by name. The decoder
        is causal, unless the target's mask has a row for each query: (T, T), (B, T, T), (B, 1|H, T, T). The
        memory's mask defaults to a source mask without rows for each query, else to the padding of the
        source. Positions count the real tokens of padding (B, S); other masks do not change them.
        """
        x, context = self.hidden_states(src, tgt, *masks, kernel=kernel, obs=obs)
        return self.head(x, context, obs=scope(obs, "head"))

    def hidden_states(
        self,
        src: ModelInputs,
        tgt: Tensor | TextInputs | None = None,
        *masks: Masks | MaskLike,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        if tgt is None:
            raise MissingValueError("tgt", "by an encoder-decoder")
        src_mask, tgt_mask, memory_mask = Masks.of(masks)
        memory, source = self._encode(src, src_mask, kernel, obs)
        source_ids, target_ids = tensor_of(src), tensor_of(tgt)
        if len(source_ids) != len(target_ids):
            rows = f"as many rows as the source has, {len(source_ids)}"
            raise ShapeError("the target", target_ids.shape, rows)
        if memory_mask is None:
            if source.by_query:
                source = infer_mask(self.src_embed, source_ids, None, "src_mask")
            memory_mask = cross_mask(source, getattr(tgt, "mask", None) if tgt_mask is None else tgt_mask)
        x, padding = self._decode(tgt, Memory.of(memory, memory_mask), tgt_mask, None, kernel, obs)
        return x, HeadContext(ids=source_ids, padding=padding)

    def encode(
        self,
        src: ModelInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """Encode src, ids (B, S) or images (B, C, height, width) -> memory (B, S, D)."""
        return self._encode(src, mask, kernel, obs)[0]

    def _encode(
        self, src: ModelInputs, mask: MaskLike, kernel: Kernel, obs: Observer | None
    ) -> tuple[Tensor, Mask]:
        """Return the memory (B, S, D) and the mask of the source."""
        source = embed_inputs(self.src_embed, src, mask, name="src_mask", obs=scope(obs, "src_embed"))
        x = self.encoder(source, kernel=kernel, obs=scope(obs, "encoder"))
        return self.connect(x, obs), source.mask

    def connect(self, x: Tensor, obs: Observer | None = None) -> Tensor:
        """Project the encoder's output (..., S, E) for the decoder -> (..., S, D), if their widths differ."""
        return x if self.connector is None else tap(obs, "connector", self.connector(x))

    def decode(
        self,
        tgt: Tensor | TextInputs,
        memory: Tensor | Memory,
        *,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Any:
        """Decode tgt (B, T) with memory (B, S, D) -> the head's output; continues from `cache`, if any.

        Pass the padding of the source as the memory's mask: it is not known here. With a cache, the mask of
        the target covers all keys so far, cached ones included.
        """
        x, padding = self._decode(tgt, Memory.of(memory), None, cache, kernel, obs)
        return self.head(x, HeadContext(padding=padding), obs=scope(obs, "head"))

    def _decode(
        self,
        tgt: Tensor | TextInputs,
        memory: Memory,
        mask: MaskLike,
        cache: KVCache | None,
        kernel: Kernel,
        obs: Observer | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the last hidden states (B, T, D), and which of them are real tokens (B, T)."""
        start = 0 if cache is None else cache.length
        target = embed_inputs(
            self.tgt_embed, tgt, mask, start=start, name="tgt_mask", obs=scope(obs, "tgt_embed")
        )
        padding = _padding(target, start)  # before the decoder advances the cache
        return self.decoder(target, memory, cache=cache, kernel=kernel, obs=scope(obs, "decoder")), padding


class EncoderOnly(Model):
    """Encoder-only model: encode a sequence, an image or a time series, and apply the head.

    embed: input embedding

    >>> import torch
    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> model = build_model(specs.EncoderOnlySpec(
    ...     input=specs.TokensSpec(vocab_size=50), head=specs.ClassifySpec(num_labels=3),
    ...     encoder=specs.StackSpec(d_model=16, num_layers=2, block=block)))
    >>> model(torch.ones(2, 7).long()).shape                # (B, labels)
    torch.Size([2, 3])
    """

    spec: specs.EncoderOnlySpec

    def __init__(
        self, spec: specs.EncoderOnlySpec, *, embed: nn.Module, encoder: Stack | Stages, head: nn.Module
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed, self.encoder, self.head = embed, encoder, head
        self.tie()

    def tie(self) -> None:
        """Tie the head to the token embedding if `spec.tied` lists it."""
        if "head" in self.spec.tied:
            tie_weights(self.embed, self.head, "the head")

    def forward(
        self,
        inputs: ModelInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Any:
        """ids (B, T), images (B, C, height, width), series (B, time, channels), ... -> the head's output."""
        x, context = self.hidden_states(inputs, mask, kernel=kernel, obs=obs)
        return self.head(x, context, obs=scope(obs, "head"))

    def hidden_states(
        self,
        inputs: ModelInputs,
        mask: MaskLike = None,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        embedded = embed_inputs(self.embed, inputs, mask, obs=scope(obs, "embed"))
        context = HeadContext.of(embedded, tensor_of(inputs))
        if embedded.grid is not None:
            context = context._replace(grid=self.encoder.output_grid(embedded.grid))
        if not getattr(self.head, "reads_all_layers", False):
            return self.encoder(embedded, kernel=kernel, obs=scope(obs, "encoder")), context
        states = self.encoder.layer_outputs(embedded, kernel=kernel, obs=scope(obs, "encoder"))
        return states[-1].x, context._replace(states=states)


class DecoderOnly(GenerativeModel):
    """Decoder-only (causal) model: with a language-model head, logits (B, T, V) for each next token.

    embed: input embedding

    >>> import torch
    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> model = build_model(specs.DecoderOnlySpec(
    ...     input=specs.TokensSpec(vocab_size=50), head=specs.LanguageModelSpec(vocab_size=50),
    ...     decoder=specs.StackSpec(d_model=16, num_layers=2, block=block, causal=True)))
    >>> model(torch.ones(2, 7).long()).shape
    torch.Size([2, 7, 50])
    >>> [len(ids) for ids in model.generate(torch.ones(2, 7).long(), max_new_tokens=3)]
    [3, 3]
    """

    spec: specs.DecoderOnlySpec

    def __init__(
        self, spec: specs.DecoderOnlySpec, *, embed: nn.Module, decoder: Stack, head: nn.Module
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed, self.decoder, self.head = embed, decoder, head
        self.tie()

    @property
    def decoder_embed(self) -> nn.Module:
        """The embedding of the decoder's tokens."""
        return self.embed

    def tie(self) -> None:
        """Tie the head to the token embedding if `spec.tied` lists it."""
        if "head" in self.spec.tied:
            tie_weights(self.embed, self.head, "the head")

    def forward(
        self,
        inputs: Tensor | TextInputs,
        mask: MaskLike = None,
        *,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Any:
        """ids (B, T) -> the head's output: logits (B, T, V) for a language model.

        With a cache, the keys of the mask include the cached ones.
        """
        x, context = self.hidden_states(inputs, mask, cache=cache, kernel=kernel, obs=obs)
        return self.head(x, context, obs=scope(obs, "head"))

    def hidden_states(
        self,
        inputs: Tensor | TextInputs,
        mask: MaskLike = None,
        *,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        start = 0 if cache is None else cache.length
        embedded = embed_inputs(self.embed, inputs, mask, start=start, obs=scope(obs, "embed"))
        context = HeadContext(ids=tensor_of(inputs), padding=_padding(embedded, start))
        return self.decoder(embedded, cache=cache, kernel=kernel, obs=scope(obs, "decoder")), context


def _padding(embedded: EmbeddingOutput, start: int | Tensor) -> Tensor | None:
    """Return the padding (B, T) of the embedded tokens, without that of the cached keys before `start`."""
    padding = embedded.mask.padding
    return None if padding is None else last_columns(padding, start, embedded.x.shape[1])


AnyModel = Model
