"""Tasks on rows of a table: which task a name stands for, and the columns that its results add."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import UnknownNameError, UnsupportedError
from glassformer.tasks.base import Task
from glassformer.tasks.classification import Classification, Classifier, Label, problem_type_of
from glassformer.tasks.embedding import Embedder
from glassformer.tasks.encoder import EncoderTaskOptions
from glassformer.tasks.fill_mask import MaskFiller
from glassformer.tasks.question_answering import QuestionAnswerer
from glassformer.tasks.series_classification import reads_series
from glassformer.tasks.text_generation import (
    GENERATED_COLUMNS,
    TextGenerator,
    TextOptions,
    check_single_language,
)
from glassformer.tasks.token_classification import TokenClassifier
from glassformer.tasks.translation import Restorer, Summarizer, Translator

_TEXT = TextOptions.__optional_keys__ | TextOptions.__required_keys__
_ENCODER = EncoderTaskOptions.__optional_keys__ | EncoderTaskOptions.__required_keys__
# the class of each task, and the names of its options
_TASKS: dict[str, tuple[Callable[..., Task[Any, Any]], frozenset[str]]] = {
    "translate": (Translator, _TEXT | {"to", "prefix", "split"}),
    "summarize": (Summarizer, _TEXT | {"prefix"}),
    "restore": (Restorer, _TEXT),
    "generate": (TextGenerator, _TEXT | {"parse_special"}),
    "classify": (Classifier, _ENCODER | {"top"}),
    "ner": (TokenClassifier, _ENCODER | {"aggregation_strategy"}),
    "embed": (Embedder, _ENCODER | {"prompt"}),
    "fill": (MaskFiller, frozenset({"batch_tokens"})),
    "answer": (
        QuestionAnswerer,
        frozenset({"batch_tokens", "max_answer_tokens", "handle_impossible_answer"}),
    ),
}


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """The columns that a task adds. types: by name. cells: returns the values for a result."""

    types: Mapping[str, type]
    cells: Callable[[Any], dict[str, object]]


@dataclass(frozen=True, kw_only=True)
class ClassificationColumns(TableColumns):
    """The columns of `classify`.

    top: number of labels that the task has to return; None for all. threshold: minimum score of a label.
    """

    top: int | None
    threshold: float

    def labels(self, result: Classification) -> list[Label]:
        """Return the labels to show."""
        return [label for label in result.labels if label.score >= self.threshold]


def table_columns(task: str, bundle: Bundle, *, top: int | None = None) -> TableColumns:
    """Return the columns that a task adds to a table. top: number of labels, for `classify`."""
    if task in GENERATED_COLUMNS:
        name = GENERATED_COLUMNS[task]
        return TableColumns(types={name: str}, cells=lambda result: {name: result.text})
    match task:
        case "classify":
            return classification_columns(bundle, top)
        case "ner":
            return TableColumns(types={"entities": str}, cells=_entity_cells)
        case "embed":
            return TableColumns(
                types={"embedding": list}, cells=lambda vector: {"embedding": finite_values(vector)}
            )
        case "fill":
            return TableColumns(types={"filled": str}, cells=lambda result: {"filled": result.text})
        case "answer":
            return TableColumns(types={"answer": str, "score": float}, cells=_answer_cells)
    raise UnknownNameError("task", task, _TASKS)


def classification_columns(bundle: Bundle, top: int | None = None) -> ClassificationColumns:
    """Return the columns of `classify`: label and score of the `top` labels, or all of them as two texts.

    top: 1 by default; for a multi-label model all labels with at least 50 %.
    """
    if problem_type_of(bundle) == "regression":
        return ClassificationColumns(
            types={"score": float},
            cells=lambda result: {"score": result.labels[0].score},
            top=1,
            threshold=-math.inf,
        )
    all_labels = top is None and problem_type_of(bundle) == "multi_label_classification"
    types = (
        {"labels": str, "scores": str}
        if all_labels
        else top_columns({"label": str, "score": float}, top or 1)
    )

    def cells(result: Classification) -> dict[str, object]:
        labels = columns.labels(result)
        if all_labels:
            scores = "|".join(f"{label.score:.4f}" for label in labels)
            return {"labels": "|".join(label.label for label in labels), "scores": scores}
        return dict(zip(types, (cell for label in labels for cell in astuple(label)), strict=False))

    columns = ClassificationColumns(
        types=types,
        cells=cells,
        top=None if all_labels else top or 1,
        threshold=0.5 if all_labels else -math.inf,
    )
    return columns


def build_task(task: str, bundle: Bundle, options: Mapping[str, Any]) -> Task[Any, Any]:
    """Create the task of a name; raise if it lacks one of the options."""
    check_task_options(task, options)
    options = dict(options)
    if task == "classify":
        if reads_series(bundle):
            raise UnsupportedError(bundle.display_name, "rows of a table", hint="it reads time series")
        options["top"] = classification_columns(bundle, options.get("top")).top
    elif task == "fill":
        options["top"] = 1
    elif task == "generate" and not options.get("parse_special"):
        check_single_language(bundle)
    return _TASKS[task][0](bundle, **options)


def check_task_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise if there is no such task, or if it lacks one of the options."""
    if task not in _TASKS:
        raise UnknownNameError("task", task, _TASKS)
    known = _TASKS[task][1]
    for name in options:
        if name not in known:
            raise UnknownNameError("option", name, sorted(known), where=f"the task {task}")


def max_input_columns(task: str) -> int:
    """Return the number of columns that a task can read: two for text pairs, and question and context."""
    return 2 if task in ("classify", "answer") else 1


def top_columns(columns: Mapping[str, type], top: int) -> dict[str, type]:
    """Return the columns of several results: label, score, label_2, score_2."""
    return {
        name if n == 1 else f"{name}_{n}": kind for n in range(1, top + 1) for name, kind in columns.items()
    }


def finite_values(vector: Tensor) -> list[float]:
    """Return the values of a vector (D,); an empty list for NaN, the vector of an empty line."""
    values: list[float] = vector.tolist()
    return [] if values[0] != values[0] else values


def _entity_cells(entities: list[Any]) -> dict[str, object]:
    return {"entities": json.dumps([asdict(entity) for entity in entities], ensure_ascii=False)}


def _answer_cells(result: Any) -> dict[str, object]:
    return {} if result is None else {"answer": result.text, "score": result.score}
