"""Classify texts or images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.vision.heads import DistilledLogits
from glassformer.data.examples import class_names
from glassformer.data.sources import ProblemType
from glassformer.errors import InvalidValueError, MissingValueError, UnsupportedError
from glassformer.tasks.base import check_at_least, check_finite
from glassformer.tasks.declarations.classify import Classification, Label
from glassformer.tasks.encoder import EncoderTask, EncoderTaskOptions


@dataclass(frozen=True)
class LabelScorer:
    """Convert logits (L,) to the `top` labels (None: all) with at least `min_score`, most likely first."""

    names: Sequence[str]
    activation: Literal["softmax", "sigmoid", "none"]
    top: int | None = None
    min_score: float | None = None

    @classmethod
    def of(cls, bundle: Bundle, top: int | None = None, min_score: float | None = None) -> LabelScorer:
        """Create the scorer of a classifier from its label names and its problem type."""
        head = getattr(bundle.spec, "head", None)
        if head is None or head.yields != "label":
            hint = f"its head is {getattr(head, 'kind', 'missing')}"
            raise UnsupportedError(bundle.display_name, "classification", hint=hint)
        check_at_least("top", top)
        names, activation = label_names(bundle, head.num_labels), label_activation(bundle, head.num_labels)
        return cls(names, activation, top, min_score)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Convert logits (..., L) to probabilities; for regression, return them unchanged."""
        match self.activation:
            case "softmax":
                return logits.softmax(-1)
            case "sigmoid":
                return logits.sigmoid()
        return logits

    def __call__(self, logits: Tensor | None) -> list[Label]:
        if logits is None:
            return []
        scores = self.probabilities(logits.float())
        order = scores.argsort(descending=True, stable=True)[: self.top].tolist()
        labels = [Label(label=self.names[n], score=float(scores[n])) for n in order]
        least = self.min_score
        return labels if least is None else [label for label in labels if label.score >= least]


def label_names(bundle: Bundle, count: int) -> list[str]:
    """Return a classifier's label names from job.json, else config.json, else LABEL_0, LABEL_1, ..."""
    names = class_names(bundle.job.classes, bundle.config, count)
    if names is None:
        return [f"LABEL_{n}" for n in range(count)]
    if len(names) != count:
        raise InvalidValueError(
            "the number of label names", len(names), f"{count}", hint="fix job.json or id2label"
        )
    return names


def problem_type_of(bundle: Bundle) -> ProblemType:
    """Return the problem type of a classifier, from job.json, else config.json, else single-label.

    Published models of questions about images were trained with several right answers to a question.
    """
    several = bundle.spec.modalities == ("text", "image") and not bundle.job.name
    default = "multi_label_classification" if several else "single_label_classification"
    kind: Any = bundle.job.problem_type or bundle.config.get("problem_type") or default
    if kind not in get_args(ProblemType):
        raise InvalidValueError("problem_type", kind, f"one of {', '.join(get_args(ProblemType))}")
    known: ProblemType = kind
    return known


def label_activation(bundle: Bundle, count: int) -> Literal["softmax", "sigmoid", "none"]:
    """Return softmax for single-label, sigmoid for multi-label classification, none for regression."""
    kind = problem_type_of(bundle)
    if kind == "regression":
        return "none"
    return "sigmoid" if kind == "multi_label_classification" or count == 1 else "softmax"


class Classifier(EncoderTask[Classification]):
    """Classify texts, text pairs (tuples), or image files if the model reads images.

    top: number of labels; None: all. min_score: of a label.
    For a multi-label model the probabilities do not sum to 1; for a regression model the score is the
    predicted value.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        top: int | None = None,
        min_score: float | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> None:
        self.labels = LabelScorer.of(bundle, top, min_score)
        super().__init__(bundle, pairs=True, **options)
        spec: Any = bundle.spec
        if spec.architecture == "encoder-decoder" and spec.start_id is None:
            raise MissingValueError("start_id", f"by the decoder of {bundle.display_name}")

    def forward(self, items: Sequence[Any]) -> Sequence[Tensor]:
        output = self.model(**self.processor.collate(items))
        logits: Tensor = output.logits if isinstance(output, DistilledLogits) else output
        return list(check_finite(self.bundle, logits.cpu()))

    def postprocess(self, input: Any, item: Any, raw: Tensor | None) -> Classification:
        return Classification(labels=self.labels(raw), warnings=getattr(item, "warnings", ()))
