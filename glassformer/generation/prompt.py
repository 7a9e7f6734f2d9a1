"""Prompts of token ids in which embeddings, e.g. of an image, take the place of some tokens.

T tokens of the prompt, n positions of a span, W width of the model's token embeddings.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import TokenInput
from glassformer.core.inputs import Memory, ModelInputs
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import (
    ConflictError,
    ImageTokensError,
    InputTooLongError,
    InvalidValueError,
    ShapeError,
    UnsupportedError,
)


@dataclass(frozen=True, eq=False)
class EmbeddingSpan:
    """Embeddings (n, W) that replace the scaled token embeddings of the ids at offset, ..., offset + n - 1.

    The model adds positions and token types to them, and normalizes them, as those of tokens.

    offset: position of the first embedding in the prompt
    embeddings: (n, W), floating-point
    key: identifies the content, e.g. a hash of the image; without it, the prefix cache shares only the tokens
    before the span
    """

    offset: int
    embeddings: Tensor
    key: Hashable = None

    @property
    def end(self) -> int:
        return self.offset + len(self.embeddings)


@dataclass(frozen=True, eq=False)
class Prompt:
    """What generation starts from.

    ids: (T,), with a placeholder id at each position of a span
    spans: embeddings that replace those of the placeholders, in the order of the prompt
    positions: (T,), position ids of rotary embeddings and position tables, if not 0, 1, ...; generation goes
    on after the largest
    source: what an encoder-decoder reads if it is not text, as a batch of one, e.g. an image or its memory;
    the ids are then placeholders
    negative_ids: the prompt without its condition, (N,), for `guidance_scale`; by default its last token

    >>> import torch
    >>> span = EmbeddingSpan(1, torch.zeros(2, 16))
    >>> len(Prompt(torch.tensor([5, 3, 3, 7]), (span,)))
    4
    """

    ids: Tensor
    spans: tuple[EmbeddingSpan, ...] = ()
    positions: Tensor | None = None
    source: ModelInputs | Memory | None = None
    negative_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name, ids in (("ids", self.ids), ("negative_ids", self.negative_ids)):
            if ids is not None and ids.dim() != 1:
                raise ShapeError(f"Prompt.{name}", ids.shape, "(T,), one id for each position")
        if self.positions is not None and self.positions.shape != self.ids.shape:
            raise ShapeError("Prompt.positions", self.positions.shape, f"that of the ids, ({len(self)},)")
        if self.positions is not None and (self.positions.is_floating_point() or (self.positions < 0).any()):
            raise InvalidValueError("Prompt.positions", self.positions.tolist(), "integers of at least 0")
        end = 0
        for span in self.spans:
            if span.embeddings.dim() != 2 or not span.embeddings.is_floating_point():
                raise ShapeError("EmbeddingSpan.embeddings", span.embeddings.shape, "(n, W), floating-point")
            if not 0 <= span.offset <= span.end <= len(self):
                expected = f"a span of {len(span.embeddings)} positions within the {len(self)} of the prompt"
                raise InvalidValueError("EmbeddingSpan.offset", span.offset, expected)
            if span.offset < end:
                raise ConflictError(("spans", "spans"), "they overlap or are not in the prompt's order")
            end = span.end

    @classmethod
    def of(cls, ids: Prompt | Tensor | Sequence[int]) -> Prompt:
        """Return a prompt of ids alone, or the given prompt."""
        return ids if isinstance(ids, Prompt) else cls(torch.as_tensor(ids, dtype=torch.long))

    @classmethod
    def with_images(
        cls, ids: Sequence[int], images: Sequence[Tensor], image_id: int, keys: Sequence[Hashable] = ()
    ) -> Prompt:
        """Return a prompt with the vectors of images (n, W) at the placeholders `image_id` in the ids.

        keys: identify the contents of the images.

        >>> [span.offset for span in Prompt.with_images([5, 9, 9, 7, 9, 9], torch.zeros(2, 2, 8), 9).spans]
        [1, 4]
        """
        places = [n for n, token in enumerate(ids) if token == image_id]
        size = len(images[0]) if len(images) else 1
        if len(places) != sum(map(len, images)):
            raise ImageTokensError(len(images), size, len(places))
        spans = []
        for number, vectors in enumerate(images):
            own, places = places[: len(vectors)], places[len(vectors) :]
            if own[-1] - own[0] >= len(own):
                raise ImageTokensError(
                    1, len(vectors), next(n for n in range(len(own)) if own[0] + n != own[n])
                )
            spans.append(EmbeddingSpan(own[0], vectors, keys[number] if keys else None))
        return cls(torch.tensor(ids, dtype=torch.long), tuple(spans))

    @classmethod
    def of_source(cls, source: ModelInputs | Memory, length: int) -> Prompt:
        """Return a prompt of a source that is not text. length: number of positions of its memory."""
        return cls(torch.zeros(length, dtype=torch.long), source=source)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_embeddings_or_positions(self) -> bool:
        return bool(self.spans) or self.positions is not None

    @property
    def has_only_ids(self) -> bool:
        return not self.has_embeddings_or_positions and self.negative_ids is None

    @property
    def next_position(self) -> int:
        """The position id of the first generated token."""
        return len(self) if self.positions is None or not len(self) else int(self.positions.max()) + 1

    def check(self, model: nn.Module) -> None:
        """Raise unless the model accepts the spans and positions."""
        model = getattr(model, "model", model)  # of an `InferenceModel`
        reads_source = isinstance(model, EncoderDecoder)
        if self.source is not None and not reads_source:
            raise UnsupportedError(f"a {type(model).__name__}", "a source")
        if self.source is None and reads_source and not isinstance(model.src_embed, TokenInput):
            raise UnsupportedError("this model", "a source of token ids", hint="pass Prompt.of_source")
        if not self.has_embeddings_or_positions:
            return
        embed = model.embed if isinstance(model, DecoderOnly) else None
        if not isinstance(embed, TokenInput):
            raise UnsupportedError(f"a {type(model).__name__}", "embeddings and position ids in a prompt")
        if embed.position is not None and self.next_position > embed.position.max_len:
            raise InputTooLongError(self.next_position, embed.position.max_len, "positions")
        for span in self.spans:
            if span.embeddings.shape[1] != embed.token.embedding_dim:
                expected = f"(n, {embed.token.embedding_dim}), the width of the token embeddings"
                raise ShapeError("EmbeddingSpan.embeddings", span.embeddings.shape, expected)

    def spans_between(self, start: int, end: int, index: int) -> list[EmbeddingSpan]:
        """Return the spans of positions start to end - 1, with offsets that count `start` as `index`."""
        cuts = [(span, max(span.offset, start), min(span.end, end)) for span in self.spans]
        return [
            EmbeddingSpan(index + first - start, span.embeddings[first - span.offset : last - span.offset])
            for span, first, last in cuts
            if first < last
        ]

    def cache_keys(self) -> Sequence[Hashable]:
        """Return what each position holds, for the prefix cache, up to the first span without a key."""
        keys: list[Hashable] = self.ids.tolist()
        for span in self.spans:
            if span.key is None:
                keys = keys[: span.offset]
                break
            keys[span.offset : span.end] = [(span.key, n) for n in range(len(span.embeddings))]
        return keys if self.positions is None else [*zip(keys, self.positions.tolist(), strict=False)]


def pad_prompts(
    prompts: Sequence[Prompt], device: torch.device, pad_id: int = 0
) -> tuple[Tensor, Tensor, Sequence[Prompt]]:
    """Return padded ids (B, S), their mask, and the prompts unless all have only ids."""
    lengths = [len(prompt) for prompt in prompts]
    width = max((1, *lengths))
    ids = torch.full((len(prompts), width), pad_id)
    for row, prompt in enumerate(prompts):
        if prompt.source is not None:
            raise UnsupportedError("generate", "prompts with a source", hint="pass the source itself")
        ids[row, : lengths[row]] = prompt.ids
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    only_ids = all(prompt.has_only_ids for prompt in prompts)
    return ids.to(device), mask.to(device), [] if only_ids else prompts
