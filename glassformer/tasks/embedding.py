"""Embed texts or images as vectors, and find the nearest of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import pool
from glassformer.errors import EmptyInputError, UnknownNameError, UnsupportedError
from glassformer.tasks.base import (
    BATCH_TOKENS,
    NO_CALLBACKS,
    Callbacks,
    Task,
    TextEncoderTask,
    TokenBatch,
    check_at_least,
    check_finite,
    chunks,
    collate,
    encoder_model,
    max_input_tokens,
    token_input,
)
from glassformer.tasks.images import Image, ImageEncoderTask, ProcessedImage, reads_images
from glassformer.tokenization import Encoded

QUERIES_TOGETHER = 256  # compared with all candidates at once
PROMPTS_FILE = "config_sentence_transformers.json"


def embedding_size(bundle: Bundle) -> int:
    """The length D of a model's vectors."""
    spec: Any = bundle.spec
    stack = spec.decoder if isinstance(spec, specs.DecoderOnly) else spec.encoder
    size: int = stack.d_model
    return size


class TextEmbedder(TextEncoderTask[Tensor, Tensor]):
    """Embed texts as vectors (D,), float32, on the CPU; all NaN for a rejected or skipped text.

    A sentence encoder pools, normalizes, lower-cases and truncates as its folder says; any other model gives
    the mean of its last hidden states.
    prompt: the name of one of the folder's prompts, put before each text.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        truncate: bool = False,
        prompt: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        token_input(bundle)
        self.truncate, self.prompt = truncate, prompt_text(bundle, prompt)
        self.config = sentence_encoder_config(bundle)
        super().__init__(bundle, batch_tokens=batch_tokens)

    @property
    def max_tokens(self) -> int:
        return min(max_input_tokens(self.bundle), self.config.get("max_seq_length") or 1 << 30)

    def prepare_text(self, text: str) -> str:
        return (self.prompt + text).lower() if self.config.get("do_lower_case") else self.prompt + text

    def forward(self, items: Sequence[Encoded]) -> Sequence[Tensor]:
        vectors = text_vectors(self.bundle, collate(self.bundle, items))
        return list(check_finite(self.bundle, vectors.float().cpu()))

    def postprocess(self, one: str, item: Encoded | None, raw: Tensor | None) -> Tensor:
        return torch.full((embedding_size(self.bundle),), torch.nan) if raw is None else raw


class ImageEmbedder(ImageEncoderTask[Tensor, Tensor]):
    """Embed image files as vectors (D,): the class token's hidden state, else the mean of all."""

    def forward(self, items: Sequence[ProcessedImage]) -> Sequence[Tensor]:
        x: Tensor = self.model.hidden_states(self.pixel_batch(items))[0]
        pooled = x[:, 0] if self.processor.read.prefix else x.mean(1)
        return list(check_finite(self.bundle, pooled.float().cpu()))

    def postprocess(self, one: Image, item: ProcessedImage | None, raw: Tensor | None) -> Tensor:
        return torch.full((embedding_size(self.bundle),), torch.nan) if raw is None else raw


def embedder(
    bundle: Bundle,
    *,
    truncate: bool = False,
    prompt: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Task[Any, Tensor]:
    """The task that embeds what the model reads: texts or images."""
    if not reads_images(bundle):
        return TextEmbedder(bundle, truncate=truncate, prompt=prompt, batch_tokens=batch_tokens)
    if prompt is not None:
        raise UnsupportedError(bundle.display_name, "a prompt", hint="it reads images")
    return ImageEmbedder(bundle, batch_tokens=batch_tokens)


def sentence_encoder_config(bundle: Bundle) -> dict[str, Any]:
    """How a sentence encoder's folder truncates and lower-cases texts."""
    found = (bundle.files[name] for name in bundle.files if name.startswith("sentence_"))
    return next((dict(config) for config in found if config), {})


def prompt_text(bundle: Bundle, prompt: str | None) -> str:
    """What is put before each text: the folder's prompt of this name, or its default one."""
    config: dict[str, Any] = bundle.files.get(PROMPTS_FILE) or {}
    prompts: dict[str, str | None] = config.get("prompts") or {}
    name = config.get("default_prompt_name") if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        raise UnknownNameError("prompt", name, prompts)
    return prompts[name] or ""


def text_vectors(bundle: Bundle, batch: TokenBatch) -> Tensor:
    """Vectors (B, D) of a batch of texts."""
    model = encoder_model(bundle)
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderDecoder):
        return pool(model.encode(batch.ids, batch.mask), batch.mask, "mean")
    if isinstance(spec.head, specs.Embed):
        pooled: Tensor = model(batch.ids, batch.mask, **batch.kwargs())
        return pooled
    x, _ = model.hidden_states(batch.ids, batch.mask, **batch.kwargs())
    return pool(x, batch.mask, "mean")


@dataclass(frozen=True, kw_only=True)
class Match:
    """A candidate: its index, itself, and its cosine similarity to the query."""

    index: int
    text: str
    score: float


class SimilaritySearch(Task[Any, list[Match]]):
    """Rank candidates (texts or image files) by cosine similarity to each query, the nearest first.

    top: how many candidates, None: all. on_candidates: callbacks for the candidates, which are embedded here;
    a rejected one is never found. Memory holds one vector per candidate, however many queries there are.
    """

    def __init__(
        self,
        bundle: Bundle,
        candidates: Iterable[Any],
        *,
        top: int | None = None,
        truncate: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        on_candidates: Callbacks = NO_CALLBACKS,
    ) -> None:
        check_at_least("top", top)
        self.bundle, self.top = bundle, top
        self.embedder = embedder(bundle, truncate=truncate, batch_tokens=batch_tokens)
        texts = [candidates] if self.is_single(candidates) else list(candidates)
        if not texts:
            raise EmptyInputError("list of candidates")
        vectors = torch.stack(list(self.embedder.run(texts, on_candidates)))  # (N, D)
        self.indices = (~vectors.isnan().all(-1)).nonzero()[:, 0].tolist()
        if not self.indices:
            raise EmptyInputError("list of candidates that can be embedded")
        self.texts = [str(texts[n]) for n in self.indices]
        self.vectors = F.normalize(vectors[self.indices], dim=-1)

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[list[Match]]:
        for queries in chunks(self.embedder.run(inputs, callbacks), QUERIES_TOGETHER):
            scores = F.normalize(torch.stack(queries), dim=-1) @ self.vectors.T  # (B, N)
            best, order = scores.sort(dim=-1, descending=True, stable=True)
            for row, columns in zip(best[:, : self.top].tolist(), order[:, : self.top].tolist(), strict=True):
                yield [
                    Match(index=self.indices[n], text=self.texts[n], score=score)
                    for score, n in zip(row, columns, strict=True)
                    if score == score  # NaN: the query was rejected
                ]
