"""Answer questions with a span of a context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer import tasks
from glassformer.tasks.registry import (
    COMMAND_ONLY,
    QUESTION,
    TaskOptions,
    TaskResult,
    TaskSpec,
    format_scores,
    setting,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(TaskOptions):
    max_answer_tokens: int = setting(15, "Maximum number of answer tokens.", interval="[1, inf)", max=1000)
    window: int | None = setting(
        None, "Tokens per window of a long context (default: 384).", interval="[1, inf)", max=100_000
    )
    stride: int = setting(128, "Tokens that two windows share.", interval="[0, inf)", max=100_000)
    handle_impossible_answer: bool = setting(
        False, "Return an empty answer if it is more likely than any span."
    )
    batch_tokens: int = setting(
        16_384, "Maximum number of tokens per batch.", interval="[1, inf)", panel="Device", **COMMAND_ONLY
    )


@dataclass(frozen=True, kw_only=True)
class Answer(TaskResult):
    """A span of the context: its text, character offsets [start, end) and probability.

    no_answer: the probability that the context has no answer, if the model was trained to predict this.
    """

    text: str
    start: int
    end: int
    score: float
    no_answer: float

    @classmethod
    def of(cls, output: Answer | None) -> Answer:
        return NO_ANSWER if output is None else output

    @classmethod
    def column_types(cls, bundle: Bundle, options: AnswerOptions) -> Mapping[str, type]:
        return {"answer": str, "score": float}

    def cells(self) -> Mapping[str, object]:
        return {} if self is NO_ANSWER else {"answer": self.text, "score": self.score}

    def line(self) -> str:
        return "" if self is NO_ANSWER else format_scores([(self.text, self.score)])


NO_ANSWER = Answer(text="", start=0, end=0, score=0.0, no_answer=0.0)  # of an empty question


def value(output: Answer | None) -> Answer:
    assert output is not None  # only skipped questions have no answer
    return output


TASK = TaskSpec(
    name="answer",
    summary="Answer questions with a span of a context.",
    description="Long contexts are split into overlapping windows.",
    lines="answer, tab, probability. --json adds the position of the answer and the probability that there "
    "is no answer. Empty lines stay empty",
    inputs=QUESTION,
    argument="question",
    second="context",
    options=AnswerOptions,
    result=Answer,
    accepts=lambda spec: spec.yields == "span" and spec.architecture == "encoder-only",
    make=lambda bundle, options: tasks.QuestionAnswerer(bundle, **options.kwargs()),
    value=value,
    returns="Answer",
    view=lambda spec: True,
    examples=(("Where did the cat sit?", "The cat sat on the mat."),),
    metric="f1",
    job="answer",
)
