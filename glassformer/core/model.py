"""The architectures: encoder-decoder, encoder-only, decoder-only and two towers, from the same modules.

In each, `hidden_states` runs everything up to the last layer, and `forward` also applies the head. A loss
that never materializes all logits starts from the hidden states.

B batch, T target or sequence positions, S source positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.embeddings import EmbeddingOutput, ObjectQueries, TokenInput
from glassformer.core.heads import BackboneHead, HeadContext, LayerOutput, PooledOutput, SimilarityHead
from glassformer.core.inputs import (
    MaskLike,
    cross_mask,
    embed_inputs,
    infer_mask,
    last_columns,
    position_ids,
    tie_weights,
)
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.mask_classifier import EncoderMaskClassifier, MaskClassifier
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, scope
from glassformer.core.segmenter import PromptedSegmenter
from glassformer.core.stack import Stack
from glassformer.core.stages import Stages
from glassformer.errors import MissingValueError, ShapeError

if TYPE_CHECKING:
    from glassformer.generation.config import GenerationOptions


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of every forward. kernel: one of `core.kernels.KERNELS`."""

    kernel: Kernel
    obs: Observer | None


class EncoderDecoderOptions(ForwardOptions, total=False):
    """Keyword arguments: position ids (B|1, T); by default they are computed from the mask."""

    src_positions: Tensor | None
    tgt_positions: Tensor | None
    pixel_mask: Tensor | None  # (B, height, width), True for real pixels of padded images


class EncoderOptions(ForwardOptions, total=False):
    """Keyword arguments: position ids (B|1, T), token types (B, T), missing or masked values of a series."""

    positions: Tensor | None
    types: Tensor | None
    observed: Tensor | None  # (B, time, channels), False where a value is missing
    masked_patches: Tensor | None  # (B, channels, patches), True for patches to be predicted
    covariates: Tensor | None  # (B, past + future steps, covariates), known covariates of a series
    pixel_mask: Tensor | None  # (B, height, width), True for real pixels of padded images


class DecoderOptions(ForwardOptions, total=False):
    """Keyword arguments: position ids (B|1, T), and the KV cache to continue from."""

    positions: Tensor | None
    cache: KVCache | None


class GenerativeModel(nn.Module):
    """Base of models that can generate: those with a language-model head.

    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> model = build_model(specs.DecoderOnlySpec(
    ...     input=specs.TokensSpec(vocab_size=50), head=specs.LanguageModelSpec(vocab_size=50),
    ...     decoder=specs.StackSpec(d_model=16, num_layers=1, block=block, causal=True)))
    >>> torch.tensor(model.generate(torch.ones(2, 4).long(), max_new_tokens=3)).shape
    torch.Size([2, 3])
    """

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

    >>> from glassformer.core.build import build_model
    >>> tokens, ffn = specs.TokensSpec(vocab_size=50), specs.FeedForwardSpec(d_ff=64)
    >>> attention = specs.AttentionSpec(num_heads=4)
    >>> encoder = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> decoder = specs.BlockSpec(attention=attention, cross_attention=attention, feed_forward=ffn)
    >>> model = build_model(specs.EncoderDecoderSpec(
    ...     source=tokens, encoder=specs.StackSpec(d_model=16, num_layers=2, block=encoder),
    ...     target=tokens, decoder=specs.StackSpec(d_model=16, num_layers=2, block=decoder, causal=True),
    ...     head=specs.LanguageModelSpec(vocab_size=50)))
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
        encoder: Stack,
        decoder: Stack,
        head: nn.Module,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.encoder, self.decoder = encoder, decoder
        self.head = head
        self.tie()

    def tie(self) -> None:
        """Tie the weights that `spec.tied` lists; call again after parameters are replaced."""
        if "source" in self.spec.tied:
            tie_weights(self.src_embed, self.tgt_embed, "the target")
        if "head" in self.spec.tied:
            tie_weights(self.tgt_embed, self.head, "the head")

    def forward(
        self,
        src: Tensor,
        tgt: Tensor | None = None,
        src_mask: MaskLike = None,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        **options: Unpack[EncoderDecoderOptions],
    ) -> Any:
        """src (B, S), tgt (B, T) -> the head's output: logits (B, T, V) for a language model.

        A model with object queries needs no target: images (B, C, height, width) -> classes and boxes.
        A mask is bool, True = may attend: (B, S), (B, T, S) or (B, 1|H, T, S).
        Without masks, padding is inferred from the pad id; the memory mask has the padding and segments of
        the source.
        """
        x, context = self.hidden_states(src, tgt, src_mask, tgt_mask, memory_mask, **options)
        return self.head(x, context, obs=scope(options.get("obs"), "head"))

    def hidden_states(
        self,
        src: Tensor,
        tgt: Tensor | None = None,
        src_mask: MaskLike = None,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        *,
        src_positions: Tensor | None = None,
        tgt_positions: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        if isinstance(self.tgt_embed, ObjectQueries):
            return self._query_states(src, pixel_mask, kernel=kernel, obs=obs)
        if tgt is None:
            raise MissingValueError("tgt", "by a model without object queries")
        inferred_mask = infer_mask(self.src_embed, src, src_mask, "src_mask")
        if src.shape[0] != tgt.shape[0]:
            raise ShapeError("the target", tgt.shape, f"as many rows as the source has, {src.shape[0]}")
        memory = self.encode(src, inferred_mask, positions=src_positions, kernel=kernel, obs=obs)
        if memory_mask is None:
            memory_mask = cross_mask(inferred_mask, tgt_mask)
        x, padding = self._decode(
            tgt, memory, tgt_mask, memory_mask, positions=tgt_positions, kernel=kernel, obs=obs
        )
        return x, HeadContext(ids=src, padding=padding)

    def _query_states(
        self, images: Tensor, pixel_mask: Tensor | None, *, kernel: Kernel, obs: Observer | None
    ) -> tuple[Tensor, HeadContext]:
        """Decode object queries: their last hidden states (B, Q, D), and in training those of all layers."""
        assert isinstance(self.tgt_embed, ObjectQueries)
        source: EmbeddingOutput = self.src_embed(images, pixel_mask=pixel_mask, obs=scope(obs, "src_embed"))
        mask, positions = Mask(padding=source.padding), source.position_embeddings
        memory = self.encoder(
            source.x,
            mask=mask,
            grid=source.grid,
            position_embeddings=positions,
            kernel=kernel,
            obs=scope(obs, "encoder"),
        )
        queries = self.tgt_embed(images.shape[0], obs=scope(obs, "tgt_embed"))
        states: list[LayerOutput] = []
        x = self.decoder(
            queries.x,
            memory,
            memory_mask=mask,
            position_embeddings=queries.position_embeddings,
            memory_position_embeddings=positions,
            states=states if self.training else None,
            kernel=kernel,
            obs=scope(obs, "decoder"),
        )
        norm = self.decoder.final_norm
        return x, HeadContext(layers=tuple(y if norm is None else norm(y) for y, _ in states[1:-1]))

    def encode(
        self,
        src: Tensor,
        src_mask: MaskLike = None,
        *,
        positions: Tensor | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> Tensor:
        """Encode src (B, S) -> memory (B, S, D)."""
        mask = infer_mask(self.src_embed, src, src_mask, "src_mask")
        if positions is None and isinstance(self.src_embed, TokenInput):
            positions = position_ids(mask, 0, src, "src_mask")
        x = embed_inputs(self.src_embed, src, positions, 0, scope(obs, "src_embed")).x
        memory: Tensor = self.encoder(
            x, mask=mask, positions=positions, kernel=kernel, obs=scope(obs, "encoder")
        )
        return memory

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        *,
        ids: Tensor | None = None,
        **options: Unpack[DecoderOptions],
    ) -> Any:
        """Decode tgt (B, T) with memory (B, S, D) -> the head's output; continues from `cache`, if any.

        With a cache, a tgt_mask (B, keys) covers all keys so far, cached ones included.
        """
        x, padding = self._decode(tgt, memory, tgt_mask, memory_mask, **options)
        return self.head(x, HeadContext(ids=ids, padding=padding), obs=scope(options.get("obs"), "head"))

    def _decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: MaskLike,
        memory_mask: MaskLike,
        *,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the last hidden states (B, T, D), and a mask of the real target positions."""
        start = 0 if cache is None else cache.length
        fresh = isinstance(start, int) and start == 0
        mask = infer_mask(self.tgt_embed, tgt, tgt_mask, "tgt_mask", has_past=not fresh)
        if tgt_mask is None and mask.padding is not None:
            # the first token starts the sequence, even if it is the pad token
            mask = replace(mask, padding=torch.cat((tgt[:, :1] == tgt[:, :1], mask.padding[:, 1:]), 1))
        if positions is None:
            positions = position_ids(mask, start, tgt, "tgt_mask")
        padding = None if mask.padding is None else last_columns(mask.padding, start, tgt.shape[1])
        x = embed_inputs(self.tgt_embed, tgt, positions, start, scope(obs, "tgt_embed")).x
        x = self.decoder(
            x,
            memory,
            mask=mask,
            memory_mask=memory_mask,
            positions=positions,
            cache=cache,
            kernel=kernel,
            obs=scope(obs, "decoder"),
        )
        return x, padding


class EncoderOnly(nn.Module):
    """Encoder-only model: encode a sequence, an image or a time series, and apply the head.

    embed: input embedding

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

    def forward(self, inputs: Tensor, mask: MaskLike = None, **options: Unpack[EncoderOptions]) -> Any:
        """ids (B, T), images (B, C, height, width) or series (B, time, channels) -> the head's output.

        `mask` is bool, True = may attend: (B, S), (B, T, S) or (B, 1|H, T, S); without it, padding is
        inferred from the pad id.
        """
        x, context = self.hidden_states(inputs, mask, **options)
        return self.head(x, context, obs=scope(options.get("obs"), "head"))

    def hidden_states(
        self,
        inputs: Tensor,
        mask: MaskLike = None,
        *,
        types: Tensor | None = None,
        observed: Tensor | None = None,
        masked_patches: Tensor | None = None,
        covariates: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        positions: Tensor | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        full_mask = infer_mask(self.embed, inputs, mask, "mask")
        tokens = isinstance(self.embed, TokenInput)
        if tokens and positions is None:
            positions = position_ids(full_mask, 0, inputs, "mask")
        options = {"types": types, "observed": observed, "masked_patches": masked_patches}
        options |= {"covariates": covariates, "pixel_mask": pixel_mask}
        options = {name: value for name, value in options.items() if value is not None}
        embedded = embed_inputs(self.embed, inputs, positions, 0, scope(obs, "embed"), **options)
        states: list[LayerOutput] | None = [] if isinstance(self.head, BackboneHead) else None
        x = self.encoder(
            embedded.x,
            mask=full_mask,
            positions=positions,
            kernel=kernel,
            grid=embedded.grid,
            layer_positions=embedded.layer_positions,
            states=states,
            obs=scope(obs, "encoder"),
        )
        context = HeadContext(
            ids=inputs if tokens else None,
            padding=full_mask.padding,
            loc=embedded.loc,
            scale=embedded.scale,
            grid=embedded.grid and self.encoder.output_grid(embedded.grid),
            states=tuple(states or ()),
            images=None if embedded.grid is None else inputs,
        )
        return x, context


class DecoderOnly(GenerativeModel):
    """Decoder-only (causal) model: with a language-model head, logits (B, T, V) for each next token.

    embed: input embedding

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

    def tie(self) -> None:
        """Tie the head to the token embedding if `spec.tied` lists it."""
        if "head" in self.spec.tied:
            tie_weights(self.embed, self.head, "the head")

    def forward(self, ids: Tensor, mask: MaskLike = None, **options: Unpack[DecoderOptions]) -> Any:
        """ids (B, T) -> the head's output: logits (B, T, V) for a language model.

        A mask is bool, True = may attend: (B, S), (B, T, S) or (B, 1|H, T, S); with a cache, its keys include
        the cached ones. Without a mask, padding is inferred from the pad id.
        """
        x, context = self.hidden_states(ids, mask, **options)
        return self.head(x, context, obs=scope(options.get("obs"), "head"))

    def hidden_states(
        self,
        ids: Tensor,
        mask: MaskLike = None,
        *,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Return the last hidden states (B, T, D) and the context for the head; see `forward`."""
        start = 0 if cache is None else cache.length
        fresh = isinstance(start, int) and start == 0
        full_mask = infer_mask(self.embed, ids, mask, "mask", has_past=not fresh)
        if positions is None:
            positions = position_ids(full_mask, start, ids, "mask")
        padding = None if full_mask.padding is None else last_columns(full_mask.padding, start, ids.shape[1])
        x = embed_inputs(self.embed, ids, positions, start, scope(obs, "embed")).x
        x = self.decoder(
            x, mask=full_mask, positions=positions, cache=cache, kernel=kernel, obs=scope(obs, "decoder")
        )
        return x, HeadContext(ids=ids, padding=padding)


class TwoTowerOutput(NamedTuple):
    """Embeddings of images (B, E) and texts (N, E), of length 1, and their similarity logits both ways."""

    image_embeds: Tensor
    text_embeds: Tensor
    logits_per_image: Tensor  # (B, N)
    logits_per_text: Tensor  # (N, B)


class TwoTower(nn.Module):
    """An image encoder and a text encoder; the similarity of their embeddings has a trained temperature.

    image, text: the towers, encoder-only models whose head gives one vector per input
    head: computes the similarity

    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn)
    >>> stack = specs.StackSpec(d_model=16, num_layers=1, block=block)
    >>> patches = specs.ImagePatchesSpec(image_size=(16, 16), patch_size=(4, 4))
    >>> image, text = (specs.EncoderOnlySpec(input=read, encoder=stack, head=specs.ProjectionSpec())
    ...                for read in (patches, specs.TokensSpec(vocab_size=50)))
    >>> model = build_model(specs.TwoTowerSpec(image=image, text=text))
    >>> model(torch.randn(2, 3, 16, 16), torch.ones(4, 7).long()).logits_per_image.shape
    torch.Size([2, 4])
    """

    spec: specs.TwoTowerSpec

    def __init__(
        self, spec: specs.TwoTowerSpec, *, image: EncoderOnly, text: EncoderOnly, head: SimilarityHead
    ) -> None:
        super().__init__()
        self.spec = spec
        self.image, self.text, self.head = image, text, head

    def tie(self) -> None:
        """Tie the weights of each tower; call again after parameters are replaced."""
        self.image.tie()
        self.text.tie()

    def forward(
        self, images: Tensor, ids: Tensor, mask: MaskLike = None, **options: Unpack[ForwardOptions]
    ) -> TwoTowerOutput:
        """Compare images (B, C, height, width) with texts (N, T). mask: bool (N, T), True = real token."""
        image_embeds = self.embed_images(images, **options)
        text_embeds = self.embed_texts(ids, mask, **options)
        logits = self.head(image_embeds, text_embeds, obs=scope(options.get("obs"), "head"))
        return TwoTowerOutput(image_embeds, text_embeds, logits, logits.T)

    def embed_images(self, images: Tensor, **options: Unpack[ForwardOptions]) -> Tensor:
        """Embed images (B, C, height, width) -> (B, E), of length 1."""
        return self._embed(self.image, "image", images, None, options)

    def embed_texts(self, ids: Tensor, mask: MaskLike = None, **options: Unpack[ForwardOptions]) -> Tensor:
        """Embed texts, ids (N, T) -> (N, E), of length 1."""
        return self._embed(self.text, "text", ids, mask, options)

    def _embed(
        self, tower: EncoderOnly, name: str, inputs: Tensor, mask: MaskLike, options: ForwardOptions
    ) -> Tensor:
        options = {**options, "obs": scope(options.get("obs"), name)}
        output: PooledOutput = tower(inputs, mask, **options)
        return F.normalize(output.pooled, dim=-1)


AnyModel = (
    EncoderDecoder
    | EncoderOnly
    | DecoderOnly
    | TwoTower
    | PromptedSegmenter
    | EncoderMaskClassifier
    | MaskClassifier
)
