"""Tell which label fits: texts by a classifier of texts, pictures by one of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import Twice
from glassformer.data.class_names import class_names
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
    named,
    reads,
    room_of,
    stretches,
    together,
    where_sound,
)
from glassformer.tasks.unlike import Unlike
from glassformer.tasks.watch import UNWATCHED, Watch
from glassformer.tokenization import Encoded

Scorer = Callable[[list[Any], int], list[Tensor | None]]  # inputs from a number on; None: not asked


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label, and how likely it is."""

    label: str
    score: float


def classify(
    bundle: Bundle,
    inputs: Iterable[str] | Iterable[Picture],
    *,
    top: int | None = None,
    truncate: bool = False,
    batch_tokens: int = TOKENS,
    ahead: int = AHEAD,
    hear: Callable[[Unlike], None] | None = None,
    watch: Watch = UNWATCHED,
) -> Iterator[list[Label]]:
    """The labels of each text, or picture file, most likely first: the `top` ones, or all.

    Scores are probabilities: over all labels, or of each by itself where the model was trained to give
    several at once; of a model that tells a number, the number. A text longer than the model reads is
    refused, or with `truncate` read up to there. `hear` is told in what each picture is unlike those that the
    model has learnt.
    """
    head = bundle.spec.head if hasattr(bundle.spec, "head") else None
    if not isinstance(head, specs.Classify | specs.ClassifyTwice):
        raise GlassformerError(
            f"{named(bundle)} tells no labels apart (its head is {type(head).__name__}); give a classifier"
        )
    names = labels_of(bundle, head.num_labels)
    if top is not None and top < 1:
        raise GlassformerError(f"top is {top}; ask for at least 1 label")
    if reads_pictures(bundle):
        scorer = _pictures(bundle, batch_tokens, hear, watch)
    else:
        scorer = _texts(bundle, batch_tokens, truncate, watch)
    probable = probabilities(bundle, head.num_labels)
    return _labelled(stretches(listed(inputs), ahead), scorer, probable, names, top)


def _labelled(
    parts: Iterator[list[Any]],
    scorer: Scorer,
    probable: Callable[[Tensor], Tensor],
    names: Sequence[str],
    top: int | None,
) -> Iterator[list[Label]]:
    first = 1
    for part in parts:
        for scores in scorer(part, first):
            if scores is None:
                yield []
                continue
            told = probable(scores.float())
            order = told.argsort(descending=True, stable=True)[:top].tolist()
            yield [Label(label=names[n], score=float(told[n])) for n in order]
        first += len(part)


def labels_of(bundle: Bundle, count: int) -> list[str]:
    """The names of a classifier's labels: its job's, its config's, else LABEL_0, LABEL_1, ..."""
    told = class_names(bundle.job.classes, bundle.config, count)
    names = [f"LABEL_{n}" for n in range(count)] if told is None else told
    if len(names) != count:
        raise GlassformerError(
            f"{named(bundle)} scores {count} labels and the folder names {len(names)}; mend its classes"
        )
    return names


def told_of(bundle: Bundle, count: int) -> Literal["one", "each", "number"]:
    """What a model was trained to tell: one label of all, each label or not, or a number."""
    kind = bundle.config.get("problem_type")
    if kind == "regression":
        return "number"
    return "each" if kind == "multi_label_classification" or count == 1 else "one"


def probabilities(bundle: Bundle, count: int) -> Callable[[Tensor], Tensor]:
    """From scores (L,) to what is told of them, by what the model was trained for."""
    match told_of(bundle, count):
        case "number":
            return lambda scores: scores
        case "each":
            return torch.sigmoid
        case "one":
            return lambda scores: scores.softmax(-1)


def _texts(bundle: Bundle, batch_tokens: int, truncate: bool, watch: Watch) -> Scorer:
    reads(bundle)
    room = room_of(bundle)

    def scores(part: list[str], first: int) -> list[Tensor | None]:
        texts = asked(part, first=first, watch=watch)
        made = encoded(bundle, texts, first=first, room=room, truncate=truncate, refuse=watch.refuse)

        @torch.inference_mode()
        def answer(some: list[Encoded]) -> list[Tensor]:
            return list(finite(bundle, text_scores(bundle, together(some, bundle)).cpu()))

        return where_sound(made, answer, tokens=batch_tokens, watch=watch)

    return scores


def text_scores(bundle: Bundle, batch: Tokens) -> Tensor:
    """Scores (B, L) of a batch of texts. A model that writes reads the same text on both sides."""
    model = model_of(bundle)
    if not isinstance(bundle.spec, specs.EncoderDecoder):
        scores: Tensor = model(batch.ids, batch.real, **batch.words())
        return scores
    start = bundle.spec.start_id
    if start is None:
        raise GlassformerError(f"{named(bundle)} does not say which token starts its answers")
    begun = torch.cat((torch.full_like(batch.ids[:, :1], start), batch.ids[:, :-1]), 1)
    scores = model(batch.ids, begun, batch.real)
    return scores


def _pictures(
    bundle: Bundle, batch_tokens: int, hear: Callable[[Unlike], None] | None, watch: Watch
) -> Scorer:
    ready, model = Ready(bundle, hear), model_of(bundle)

    def answer(batch: Tensor) -> Tensor:
        told = model(batch)
        logits: Tensor = told.logits if isinstance(told, Twice) else told
        return logits

    def scores(part: list[Picture], first: int) -> list[Tensor | None]:
        return ready.in_order(part, answer, first=first, tokens=batch_tokens, watch=watch)

    return scores
