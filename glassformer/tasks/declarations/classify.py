"""Classify texts, images or time series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glassformer.errors import MissingValueError
from glassformer.tasks.registry import (
    PYTHON_ONLY,
    SAMPLE,
    TaskResult,
    TaskSpec,
    TextBatchOptions,
    format_scores,
    setting,
    top_cells,
    top_columns,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.base import Task

MULTI_LABEL, REGRESSION = "multi_label_classification", "regression"


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label and its probability; for a regression model, the predicted value."""

    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TextBatchOptions):
    top: int | None = setting(
        None,
        "Number of labels (default: all; for a line, 1, or all with at least 50 % for a multi-label model).",
        interval="[1, inf)",
        max=100_000,
    )
    labels: Sequence[str] | None = setting(
        None,
        "Names of the classes, for a model with an image and a text tower (zero-shot classification).",
        separated=True,
    )
    template: str | Sequence[str] | None = setting(
        None,
        'Text of a label, with {} in place of its name (default: "a photo of a {}"); several are averaged.',
    )
    min_score: float | None = setting(None, "Minimum probability of a label.", **PYTHON_ONLY)


@dataclass(frozen=True, kw_only=True)
class Classification(TaskResult):
    """The labels of an input, most likely first; empty if it was rejected. warnings: only for images."""

    labels: list[Label]
    warnings: tuple[str, ...] = ()

    @classmethod
    def column_types(cls, bundle: Bundle, options: ClassifyOptions) -> Mapping[str, type]:
        from glassformer.tasks.classification import problem_type_of

        kind = problem_type_of(bundle)
        if kind == REGRESSION:
            return {"score": float}
        if options.top is None and kind == MULTI_LABEL:
            return {"labels": str, "scores": str}
        return top_columns({"label": str, "score": float}, options.top or 1)

    def cells(self) -> Mapping[str, object]:
        return {
            **top_cells(("label", "score"), [(one.label, one.score) for one in self.labels]),
            "labels": "|".join(one.label for one in self.labels),
            "scores": "|".join(f"{one.score:.4f}" for one in self.labels),
        }

    def line(self) -> str:
        return format_scores((one.label, one.score) for one in self.labels)

    def to_json(self) -> dict[str, Any]:
        return {"labels": [{"label": one.label, "score": one.score} for one in self.labels]}


def compares(spec: Any) -> bool:
    """Whether a model compares images with texts, so that labels are given as texts."""
    return bool(spec.yields == "similarity")


def accepts(spec: Any) -> bool:
    return spec.yields in ("label", "similarity") and spec.modalities != ("text", "image")


def make(bundle: Bundle, options: ClassifyOptions) -> Task[Any, Classification]:
    from glassformer.tasks.classification import Classifier
    from glassformer.tasks.series_classification import SeriesClassifier
    from glassformer.tasks.zero_shot import TEMPLATE, ZeroShotClassifier

    if options.labels is not None or options.template is not None:
        return ZeroShotClassifier(
            bundle,
            options.labels or (),
            template=options.template or TEMPLATE,
            top=options.top,
            truncate=options.truncate,
            batch_tokens=options.batch_tokens,
        )
    if compares(bundle.spec):
        raise MissingValueError("labels", f"by {bundle.display_name}, which has no labels")
    if "series" in bundle.spec.modalities:
        return SeriesClassifier(bundle, top=options.top, min_score=options.min_score)
    return Classifier(
        bundle,
        top=options.top,
        min_score=options.min_score,
        truncate=options.truncate,
        batch_tokens=options.batch_tokens,
    )


def prefers(bundle: Bundle, options: ClassifyOptions) -> bool:
    return compares(bundle.spec) == (options.labels is not None)


def brief(bundle: Bundle, options: ClassifyOptions) -> ClassifyOptions:
    """Return options for one label; for a multi-label model, all labels with at least 50 %."""
    from glassformer.tasks.classification import problem_type_of

    kind = problem_type_of(bundle)
    if options.top is None and kind == MULTI_LABEL:
        return replace(options, min_score=0.5)
    return replace(options, top=1 if kind == REGRESSION else options.top or 1)


def notes(bundle: Bundle, results: Sequence[Classification]) -> list[str]:
    """Return messages about images that differ from the training data."""
    from glassformer.tasks.images import image_warning_message

    counts: Counter[Any] = Counter(warning for result in results for warning in result.warnings)
    return [image_warning_message(bundle, warning, count) for warning, count in counts.items()]


def view(spec: Any) -> str | bool:
    """Return the view of patches for images, and none for labels given as texts."""
    return not compares(spec) and (spec.modalities != ("image",) or "image")


def value(output: Classification) -> list[Label]:
    return output.labels


TASK = TaskSpec(
    name="classify",
    summary="Classify texts, images or time series.",
    description="A regression model predicts a value. A model trained on text pairs takes two texts. A model "
    "with an image and a text tower compares images with the labels. A folder means all its images. A model "
    "of time series takes arrays (T, C), or a file: .ts, UCR .tsv or a table.",
    lines="label, tab, probability; the path first for the images of a folder. --json prints the "
    "probabilities of all labels. Empty lines stay empty",
    inputs=SAMPLE,
    argument="inputs",
    second="text_pair",
    options=ClassifyOptions,
    result=Classification,
    accepts=accepts,
    make=make,
    prefers=prefers,
    value=value,
    returns="list[Label]",
    brief=brief,
    notes=notes,
    view=view,
    examples=("A wonderful film.",),
    metric="accuracy",
    job="classify",
)
