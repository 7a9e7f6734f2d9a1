"""Answer a question with a stretch of a text, however long the text is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.heads import Span
from glassformer.errors import GlassformerError
from glassformer.tasks.finite import finite
from glassformer.tasks.reading import (
    TOKENS,
    in_order,
    model_of,
    named,
    picked,
    reads,
    room_of,
    sound,
    together,
    tokenizer_of,
)
from glassformer.tasks.watch import UnreadableError
from glassformer.tokenization import Encoded

WINDOW = 384  # tokens read at a time: what such models are trained with
STRIDE = 128  # tokens that one window has in common with the next
LONGEST = 15  # tokens of an answer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A stretch of the context: its words, where it starts and ends in characters, and how likely it is.

    no_answer: how likely it is that the context does not say, where the model was trained to tell.
    """

    text: str
    start: int
    end: int
    score: float
    no_answer: float


def answer(
    bundle: Bundle,
    question: str,
    context: str,
    *,
    longest: int = LONGEST,
    window: int | None = None,
    stride: int = STRIDE,
    batch_tokens: int = TOKENS,
) -> Answer:
    """The likeliest answer of at most `longest` tokens, as whole words of the context.

    A long context is read in windows that overlap by `stride` tokens. Probabilities are over all of them
    together, so that a window without the answer does not outshout the one that has it.
    """
    head = getattr(bundle.spec, "head", None)
    if not isinstance(head, specs.Answer) or not isinstance(bundle.spec, specs.EncoderOnly):
        raise GlassformerError(
            f"{named(bundle)} answers no questions (its head is {type(head).__name__}); give one with an "
            "Answer head"
        )
    reads(bundle)
    for name, text in (("question", question), ("context", context)):
        if not sound(text, f"the {name}").strip():
            raise UnreadableError(f"the {name} is empty; give one")
    if longest < 1:
        raise GlassformerError(f"an answer of {longest} tokens is none; give at least 1")
    whole = tokenizer_of(bundle).encode(question, context)
    parts = windows(whole, min(window or WINDOW, room_of(bundle)), stride)
    return _best(bundle, whole, parts, context, longest, batch_tokens)


def answers(
    bundle: Bundle,
    pairs: Iterable[tuple[str, str]],
    *,
    longest: int = LONGEST,
    window: int | None = None,
    stride: int = STRIDE,
    batch_tokens: int = TOKENS,
) -> Iterator[Answer]:
    """The answer to each question about its context, one after the other."""
    for question, context in pairs:
        yield answer(
            bundle,
            question,
            context,
            longest=longest,
            window=window,
            stride=stride,
            batch_tokens=batch_tokens,
        )


def windows(whole: Encoded, room: int, stride: int) -> list[list[int]]:
    """Which tokens each window reads: all that is not the context, and a stretch of the context."""
    body = [n for n, sequence in enumerate(whole.sequences) if sequence == 1]
    around = [n for n, sequence in enumerate(whole.sequences) if sequence != 1]
    if not body:
        raise UnreadableError("the context has no word that the model's tokenizer knows; give another")
    size = room - len(around)
    if size < 1:
        raise UnreadableError(
            f"the question has {len(around):,} tokens with the marks around it, and the model reads "
            f"{room:,} at a time; shorten it"
        )
    if stride < 0:
        raise GlassformerError(f"windows cannot overlap by {stride} tokens; give 0 or more")
    step = size - min(stride, size // 2)
    starts = range(0, max(1, len(body) - size + step), step)
    return [sorted([*around, *body[at : at + size]]) for at in starts]


def _best(
    bundle: Bundle, whole: Encoded, parts: list[list[int]], context: str, longest: int, batch_tokens: int
) -> Answer:
    scores = in_order([len(part) for part in parts], _Scorer(bundle, whole, parts), tokens=batch_tokens)
    return best_answer(whole, parts, scores, context, cls_id=tokenizer_of(bundle).cls_id, longest=longest)


def best_answer(
    whole: Encoded,
    parts: list[list[int]],
    scores: Sequence[tuple[Tensor, Tensor]],
    context: str,
    *,
    cls_id: int | None,
    longest: int = LONGEST,
) -> Answer:
    """The likeliest stretch, by the scores (tokens,) for starts and for ends in each window."""
    best = (-float("inf"), 0, 0)
    none = (float("inf"), 0.0, 0.0)  # the window that most denies there is no answer speaks for all
    starts, ends = list[Tensor](), list[Tensor]()
    for part, (start, end) in zip(parts, scores, strict=True):
        inside = torch.tensor([whole.sequences[n] == 1 for n in part])
        if cls_id is not None and cls_id in (own := [whole.ids[n] for n in part]):
            at = own.index(cls_id)
            none = min(none, (float(start[at] + end[at]), float(start[at]), float(end[at])))
        start, end = start[inside], end[inside]  # (context tokens,)
        starts.append(start)
        ends.append(end)
        first = part[int(inside.long().argmax())]
        score, left, right = _span(start, end, longest)
        best = max(best, (score, first + left, first + right), key=lambda found: found[0])
    known = none[0] < float("inf")
    total = sum(
        float(torch.cat([*several, torch.tensor([none[side]])] if known else several).double().logsumexp(0))
        for side, several in ((1, starts), (2, ends))
    )
    score, left, right = best
    left, right = _whole_words(whole, left, right, context)
    begin, end_at = whole.offsets[left][0], whole.offsets[right][1]
    text = context[begin:end_at]
    begin += len(text) - len(text.lstrip())
    return Answer(
        text=text.strip(),
        start=begin,
        end=begin + len(text.strip()),
        score=float(torch.tensor(score - total).exp()),
        no_answer=float(torch.tensor(none[0] - total).exp()) if known else 0.0,
    )


class _Scorer:
    """Where an answer starts and ends in some of the windows: two of (tokens,) for each."""

    def __init__(self, bundle: Bundle, whole: Encoded, parts: list[list[int]]) -> None:
        self.bundle, self.whole, self.parts = bundle, whole, parts

    @torch.inference_mode()
    def __call__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        batch = together([picked(self.whole, self.parts[n]) for n in rows], self.bundle)
        span: Span = model_of(self.bundle)(batch.ids, batch.real, **batch.words())
        both = torch.stack((span.start, span.end), 1).float().cpu()  # (B, 2, T)
        found = [both[n, :, : len(self.parts[row])] for n, row in enumerate(rows)]  # padding has no scores
        return [(start, end) for start, end in (finite(self.bundle, one) for one in found)]


def _span(start: Tensor, end: Tensor, longest: int) -> tuple[float, int, int]:
    """The best sum of a start and an end at most so many tokens later: its score and its two places."""
    best = (-float("inf"), 0, 0)
    for long in range(min(longest, len(start))):
        sums = start[: len(start) - long] + end[long:]
        at = int(sums.argmax())
        best = max(best, (float(sums[at]), at, at + long), key=lambda found: found[0])
    return best


def _whole_words(whole: Encoded, left: int, right: int, context: str) -> tuple[int, int]:
    """The stretch widened to the ends of the words it begins and ends in.

    Some tokenizers take a whole text for one word, so that a space ends one too.
    """

    def joined(one: int, other: int) -> bool:
        """Whether two neighbours are of one word of the context."""
        if not 0 <= one < other < len(whole) or {whole.sequences[one], whole.sequences[other]} != {1}:
            return False
        between = whole.offsets[other][0]
        around = context[max(0, between - 1) : between + 1]
        apart = whole.offsets[one][1] < between or any(letter.isspace() for letter in around)
        return not apart and whole.words[one] is not None and whole.words[one] == whole.words[other]

    while joined(left - 1, left):
        left -= 1
    while joined(right, right + 1):
        right += 1
    return left, right
