"""Embed texts or images as vectors, and search for the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import pool
from glassformer.data.image_files import is_image_name
from glassformer.errors import EmptyInputError, GlassformerError, UnknownNameError, UnsupportedError
from glassformer.tasks.base import (
    NO_CALLBACKS,
    Callbacks,
    Task,
    TokenBatch,
    check_at_least,
    check_finite,
    chunks,
    collate,
    encoder_model,
)
from glassformer.tasks.encoder import EncoderTask, EncoderTaskOptions

QUERIES_TOGETHER = 256  # compared with all candidates at once
PROMPTS_FILE = "config_sentence_transformers.json"


def embedding_size(bundle: Bundle) -> int:
    """Return the embedding dimension D of a model."""
    spec: Any = bundle.spec
    if isinstance(spec, specs.TwoTowerSpec):
        return spec.embedding_dim
    if isinstance(spec.head, specs.ProjectionSpec) and spec.head.projection_dim:
        return spec.head.projection_dim
    stack = spec.decoder if isinstance(spec, specs.DecoderOnlySpec) else spec.encoder
    size: int = stack.d_model
    return size


class Embedder(EncoderTask[Tensor, Tensor]):
    """Embed texts or image files as vectors (D,), float32, on the CPU; all NaN if rejected or skipped.

    A sentence encoder pools, normalizes, lowercases and truncates as configured in its folder. A model with
    an image and a text tower embeds both as vectors of length 1: a path, and a text that ends like the name
    of an image file, are images. Any other model returns the mean of its last hidden states, or the hidden
    state of an image's class token.
    prompt: name of a prompt in the folder's config; its text is prepended to each input.
    """

    def __init__(
        self, bundle: Bundle, *, prompt: str | None = None, **options: Unpack[EncoderTaskOptions]
    ) -> None:
        self.towers: dict[str, Embedder] = {}
        if isinstance(bundle.spec, specs.TwoTowerSpec):
            self.bundle = bundle
            self.towers = {
                "image": Embedder(bundle.tower("image"), **options),
                "text": Embedder(bundle.tower("text"), prompt=prompt, **options),
            }
            return
        super().__init__(bundle, **options)
        if prompt is not None and self.images is not None:
            raise UnsupportedError(bundle.display_name, "a prompt", hint="it reads images")
        self.prompt = prompt_text(bundle, prompt)
        configs = (bundle.files[name] for name in bundle.files if name.startswith("sentence_"))
        self.config: dict[str, Any] = next(filter(None, configs), {})  # truncation and lowercasing

    @property
    def max_tokens(self) -> int:
        return min(super().max_tokens, self.config.get("max_seq_length") or 1 << 30)

    def prepare_text(self, text: str) -> str:
        return (self.prompt + text).lower() if self.config.get("do_lower_case") else self.prompt + text

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Tensor]:
        if not self.towers:
            yield from super().run(inputs, callbacks)
            return
        first = 1
        for chunk in chunks(inputs, self.read_ahead):
            vectors: dict[int, Tensor] = {}
            for kind, tower in self.towers.items():
                rows = [n for n, item in enumerate(chunk) if (kind == "image") == is_image_input(item)]
                items = [chunk[n] for n in rows]
                numbered = _renumber(callbacks, kind, [first + n for n in rows])
                vectors |= zip(rows, tower.run(items, numbered), strict=True)
            yield from (vectors[n] for n in range(len(chunk)))
            first += len(chunk)

    def forward(self, items: Sequence[Any]) -> Sequence[Tensor]:
        if self.images is None:
            vectors = text_vectors(self.bundle, collate(self.bundle, items))
        elif projects(self.bundle):
            vectors = F.normalize(self.model(self.images.collate(items)).pooled.float(), dim=-1)
        else:
            x: Tensor = self.model.hidden_states(self.images.collate(items))[0]
            vectors = x[:, 0] if self.images.read.prefix else x.mean(1)
        return list(check_finite(self.bundle, vectors.float().cpu()))

    def postprocess(self, input: Any, item: Any, raw: Tensor | None) -> Tensor:
        return torch.full((embedding_size(self.bundle),), torch.nan) if raw is None else raw


def is_image_input(item: object) -> bool:
    """Whether an input of a model with two towers is an image: anything but a text.

    >>> is_image_input("a cat"), is_image_input("cat.jpg"), is_image_input(b"...")
    (False, True, True)
    """
    return not isinstance(item, str) or ("\n" not in item and is_image_name(Path(item)))


def text_bundle(bundle: Bundle) -> Bundle:
    """Return the text tower of a model with two towers; any other model as it is."""
    return bundle.tower("text") if isinstance(bundle.spec, specs.TwoTowerSpec) else bundle


def projects(bundle: Bundle) -> bool:
    """Whether the head of a model gives one vector per input."""
    return isinstance(getattr(bundle.spec, "head", None), specs.ProjectionSpec | specs.AttentionPoolSpec)


def _renumber(callbacks: Callbacks, kind: str, numbers: Sequence[int]) -> Callbacks:
    """Return callbacks for some of the inputs. numbers: their numbers among all inputs."""

    def reject(number: int, reason: GlassformerError) -> None:
        callbacks.reject(kind, numbers[number - 1], reason)

    return replace(callbacks, on_reject=reject)


def prompt_text(bundle: Bundle, prompt: str | None) -> str:
    """Return the text to prepend to each input: the folder's prompt of this name, or its default."""
    config: dict[str, Any] = bundle.files.get(PROMPTS_FILE) or {}
    prompts: dict[str, str | None] = config.get("prompts") or {}
    name = config.get("default_prompt_name") if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        raise UnknownNameError("prompt", name, prompts)
    return prompts[name] or ""


def text_vectors(bundle: Bundle, batch: TokenBatch) -> Tensor:
    """Return the vectors (B, D) of a batch of texts."""
    model = encoder_model(bundle)
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderDecoderSpec):
        return pool(model.encode(batch.ids, batch.mask), batch.mask, "mean")
    if projects(bundle):
        output = model(batch.ids, batch.mask, **batch.kwargs())
        return F.normalize(output.pooled.float(), dim=-1)
    if isinstance(spec.head, specs.EmbedSpec):
        pooled: Tensor = model(batch.ids, batch.mask, **batch.kwargs())
        return pooled
    x, _ = model.hidden_states(batch.ids, batch.mask, **batch.kwargs())
    return pool(x, batch.mask, "mean")


@dataclass(frozen=True, kw_only=True)
class Match:
    """A candidate, its index, and its cosine similarity to the query. text: empty for pixels and bytes."""

    index: int
    text: str
    score: float


class SimilaritySearch(Task[Any, list[Match]]):
    """Rank candidates (texts or image files) by cosine similarity to each query, the nearest first.

    top: number of candidates to return; None: all. on_candidates: callbacks for embedding the candidates,
    which happens in the constructor; rejected candidates are never returned. Memory use is one vector per
    candidate, independent of the number of queries.
    """

    def __init__(
        self,
        bundle: Bundle,
        candidates: Iterable[Any],
        *,
        top: int | None = None,
        on_candidates: Callbacks = NO_CALLBACKS,
        **options: Unpack[EncoderTaskOptions],
    ) -> None:
        check_at_least("top", top)
        self.bundle, self.top = bundle, top
        self.embedder = Embedder(bundle, **options)
        texts = [candidates] if self.is_single(candidates) else list(candidates)
        if not texts:
            raise EmptyInputError("list of candidates")
        vectors = torch.stack(list(self.embedder.run(texts, on_candidates)))  # (N, D)
        self.indices = (~vectors.isnan().all(-1)).nonzero()[:, 0].tolist()
        if not self.indices:
            raise EmptyInputError("list of candidates that can be embedded")
        named = (texts[n] if isinstance(texts[n], str | PathLike) else "" for n in self.indices)
        self.texts = list(map(str, named))
        self.vectors = F.normalize(vectors[self.indices], dim=-1)

    def is_single(self, inputs: Any) -> bool:
        return self.embedder.is_single(inputs)

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[list[Match]]:
        for queries in chunks(self.embedder.run(inputs, callbacks), QUERIES_TOGETHER):
            for row in rank_vectors(F.normalize(torch.stack(queries), dim=-1), self.vectors, self.top):
                yield [
                    Match(index=self.indices[n], text=self.texts[n], score=score)
                    for n, score in row
                    if score == score  # NaN: the query was rejected
                ]


def rank_vectors(
    queries: Tensor, candidates: Tensor, top: int | None = None
) -> list[list[tuple[int, float]]]:
    """Return the index and cosine similarity of the nearest candidates (N, D) for each query (B, D).

    queries, candidates: vectors of length 1.

    >>> rank_vectors(torch.tensor([[0.0, 1.0]]), torch.eye(2), top=1)
    [[(1, 1.0)]]
    """
    best, order = (queries @ candidates.T).sort(dim=-1, descending=True, stable=True)
    rows = zip(order[:, :top].tolist(), best[:, :top].tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]
