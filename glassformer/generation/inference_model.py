"""A model prepared for inference: prefill a source or a prompt, then decode step by step.

B inputs, W beams, S source positions, P prompt positions, N rows, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import apply_softcap
from glassformer.core.embeddings import TokenInput, check_token_ids
from glassformer.core.heads import HeadContext, VocabularyHead
from glassformer.core.inputs import (
    Memory,
    ModelInputs,
    TextInputs,
    embed_inputs,
    embed_tokens,
    tensor_of,
)
from glassformer.core.masks import Mask
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.core.positions import count_positions
from glassformer.core.stack import Stack
from glassformer.errors import EmptyInputError, MissingValueError, ShapeError, UnsupportedError
from glassformer.generation.prompt import EmbeddingSpan, Prompt
from glassformer.generation.step_decoder import (
    GRAPH_WARMUP_STEPS,
    PrefillResult,
    SupportsPrefill,
    decoder_start_ids,
)
from glassformer.inference.attention import UnpadIndex, run_unpadded
from glassformer.inference.kv_cache import BeamKVCache, CrossKVCache, layer_contexts
from glassformer.inference.linear import WeightFormat, choose_linear
from glassformer.inference.prepare import (
    LinearFactory,
    WeightFingerprint,
    fused_copy,
    packed_copy,
    residual_dtype,
)

if TYPE_CHECKING:
    from glassformer.core.backend import FusedLinear
    from glassformer.generation.cuda_graph_decoder import CapturedGraph
    from glassformer.inference.gpu.kv_cache import TritonBeamCache


def prepare_for_inference(model: nn.Module, weights: WeightFormat = "own") -> nn.Module:
    """Prepare a model for inference: pack its weights in the layout that is fastest on this device.

    Packing takes time and, on a CPU, memory for a second copy of the weights (a third if single rows are
    decoded by one thread), so it pays off for a model that generates more than once. If weights change or
    move afterwards, they are packed again. weights: "int8" quantizes them to eight bits. A model with its own
    `prefill` is returned unchanged.
    """
    if not isinstance(model, EncoderDecoder | DecoderOnly):
        if weights != "own":
            raise UnsupportedError(f"a {type(model).__name__}", f"{weights} weights")
        return model
    return InferenceModel(model, weights)


def prefill(
    model: nn.Module,
    inputs: ModelInputs | Memory,
    mask: Tensor | None,
    *,
    start_ids: Sequence[int] | int | None,
    capacity: int,
    prompts: Sequence[Prompt] = (),
) -> PrefillResult:
    """Prefill sources or prompts (B, S), padded on either side.

    inputs: token ids; for a model whose source is not text, the input of its `encode`; or a memory, the
    result of encoding a source before.
    mask (B, S): True for real tokens.
    start_ids: first tokens of the target of an encoder-decoder (default: the model's start token).
    capacity: maximum number of tokens to generate.
    prompts: the prompt of each row, if any has embeddings or position ids.
    """
    for prompt in prompts:
        prompt.check(model)
    source = getattr(model, "model", model)
    embed = source.src_embed if isinstance(source, EncoderDecoder) else None
    if not isinstance(inputs, Memory) and (embed is None or isinstance(embed, TokenInput)):
        ids = tensor_of(inputs)
        check_token_ids(ids)
        if mask is None or mask.shape != ids.shape or mask.dtype != torch.bool:
            shape = () if mask is None else mask.shape
            raise ShapeError("mask", shape, f"a boolean mask of the inputs' shape {tuple(ids.shape)}")
    starts = decoder_start_ids(model, start_ids)
    if isinstance(model, EncoderDecoder | DecoderOnly):
        model = InferenceModel(model, None)
    if isinstance(model, InferenceModel):
        return model.prefill(inputs, mask, start_ids=starts, capacity=capacity, prompts=prompts)
    if isinstance(model, SupportsPrefill):
        return model.prefill(inputs, mask, start_ids=starts, capacity=capacity)  # type: ignore[arg-type]
    raise UnsupportedError(f"a {type(model).__name__}", "text generation", hint="use a model with a decoder")


class InferenceModel(nn.Module):
    """A model whose stacks are prepared for inference; see `prepare_for_inference`.

    Any head with a `vocab_size` can generate; the projection of a `VocabularyHead` is packed as well.
    """

    def __init__(
        self, model: EncoderDecoder | DecoderOnly, weights: WeightFormat | LinearFactory | None
    ) -> None:
        """weights: "own", "int8", or a function that creates linear layers (None: the model's modules)."""
        super().__init__()
        if not hasattr(model.spec.head, "vocab_size"):
            raise UnsupportedError(
                f"a model with a {model.spec.head.kind} head",
                "text generation",
                hint="load it as a language model",
            )
        self.model, self.weights = model, weights
        self._prepare()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.weights)  # a copy packs its own weights

    @property
    def spec(self) -> specs.EncoderDecoderSpec | specs.DecoderOnlySpec:
        return self.model.spec

    @property
    def vocab_size(self) -> int:
        return int(self.spec.head.vocab_size)  # type: ignore[attr-defined]

    def _prepare(self) -> None:
        model, make = self.model, self.weights
        parameter = next(model.parameters())
        if isinstance(make, str):
            make = choose_linear(make, parameter)
        encoder: Any = None
        unpads = False
        if isinstance(model, EncoderDecoder):
            own = model.encoder
            # stages need the rows and columns of the patches, and cross-attention needs its memory
            unpads = isinstance(own, Stack) and not own.cross_attentions
            encoder = fused_copy(own, make) if unpads else packed_copy(own, make)  # type: ignore[arg-type]
        head, vocabulary = model.head, None
        if make is not None and isinstance(head, VocabularyHead):
            vocabulary = make([(head.weight, head.bias)])
        # bypass nn.Module.__setattr__: submodules would be slower to look up
        vars(self).update(
            encoder=encoder,
            unpads=unpads,
            decoder=fused_copy(model.decoder, make),
            vocabulary=vocabulary,
        )
        self.dtype = residual_dtype(parameter)  # dtype of the residual stream
        # whether steps can be captured in a CUDA graph: the kernels support the model and the device
        self.captures = getattr(make, "supports_cuda_graphs", False) and not torch.is_autocast_enabled("cuda")
        if self.captures:
            from glassformer.inference.gpu.kv_cache import supports

            self.captures = supports(model.decoder)
        self.captured: CapturedGraph | None = None  # the last decoder's graph, for reuse
        self._fingerprint = WeightFingerprint(model)

    if TYPE_CHECKING:
        encoder: Any
        unpads: bool  # whether the encoder runs on the real positions only
        decoder: Stack
        vocabulary: FusedLinear | None

    def refresh(self) -> None:
        """Pack the weights again if they have changed or moved."""
        if not self._fingerprint.matches(self.model):
            self._prepare()

    def embeddings(
        self,
        embed: nn.Module,
        ids: Tensor,
        positions: Tensor | None,
        start: int = 0,
        spans: Sequence[EmbeddingSpan] = (),
    ) -> Tensor:
        """Embed ids (B, T) at these positions, by default from `start` on -> (B, T, D).

        spans: replace token embeddings; their offsets count the ids of all rows. Only for start 0.
        """
        if isinstance(embed, TokenInput):
            if spans:
                x = embed.token_vectors(ids)
                for span in spans:
                    x.view(-1, x.shape[-1])[span.offset : span.end] = span.embeddings.to(x)
                return embed.embed_vectors(x, positions=positions).x.to(self.dtype)
            return embed_tokens(embed, TextInputs(ids, positions=positions), start).x.to(self.dtype)
        embedded: Tensor = embed(ids).x
        return embedded.to(self.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """Apply the head to the last hidden states (N, D) -> logits (N, V)."""
        head: Any = self.model.head
        if self.vocabulary is not None:
            return apply_softcap(self.vocabulary(head.transform(x)), head.softcap)
        scores: Tensor = head(x[:, None], HeadContext())[:, 0]
        return scores

    def prefill(
        self,
        inputs: Any,
        mask: Tensor | None,
        *,
        start_ids: Sequence[int],
        capacity: int,
        prompts: Sequence[Prompt] = (),
    ) -> PrefillResult:
        """Prefill sources or prompts (B, S); see the function `prefill`."""
        self.refresh()
        if isinstance(self.model, EncoderDecoder):
            if not start_ids:
                raise MissingValueError("start_ids", "to start the decoder")
            return self._prefill_source(self.model, inputs, mask, start_ids, capacity)
        if start_ids:
            raise UnsupportedError("a decoder-only model", "start_ids", hint="put them into the prompt")
        assert mask is not None
        return self._prefill_prompt(self.model, inputs, mask, capacity, prompts)

    def _prefill_source(
        self, model: EncoderDecoder, src: Any, mask: Tensor | None, starts: Sequence[int], capacity: int
    ) -> PrefillResult:
        limit = max_positions(model.tgt_embed)
        # the last generated token is never an input, so it needs no position
        most = None if limit is None else max(0, limit + 1 - len(starts))
        capacity = len(starts) + (capacity if most is None else min(capacity, most))
        memory, rows, mask = self.encode(model, src, mask)
        count = len(mask)
        decoder = self._step_decoder(
            model.tgt_embed, count, capacity, source=(memory, rows, mask), limit=limit, like=memory
        )
        logits = memory.new_empty(0)
        for token in starts:
            logits = decoder.step_once(torch.full((count,), token, device=memory.device))
        return PrefillResult(decoder, logits, most)

    def encode(
        self, model: EncoderDecoder, src: Any, mask: Tensor | None
    ) -> tuple[Tensor, UnpadIndex, Tensor]:
        """Return the memory (N, D) of the real positions, their index, and the mask (B, S) of them."""
        if isinstance(src, Memory) or not self.unpads:
            x, mask = self._memory(model, src, mask)
            rows = UnpadIndex(mask, mask.shape)
            return rows.unpad(x), rows, mask
        positions = None
        if isinstance(model.src_embed, TokenInput):
            assert mask is not None
            if not src.shape[1]:  # a batch of empty sources
                src, mask = src.new_zeros(len(src), 1), mask.new_zeros(len(src), 1)
            positions = None if bool(mask.all()) else count_positions(mask)
        x = self.embeddings(model.src_embed, src, positions)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        rows = UnpadIndex(mask, mask.shape)
        padding = None if rows.index is None else mask
        if padding is not None and positions is None:
            positions = count_positions(mask)
        memory = run_unpadded(self.encoder, x, rows, Mask(padding=padding), positions)
        return model.connect(memory), rows, mask

    def encode_images(self, images: Tensor) -> Tensor:
        """Return the memory (B, S, D) of images (B, C, height, width)."""
        self.refresh()
        assert isinstance(self.model, EncoderDecoder)
        memory, _, mask = self.encode(self.model, images, None)
        return memory.view(*mask.shape, -1)

    def _memory(
        self, model: EncoderDecoder, src: ModelInputs | Memory, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the memory (B, S, D) and the mask (B, S) of its real positions."""
        if isinstance(src, Memory):
            x, padding = src.x, src.mask.padding
        else:
            embedded = embed_inputs(model.src_embed, src, mask)
            states = self.encoder(embedded._replace(x=embedded.x.to(self.dtype)))
            x, padding = model.connect(states), embedded.mask.padding
        return x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else padding

    def _prefill_prompt(
        self, model: DecoderOnly, prompt: Tensor, mask: Tensor, capacity: int, prompts: Sequence[Prompt]
    ) -> PrefillResult:
        lengths = mask.sum(1)  # (B,)
        following = lengths.new_tensor([prompt.next_position for prompt in prompts]) if prompts else lengths
        if prompt.shape[1] == 0 or not bool(lengths.all()):
            raise EmptyInputError("prompt", hint="start it with the BOS token")
        limit = max_positions(model.embed)
        most = None if limit is None else (limit + 1 - following).clamp(min=0)
        capacity = capacity if most is None else min(capacity, int(most.max()))
        longest, padding, positions = int(lengths.max()), None, None
        if not bool(mask.all()):  # move padding to the left
            order = mask.int().argsort(dim=1, stable=True)  # padding first, the rest in order
            prompt = prompt.gather(1, order)[:, -longest:]
            padding = mask = mask.gather(1, order)[:, -longest:]
            positions = count_positions(mask)
        spans: list[EmbeddingSpan] = []
        for row, own in enumerate(prompts):
            spans += own.spans_between(0, len(own), (row + 1) * longest - len(own))
            if own.positions is not None:
                if positions is None:
                    positions = torch.arange(longest, device=prompt.device).repeat(len(prompt), 1)
                positions[row, longest - len(own) :] = own.positions
        x = self.embeddings(model.embed, prompt, positions, spans=spans)
        decoder = self._step_decoder(
            model.embed,
            len(prompt),
            longest + capacity,
            mask=padding,
            positions=following,
            limit=limit,
            like=x,
        )
        rows, store = UnpadIndex(mask, mask.shape), decoder.cache.store_prompt
        x = run_unpadded(self.decoder, x, rows, Mask(causal=True, padding=padding), positions, store)
        last = mask.sum(1).cumsum(0) - 1  # the row of each prompt's last token
        return PrefillResult(decoder, self.logits(x.index_select(0, last)), most)

    def _step_decoder(
        self,
        embed: nn.Module,
        batch: int,
        capacity: int,
        *,
        source: tuple[Tensor, UnpadIndex, Tensor] | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        limit: int | None,
        like: Tensor,
    ) -> CachedDecoder:
        """Create a step decoder with a KV cache of `capacity` positions. like: has the dtype and device."""
        if not self.captures:
            cache = BeamKVCache(self.decoder, batch, capacity, mask)
            cross = None if source is None else CrossKVCache(self.decoder, *source)
            return CachedDecoder(self, embed, cache, cross, positions, limit)
        from glassformer.generation.cuda_graph_decoder import CAPACITY_STRIDE, CUDAGraphDecoder
        from glassformer.inference.gpu.kv_cache import TritonBeamCache, TritonCrossCache

        capacity = -(-(capacity + GRAPH_WARMUP_STEPS) // CAPACITY_STRIDE) * CAPACITY_STRIDE
        if positions is None:
            positions = torch.zeros(batch, dtype=torch.long, device=like.device)
        return CUDAGraphDecoder(
            self,
            embed,
            TritonBeamCache(self.decoder, batch, capacity, mask, like=like),
            None if source is None else TritonCrossCache(self.decoder, *source),
            positions,
            limit,
        )


class CachedDecoder:
    """Run decode steps with a KV cache; implements `StepDecoder` and `BeamDecoder`."""

    def __init__(
        self,
        model: InferenceModel,
        embed: nn.Module,
        cache: BeamKVCache | TritonBeamCache,
        cross: CrossKVCache | None,
        positions: Tensor | None,
        limit: int | None,
    ) -> None:
        """positions (B,): position id of each input's next token, if not the number of filled positions.

        limit: number of positions in the embedding's position table.
        """
        self.model, self.embed, self.cache, self.cross = model, embed, cache, cross
        self.positions, self.limit = positions, limit
        self.layers = layer_contexts(model.decoder, cache, cross)

    def step(self, ids: Tensor) -> Tensor:
        model, cache, positions = self.model, self.cache, self.positions
        if positions is None:
            x = model.embeddings(self.embed, ids[:, None], None, cache.position)[:, 0]
        else:
            if self.limit is not None:
                positions = positions.clamp(max=self.limit - 1)  # finished rows may continue beyond it
            x = model.embeddings(self.embed, ids[:, None], positions.repeat_interleave(cache.width)[:, None])[
                :, 0
            ]
        cache.prepare(positions, x)
        x = model.decoder.finish(model.decoder.run(x, self.layers))
        cache.advance()
        if self.positions is not None:
            self.positions.add_(1)
        return model.logits(x)

    def step_once(self, ids: Tensor) -> Tensor:
        """Run a step without a CUDA graph; here the same as `step`."""
        return self.step(ids)

    def select(self, rows: Tensor) -> None:
        inputs = self.cache.inputs_of(rows)
        self.cache.select(rows)
        if self.cross is not None:
            self.cross.select(inputs)
        self.positions = None if self.positions is None else self.positions.index_select(0, inputs)

    def expand_beams(self, count: int) -> None:
        self.cache.expand_beams(count)

    def reorder(self, rows: Tensor) -> None:
        self.cache.reorder(rows)


def max_positions(embed: nn.Module) -> int | None:
    """Return the number of positions in the embedding's position table; None if it has no table."""
    position = embed.position if isinstance(embed, TokenInput) else None
    return None if position is None else position.max_len
