"""One vector for each text or picture, and which of many lie nearest to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import pool_mean
from glassformer.errors import GlassformerError
from glassformer.tasks.finite import finite
from glassformer.tasks.picturing import Picture, Ready, reads_pictures
from glassformer.tasks.reading import (
    AHEAD,
    TOKENS,
    Tokens,
    asked,
    encoded,
    listed,
    model_of,
    reads,
    room_of,
    stretches,
    together,
    where_sound,
)
from glassformer.tasks.watch import UNWATCHED, Watch
from glassformer.tokenization import Encoded

Maker = Callable[[list[Any], int], list[Tensor | None]]  # inputs from a number on; None: not asked
QUERIES = 256  # compared with all candidates at a time


@dataclass(frozen=True, kw_only=True)
class Match:
    """One of the candidates: its number from 0, itself, and the cosine of the angle to the query."""

    number: int
    text: str
    score: float


def embed(
    bundle: Bundle,
    inputs: Iterable[str] | Iterable[Picture],
    *,
    truncate: bool = False,
    prompt: str | None = None,
    batch_tokens: int = TOKENS,
    ahead: int = AHEAD,
) -> Tensor:
    """A vector for each text or picture file, in their order: (N, D), float32, on the CPU."""
    made = list(
        vectors(bundle, inputs, truncate=truncate, prompt=prompt, batch_tokens=batch_tokens, ahead=ahead)
    )
    return torch.stack(made) if made else torch.empty(0, width_of(bundle))


def vectors(
    bundle: Bundle,
    inputs: Iterable[str] | Iterable[Picture],
    *,
    truncate: bool = False,
    prompt: str | None = None,
    batch_tokens: int = TOKENS,
    ahead: int = AHEAD,
    watch: Watch = UNWATCHED,
) -> Iterator[Tensor]:
    """The vectors (D,) one after the other, float32, on the CPU.

    A sentence encoder pools and scales as its folder says; so are its texts cut, with `truncate`, put into
    small letters, and begun with the prompt of a name. Any other model of texts gives the mean of its last
    layer's vectors, one of pictures the first of them, which stands for the whole. What is refused or left
    has no numbers: all are NaN.
    """
    if reads_pictures(bundle):
        if prompt is not None:
            raise GlassformerError("a prompt is for texts, and this model reads pictures")
        maker = _pictures(bundle, batch_tokens, watch)
    else:
        maker = _texts(bundle, batch_tokens, truncate, prompt, watch)
    return _each(stretches(listed(inputs), ahead), maker, torch.full((width_of(bundle),), torch.nan))


def _each(parts: Iterator[list[Any]], maker: Maker, nothing: Tensor) -> Iterator[Tensor]:
    first = 1
    for part in parts:
        for vector in maker(part, first):
            yield nothing if vector is None else vector
        first += len(part)


def width_of(bundle: Bundle) -> int:
    """How long the vectors are."""
    spec: Any = bundle.spec
    stack = spec.decoder if isinstance(spec, specs.DecoderOnly) else spec.encoder
    width: int = stack.d_model
    return width


def _texts(bundle: Bundle, batch_tokens: int, truncate: bool, prompt: str | None, watch: Watch) -> Maker:
    reads(bundle)
    words = sentence_words(bundle)
    room = min(room_of(bundle), words.get("max_seq_length") or 1 << 30)
    begin = beginning(bundle, prompt)

    def spelt(text: str) -> str:
        return (begin + text).lower() if words.get("do_lower_case") else begin + text

    def make(part: list[str], first: int) -> list[Tensor | None]:
        texts = [None if text is None else spelt(text) for text in asked(part, first=first, watch=watch)]
        made = encoded(bundle, texts, first=first, room=room, truncate=truncate, refuse=watch.refuse)

        @torch.inference_mode()
        def answer(some: list[Encoded]) -> list[Tensor]:
            found = text_vectors(bundle, together(some, bundle))
            return list(finite(bundle, found.float().cpu()))

        return where_sound(made, answer, tokens=batch_tokens, watch=watch)

    return make


def sentence_words(bundle: Bundle) -> dict[str, Any]:
    """How a sentence encoder's folder wants texts cut and spelt."""
    found = (bundle.files[name] for name in bundle.files if name.startswith("sentence_"))
    return next((dict(words) for words in found if words), {})


def beginning(bundle: Bundle, prompt: str | None) -> str:
    """What is put before each text: the named prompt of the folder, or the one it uses by itself."""
    about: dict[str, Any] = bundle.files.get("config_sentence_transformers.json") or {}
    prompts: dict[str, str | None] = about.get("prompts") or {}
    name = about.get("default_prompt_name") if prompt is None else prompt
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise GlassformerError(f"the model's folder has no prompt '{name}'; it has {known}")
    return prompts[name] or ""


def text_vectors(bundle: Bundle, batch: Tokens) -> Tensor:
    """Vectors (B, D) of a batch of texts."""
    model = model_of(bundle)
    spec: Any = bundle.spec
    if isinstance(spec, specs.EncoderDecoder):
        return pool_mean(model.encode(batch.ids, batch.real), batch.real)
    if isinstance(spec.head, specs.Embed):
        pooled: Tensor = model(batch.ids, batch.real, **batch.words())
        return pooled
    x, _ = model.hidden_states(batch.ids, batch.real, **batch.words())
    return pool_mean(x, batch.real)


def _pictures(bundle: Bundle, batch_tokens: int, watch: Watch) -> Maker:
    ready, model = Ready(bundle), model_of(bundle)

    def answer(batch: Tensor) -> Tensor:
        x: Tensor = model.hidden_states(batch)[0]
        return (x[:, 0] if ready.read.prefix else x.mean(1)).float()

    def make(part: list[Picture], first: int) -> list[Tensor | None]:
        return ready.in_order(part, answer, first=first, tokens=batch_tokens, watch=watch)

    return make


def similar(
    bundle: Bundle,
    queries: Iterable[str],
    candidates: Sequence[str],
    *,
    top: int | None = None,
    truncate: bool = False,
    batch_tokens: int = TOKENS,
    ahead: int = AHEAD,
    watch: Watch = UNWATCHED,
    among: Watch = UNWATCHED,
) -> Iterator[list[Match]]:
    """For each query (text or picture file) the candidates by likeness, nearest first: `top` or all.

    What is held is a vector for each candidate; the queries may come from anywhere and be any number.
    among: who is told of the candidates, before any query is read; one that is refused or left is none.
    """
    if top is not None and top < 1:
        raise GlassformerError(f"top is {top}; ask for at least 1 candidate")
    texts = list(listed(candidates))
    if not texts:
        raise GlassformerError("there is nothing to compare with; give at least one candidate")
    found = torch.stack(
        list(vectors(bundle, texts, truncate=truncate, batch_tokens=batch_tokens, watch=among))
    )
    numbers = (~found.isnan().all(-1)).nonzero()[:, 0]
    if not len(numbers):
        raise GlassformerError("none of the candidates can be compared with; give others")
    known = F.normalize(found[numbers], dim=-1)  # (N, D)
    asked = vectors(bundle, queries, truncate=truncate, batch_tokens=batch_tokens, ahead=ahead, watch=watch)
    those = [(n, str(texts[n])) for n in numbers.tolist()]
    return _nearest(asked, known, those, min(top or len(those), len(those)), min(ahead, QUERIES))


def _nearest(
    asked: Iterator[Tensor], known: Tensor, those: Sequence[tuple[int, str]], top: int, many: int
) -> Iterator[list[Match]]:
    for some in stretches(asked, many):
        scores = F.normalize(torch.stack(some), dim=-1) @ known.T  # (B, N)
        best, places = scores.sort(dim=-1, descending=True, stable=True)
        for row, order in zip(best[:, :top].tolist(), places[:, :top].tolist(), strict=True):
            # a query that was not asked is like nothing
            yield (
                []
                if row[0] != row[0]
                else [
                    Match(number=those[place][0], text=those[place][1], score=score)
                    for score, place in zip(row, order, strict=True)
                ]
            )
