"""A model made ready to write: its layers laid out for the machine, begun on a source or a prompt.

B sentences or prompts, W beams, S source positions, P prompt positions, N rows, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.embeddings import TokenInput, check_form
from glassformer.core.heads import LanguageModelHead
from glassformer.core.masks import Mask
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.core.positions import places_of
from glassformer.core.reading import first_vectors
from glassformer.errors import GlassformerError
from glassformer.generation.cached_decoder import CachedDecoder
from glassformer.generation.decoder import PrefillResult, SupportsPrefill, decoder_start_ids
from glassformer.generation.request import SPARE
from glassformer.inference.growing import Growing
from glassformer.inference.layers import Layers, MadeOf, stream_dtype
from glassformer.inference.products import Lay, Plain, Weights, laying
from glassformer.inference.source import Source
from glassformer.inference.whole import Rows, last_rows, read_whole

if TYPE_CHECKING:
    from glassformer.generation.graph_decoder import GraphDecoder, LeftOver


def prepare_for_inference(model: nn.Module, weights: Weights = "own") -> nn.Module:
    """The model with its weights laid out as this machine multiplies them fastest.

    That takes a moment and, on a CPU, memory for a second copy of the weights (a third, where one row is
    written by one thread); it is worth it for a model that writes more than once. Where weights change or
    move afterwards they are laid out again. "int8" rounds them to eight bits. A model that knows by itself
    how to write is given back as it is.
    """
    if not isinstance(model, EncoderDecoder | DecoderOnly):
        if weights != "own":
            raise GlassformerError(f"a {type(model).__name__} has no {weights} form; leave it as it is")
        return model
    return InferenceModel(model, weights)


def prefill(
    model: nn.Module, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int] | int | None, capacity: int
) -> PrefillResult:
    """Read a source or a prompt (B, S), of which `mask` (B, S) are real tokens, padded on either side.

    `start_ids` begin the target of a model that has a source (by default the model's own start). At most
    `capacity` tokens can then be written.
    """
    check_form(inputs)
    if mask.shape != inputs.shape or mask.dtype != torch.bool:
        raise GlassformerError(
            f"the mask must be boolean and of the inputs' shape {tuple(inputs.shape)}; "
            f"got {str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
        )
    starts = decoder_start_ids(model, start_ids)
    if isinstance(model, EncoderDecoder | DecoderOnly):
        model = InferenceModel(model, Plain)
    if isinstance(model, SupportsPrefill):
        return model.prefill(inputs, mask, start_ids=starts, capacity=capacity)
    raise GlassformerError(f"a {type(model).__name__} does not write text; give a model with a decoder")


class InferenceModel(nn.Module):
    """A model and its layers in another layout; `begin` reads, and gives the steps that write."""

    def __init__(self, model: EncoderDecoder | DecoderOnly, layout: Weights | Lay) -> None:
        """layout: what to multiply by, as is best on the machine; or one layout for every machine."""
        super().__init__()
        if not isinstance(model.spec.head, specs.LanguageModel):
            raise GlassformerError(
                f"a model whose head is {type(model.spec.head).__name__} writes no text; "
                "load it as a language model"
            )
        self.model, self.layout = model, layout
        self._laid_out()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.layout)  # a copy lays out its own weights

    @property
    def spec(self) -> specs.EncoderDecoder | specs.DecoderOnly:
        return self.model.spec

    def _laid_out(self) -> None:
        model = self.model
        self.lay = laying(self.layout, next(model.parameters()))
        self.encoder = Layers(model.encoder, self.lay) if isinstance(model, EncoderDecoder) else None
        self.decoder = Layers(model.decoder, self.lay)
        head: Any = model.head
        assert isinstance(head, LanguageModelHead)
        self.vocabulary = self.lay([(head.weight, head.bias)])
        self.made_of = MadeOf(model)
        self.left_over: LeftOver | None = None  # the last steps' graph, for the next of the same form

    def refresh(self) -> None:
        """Lay the weights out again where they have changed or moved."""
        if not self.made_of.still(self.model):
            self._laid_out()

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read sources or prompts (B, S)."""
        self.refresh()
        if isinstance(self.model, EncoderDecoder):
            if not start_ids:
                raise GlassformerError("nothing says how the target begins; give start_ids")
            return self._begin_target(self.model, inputs, mask, start_ids, capacity)
        if start_ids:
            raise GlassformerError("a model without a source goes on from its prompt; put start_ids there")
        return self._begin_prompt(self.model, inputs, mask, capacity)

    def _begin_target(
        self, model: EncoderDecoder, src: Tensor, real: Tensor, starts: Sequence[int], capacity: int
    ) -> PrefillResult:
        assert self.encoder is not None
        if not src.shape[1]:  # as a batch of empty sources is
            src, real = src.new_zeros(len(src), 1), real.new_zeros(len(src), 1)
        table = max_positions(model.tgt_embed)
        # the last token written is never read again, so it needs no position
        most = None if table is None else max(0, table + 1 - len(starts))
        capacity = capacity if most is None else min(capacity, most)
        rows, mask = Rows(real), Mask(padding=None if bool(real.all()) else real)
        places = None if mask.padding is None else places_of(real)
        x = self.streamed(first_vectors(model.src_embed, src, places, 0, None).x)
        memory = read_whole(self.encoder, x, rows, mask, places)
        source = (memory, rows, real)
        capacity = len(starts) + capacity
        steps = self._steps(model.tgt_embed, len(src), capacity, source=source, table=table, like=memory)
        logits = memory.new_empty(0)
        for token in starts:
            logits = steps.once(src.new_full((len(src),), token))
        return PrefillResult(steps, logits, most)

    def _begin_prompt(self, model: DecoderOnly, prompt: Tensor, real: Tensor, capacity: int) -> PrefillResult:
        lengths = real.sum(1)  # (B,)
        if prompt.shape[1] == 0 or not bool(lengths.all()):
            raise GlassformerError("a prompt is empty; begin it with the model's start token")
        table = max_positions(model.embed)
        most = None if table is None else (table + 1 - lengths).clamp(min=0)
        capacity = capacity if most is None else min(capacity, int(most.max()))
        longest = int(lengths.max())
        padded = not bool(real.all())
        if padded:  # on the left, so that nothing separates a prompt from what follows
            order = real.int().argsort(dim=1, stable=True)  # padding first, the rest as it was
            prompt = prompt.gather(1, order)[:, -longest:]
            real = real.gather(1, order)[:, -longest:]
        rows, mask = Rows(real), Mask(causal=True, padding=real if padded else None)
        places = places_of(real) if padded else None
        x = self.streamed(first_vectors(model.embed, prompt, places, 0, None).x)
        steps = self._steps(
            model.embed,
            len(prompt),
            longest + capacity,
            real=real if padded else None,
            places=lengths,
            table=table,
            like=x,
        )
        found = read_whole(self.decoder, x, rows, mask, places, steps.growing.keep)
        return PrefillResult(steps, self.logits(found.index_select(0, last_rows(real))), most)

    def _steps(
        self,
        embed: nn.Module,
        sentences: int,
        capacity: int,
        *,
        source: tuple[Tensor, Rows, Tensor] | None = None,
        real: Tensor | None = None,
        places: Tensor | None = None,
        table: int | None,
        like: Tensor,
    ) -> CachedDecoder | GraphDecoder:
        """A decoder with capacity for so many positions; `like` has the dtype and device."""
        stack = self.model.decoder
        if not self._captures():
            return CachedDecoder(
                self,
                embed,
                Growing(stack, sentences, capacity, real),
                source=None if source is None else Source(self.decoder, *source),
                places=places,
                table=table,
            )
        from glassformer.generation.graph_decoder import ROOM, GraphDecoder
        from glassformer.inference.gpu.growing import GrowingOnGpu
        from glassformer.inference.gpu.source import SourceOnGpu

        capacity = -(-(capacity + SPARE) // ROOM) * ROOM
        return GraphDecoder(
            self,
            embed,
            GrowingOnGpu(stack, sentences, capacity, real, like=like),
            source=None if source is None else SourceOnGpu(self.decoder, *source),
            places=torch.zeros(sentences, dtype=torch.long, device=like.device) if places is None else places,
            table=table,
        )

    def _captures(self) -> bool:
        """Whether steps are captured: the layout is a GPU's, and its kernels know the model."""
        if not getattr(self.lay, "captures", False) or torch.is_autocast_enabled("cuda"):
            return False
        from glassformer.inference.gpu.growing import takes

        cross = self.decoder.cross
        return takes(self.model.decoder) and (cross is None or cross.value_dim == cross.head_dim)

    def streamed(self, x: Tensor) -> Tensor:
        return x.to(stream_dtype(next(self.model.parameters())))

    def logits(self, x: Tensor) -> Tensor:
        """The last layer's vectors (N, D) -> (N, V)."""
        head: Any = self.model.head
        return self.vocabulary(head.scaled(x))


def max_positions(embed: nn.Module) -> int | None:
    """How many positions the input's table holds, where it has one."""
    position = embed.position if isinstance(embed, TokenInput) else None
    return None if position is None else position.max_len
