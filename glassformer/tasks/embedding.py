"""Embed texts or images as vectors, and search for the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.heads import pool
from glassformer.core.inputs import ModelInputs, TextInputs
from glassformer.core.masks import Mask
from glassformer.errors import EmptyInputError, UnknownNameError, UnsupportedError
from glassformer.processors.base import ForwardInputs
from glassformer.processors.text import TextProcessor
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, Task, check_at_least, check_finite, chunks
from glassformer.tasks.declarations.similar import Match
from glassformer.tasks.encoder import EncoderTask, EncoderTaskOptions
from glassformer.tokenization import Encoded

QUERIES_TOGETHER = 256  # compared with all candidates at once
PROMPTS_FILE = "config_sentence_transformers.json"


def embedding_size(bundle: Bundle) -> int:
    """Return the embedding dimension D of a model."""
    spec: Any = bundle.spec
    if spec.children():
        return int(spec.embedding_dim)
    if size := getattr(spec.head, "projection_dim", None):
        return int(size)
    return int(next(iter(spec.stacks().values())).d_model)


class Embedder(EncoderTask[Tensor]):
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
        if bundle.spec.children():
            from glassformer.processors.image_text import ImageTextProcessor

            image = Embedder(bundle.tower("image"), **options)
            text = Embedder(bundle.tower("text"), prompt=prompt, **options)
            self.bundle, self.budget, self.read_ahead = bundle, image.budget, image.read_ahead
            self.towers = {"image": image, "text": text}
            self.processor = ImageTextProcessor(image.processor, text.processor)
            return
        prefix = prompt_text(bundle, prompt)
        configs = (bundle.files[name] for name in bundle.files if name.startswith("sentence_"))
        config: dict[str, Any] = next(filter(None, configs), {})  # truncation and lowercasing
        lowercase = bool(config.get("do_lower_case"))
        super().__init__(
            bundle,
            max_tokens=config.get("max_seq_length"),
            prepare=lambda text: (prefix + text).lower() if lowercase else prefix + text,
            **options,
        )
        if prompt is not None and not isinstance(self.processor, TextProcessor):
            raise UnsupportedError(bundle.display_name, "a prompt", hint="it reads images")

    def input_name(self, input: Any) -> str:
        if not self.towers:
            return super().input_name(input)
        from glassformer.processors.image_text import is_image_input

        return "image" if is_image_input(input) else "text"

    def forward(self, items: Sequence[Any]) -> Sequence[Tensor]:
        if self.towers:
            return self.towers["text" if isinstance(items[0], Encoded) else "image"].forward(items)
        vectors = self._vectors(self.processor.collate(items))
        return list(check_finite(self.bundle, vectors.float().cpu()))

    def _vectors(self, inputs: ForwardInputs) -> Tensor:
        """Return the vectors (B, D) of a batch."""
        spec: Any = self.bundle.spec
        if spec.architecture == "encoder-decoder":
            return pool(self.model.encode(inputs["src"]), padding_of(inputs["src"]), "mean")
        if projects(self.bundle):
            return F.normalize(self.model(**inputs).pooled.float(), dim=-1)
        if spec.yields == "embedding":
            pooled: Tensor = self.model(**inputs)
            return pooled
        x, _ = self.model.hidden_states(**inputs)
        has_class_token = getattr(spec.input, "prefix", 0) > 0
        return pool(x, padding_of(inputs["inputs"]), "first" if has_class_token else "mean")

    def postprocess(self, input: Any, item: Any, raw: Tensor | None) -> Tensor:
        return torch.full((embedding_size(self.bundle),), torch.nan) if raw is None else raw


def padding_of(inputs: ModelInputs) -> Tensor | None:
    """Return which tokens of a batch are real (B, T); None if all are, as for images."""
    mask = inputs.mask if isinstance(inputs, TextInputs) else None
    return mask.padding if isinstance(mask, Mask) else None


def text_bundle(bundle: Bundle) -> Bundle:
    """Return the text tower of a model with two towers; any other model as it is."""
    return bundle.tower("text") if bundle.spec.children() else bundle


def projects(bundle: Bundle) -> bool:
    """Whether the head of a model gives one vector per input."""
    return bundle.spec.yields == "vector"


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
