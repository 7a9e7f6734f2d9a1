"""Answer questions about images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from glassformer.messages import quantity
from glassformer.tasks.generation_options import GENERATION, GenerationTaskOptions
from glassformer.tasks.registry import (
    IMAGE_QUESTION,
    TaskResult,
    TaskSpec,
    format_scores,
    setting,
    top_cells,
    top_columns,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

Way = Literal["choose", "generate", "chat"]
# by architecture and output: a model chooses among known answers, generates answers, or chats
WAYS: Mapping[tuple[str, str], Way] = {
    ("encoder-only", "label"): "choose",
    ("encoder-decoder", "next tokens"): "generate",
    ("decoder-only", "next tokens"): "chat",
}


@dataclass(frozen=True, kw_only=True)
class AskOptions(GenerationTaskOptions):
    top: int = setting(1, "Number of answers per question, most likely first.", interval="[1, inf)", max=100)
    truncate: bool = setting(False, "Truncate questions longer than the model's maximum length.")
    generation: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={**GENERATION, "changes": {"num_return_sequences": {"edges": ()}}},
    )


@dataclass(frozen=True, kw_only=True)
class ScoredAnswer:
    """A possible answer.

    answer: its text. score: its probability.
    """

    answer: str
    score: float


@dataclass(frozen=True, kw_only=True)
class ImageAnswer(TaskResult):
    """The most likely answer to a question about an image.

    answer: its text. score: its probability.
    alternatives: the next most likely answers. warnings: whether the model does not know a word.
    """

    answer: str
    score: float
    alternatives: list[ScoredAnswer] = field(default_factory=list)
    warnings: list[Literal["unknown_words"]] = field(default_factory=list)

    @classmethod
    def column_types(cls, bundle: Bundle, options: AskOptions) -> Mapping[str, type]:
        return top_columns({"answer": str, "score": float}, options.top)

    def cells(self) -> Mapping[str, object]:
        return {} if self is UNANSWERED else top_cells(("answer", "score"), self._rows())

    def line(self) -> str:
        return "" if self is UNANSWERED else format_scores(self._rows())

    def _rows(self) -> list[tuple[str, float]]:
        return [(self.answer, self.score), *((one.answer, one.score) for one in self.alternatives)]


UNANSWERED = ImageAnswer(answer="", score=0.0)  # of an input that is skipped or rejected


def make(bundle: Bundle, options: AskOptions) -> Any:
    from glassformer.errors import UnsupportedError
    from glassformer.tasks import image_questions

    if (way := way_to_answer(bundle.spec)) is None:
        hint = "use a model of questions about images, e.g. of the job vqa"
        raise UnsupportedError(bundle.display_name, "questions about images", hint=hint)
    return image_questions.TASKS[way](bundle, **options.kwargs())


def notes(bundle: Bundle, results: Sequence[ImageAnswer]) -> list[str]:
    """Return a message about questions with words that the model does not know."""
    count = sum(bool(result.warnings) for result in results)
    if not count:
        return []
    rest = f"{bundle.display_name} does not know; the answer may be wrong"
    return [f"{quantity(count, 'question')} with words that {rest}"]


def way_to_answer(spec: Any) -> Way | None:
    """Return how a model answers questions about images; None if it does not."""
    reads_both = spec.modalities == ("text", "image")
    return WAYS.get((spec.architecture, spec.yields)) if reads_both else None


TASK = TaskSpec(
    name="ask",
    summary="Answer questions about images.",
    description="One question may be asked about several images, and several about one image, which is "
    "encoded once. Depending on the model, the answer is one that it knows, or is generated. The score is "
    "the probability of the answer.",
    lines="answer, tab, probability; with --top, the next answers follow. The image and the question come "
    "first if there are several",
    inputs=IMAGE_QUESTION,
    argument="images",
    second="questions",
    options=AskOptions,
    result=ImageAnswer,
    accepts=lambda spec: way_to_answer(spec) is not None,
    view=lambda spec: spec.architecture == "encoder-only",
    make=make,
    returns="ImageAnswer",
    notes=notes,
    results="answers",
    examples=(("scene.png", "How many apples are there?"),),
    metric="vqa_accuracy",
    job="vqa",
)
