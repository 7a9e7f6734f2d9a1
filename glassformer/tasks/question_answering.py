"""Answer questions with a span of a context of any length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.heads import SpanLogits
from glassformer.errors import EmptyInputError, GlassformerError, InputTooLongError, UnsupportedError, attempt
from glassformer.processors.text import TextProcessor, check_text, require_tokenizer, select_tokens
from glassformer.tasks.base import (
    BATCH_TOKENS,
    NO_CALLBACKS,
    BatchTask,
    Callbacks,
    check_at_least,
    check_finite,
    encoder_model,
)
from glassformer.tasks.declarations.answer import Answer
from glassformer.tasks.token_classification import same_word
from glassformer.tokenization import Encoded

WINDOW = 384  # tokens per window, as usual in training
STRIDE = 128  # tokens that two neighboring windows share
MAX_ANSWER_TOKENS = 15
SpanScores = tuple[Tensor, Tensor]  # logits (tokens,) of an answer's start and end


@dataclass(frozen=True, kw_only=True)
class EncodedQuestion:
    """A question and its context as one sequence, and the token indices of each window."""

    encoded: Encoded
    windows: list[list[int]]
    context: str


class QuestionAnswerer(BatchTask[tuple[str, str], Answer | None]):
    """Find the most likely answer to a question in a context; inputs are (question, context).

    max_answer_tokens: maximum length of an answer, before it is extended to whole words.
    window, stride: a long context is read in windows of `window` tokens that overlap by `stride`.
    handle_impossible_answer: return an empty answer if it is more likely than the best span.
    Probabilities are normalized over all windows, so a window without an answer does not outweigh the others.
    """

    read_ahead = 64
    processor: TextProcessor

    def __init__(
        self,
        bundle: Bundle,
        *,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        window: int | None = None,
        stride: int = STRIDE,
        handle_impossible_answer: bool = False,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        head = getattr(bundle.spec, "head", None)
        if (bundle.spec.yields, bundle.spec.architecture) != ("span", "encoder-only"):
            hint = f"its head is {getattr(head, 'kind', 'missing')}"
            raise UnsupportedError(bundle.display_name, "question answering", hint=hint)
        check_at_least("max_answer_tokens", max_answer_tokens)
        check_at_least("window", window)
        check_at_least("stride", stride, least=0)
        check_at_least("batch_tokens", batch_tokens)
        self.bundle, self.processor, self.budget = bundle, TextProcessor(bundle, pairs=True), batch_tokens
        self.tokenizer = require_tokenizer(bundle)
        self.max_answer_tokens, self.stride = max_answer_tokens, stride
        self.handle_impossible_answer = handle_impossible_answer
        self.window = min(window or WINDOW, self.processor.max_tokens)

    def is_single(self, inputs: Any) -> bool:
        return (
            isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(part, str) for part in inputs)
        )

    def is_blank(self, input: tuple[str, str]) -> bool:
        return not input[0].strip()

    def input_name(self, input: tuple[str, str]) -> str:
        return "question"

    def load(self, inputs: Iterable[tuple[str, str]]) -> list[EncodedQuestion | GlassformerError]:
        return [attempt(self.encode, *pair) for pair in inputs]

    def encode(self, question: str, context: str) -> EncodedQuestion:
        """Tokenize a question with its context, and split the context into windows."""
        for name, text in (("question", question), ("context", context)):
            if not check_text(text, name).strip():
                raise EmptyInputError(name)
        encoded = self.tokenizer.encode(question, context)
        return EncodedQuestion(
            encoded=encoded, windows=context_windows(encoded, self.window, self.stride), context=context
        )

    @torch.inference_mode()
    def run_batches(
        self, items: Sequence[EncodedQuestion | None], callbacks: Callbacks = NO_CALLBACKS
    ) -> list[list[SpanScores]]:
        """Compute the start and end logits of each window of each question."""
        windows = [select_tokens(item.encoded, window) for item in items if item for window in item.windows]
        scores = iter(super().run_batches(windows))
        outputs = [[next(scores) for _ in item.windows] if item else [] for item in items]
        callbacks.on_done(len(items))
        return outputs

    def forward(self, items: Sequence[Encoded]) -> list[SpanScores]:
        """Compute the start and end logits of windows."""
        span: SpanLogits = encoder_model(self.bundle)(**self.processor.collate(items))
        both = torch.stack((span.start, span.end), 1).float().cpu()  # (B, 2, T)
        rows = [check_finite(self.bundle, row[:, : len(item)]) for row, item in zip(both, items, strict=True)]
        return [(start, end) for start, end in rows]

    def postprocess(
        self, input: object, item: EncodedQuestion | None, raw: Sequence[SpanScores]
    ) -> Answer | None:
        return None if item is None else self.answer(item, raw)

    def answer(self, item: EncodedQuestion, scores: Sequence[SpanScores]) -> Answer:
        """Return the most likely span over all windows."""
        encoded, cls_id = item.encoded, self.tokenizer.cls_id
        best = (-float("inf"), 0, 0)
        none = (float("inf"), 0.0, 0.0)  # the window that most denies "no answer" decides it
        starts, ends = list[Tensor](), list[Tensor]()
        for window, (start, end) in zip(item.windows, scores, strict=True):
            in_context = torch.tensor([encoded.sequence_ids[n] == 1 for n in window])
            if cls_id is not None and cls_id in (ids := [encoded.ids[n] for n in window]):
                at = ids.index(cls_id)
                none = min(none, (float(start[at] + end[at]), float(start[at]), float(end[at])))
            start, end = start[in_context], end[in_context]  # (context tokens,)
            starts.append(start)
            ends.append(end)
            first = window[int(in_context.long().argmax())]
            score, left, right = _best_span(start, end, self.max_answer_tokens)
            best = max(best, (score, first + left, first + right), key=lambda span: span[0])
        known = none[0] < float("inf")
        total = sum(
            float(torch.cat([*logits, torch.tensor([none[side]])] if known else logits).double().logsumexp(0))
            for side, logits in ((1, starts), (2, ends))
        )
        score, left, right = best
        left, right = extend_to_words(encoded, left, right, item.context)
        first, last = encoded.offsets[left][0], encoded.offsets[right][1]
        text = item.context[first:last]
        first += len(text) - len(text.lstrip())
        probability = math.exp(score - total)
        no_answer = math.exp(none[0] - total) if known else 0.0
        if self.handle_impossible_answer and no_answer > probability:
            return Answer(text="", start=0, end=0, score=no_answer, no_answer=no_answer)
        return Answer(
            text=text.strip(),
            start=first,
            end=first + len(text.strip()),
            score=probability,
            no_answer=no_answer,
        )


def context_windows(encoded: Encoded, size: int, stride: int) -> list[list[int]]:
    """Return the token indices of each window: question, special tokens and part of the context."""
    context = [n for n, sequence in enumerate(encoded.sequence_ids) if sequence == 1]
    question = [n for n, sequence in enumerate(encoded.sequence_ids) if sequence != 1]
    if not context:
        raise EmptyInputError("context", hint="the tokenizer knows none of its characters")
    capacity = size - len(question)
    if capacity < 1:
        raise InputTooLongError(len(question), size - 1, hint="shorten the question")
    step = capacity - min(stride, capacity // 2)
    starts = range(0, max(1, len(context) - capacity + step), step)
    return [sorted([*question, *context[at : at + capacity]]) for at in starts]


def _best_span(start: Tensor, end: Tensor, longest: int) -> tuple[float, int, int]:
    """Return the highest start + end logit of a span of at most `longest` tokens, and its positions."""
    best = (-float("inf"), 0, 0)
    for length in range(min(longest, len(start))):
        sums = start[: len(start) - length] + end[length:]
        at = int(sums.argmax())
        best = max(best, (float(sums[at]), at, at + length), key=lambda span: span[0])
    return best


def extend_to_words(encoded: Encoded, left: int, right: int, context: str) -> tuple[int, int]:
    """Extend the span of tokens `left` to `right` to whole words."""

    def joined(first: int, second: int) -> bool:
        if first < 0 or second >= len(encoded):
            return False
        if encoded.sequence_ids[first] != 1 or encoded.sequence_ids[second] != 1:
            return False
        return same_word(encoded, first, second, context)

    while joined(left - 1, left):
        left -= 1
    while joined(right, right + 1):
        right += 1
    return left, right
