"""Find named entities, or other tagged spans, in texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassformer import tasks
from glassformer.tasks.registry import (
    TEXT,
    TaskResult,
    TaskSpec,
    TextBatchOptions,
    setting,
)

AggregationStrategy = Literal["none", "simple", "first"]


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A span of a text: its label, probability, character offsets [start, end) and text."""

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class NerOptions(TextBatchOptions):
    aggregation_strategy: AggregationStrategy | None = setting(
        None,
        "How tokens form entities, as in transformers (default: first for a model trained with the job ner, "
        "else simple).",
    )


@dataclass(frozen=True)
class Entities(TaskResult):
    """The entities of a text."""

    entities: list[Entity]

    def line(self) -> str:
        return "\t".join(f"{' '.join(e.text.split())}\t{e.label}\t{e.score:.4f}" for e in self.entities)


TASK = TaskSpec(
    name="ner",
    summary="Find named entities in texts.",
    lines="entity, label and probability of each entity, separated by tabs",
    inputs=TEXT,
    argument="texts",
    options=NerOptions,
    result=Entities,
    accepts=lambda spec: spec.yields == "token labels",
    make=lambda bundle, options: tasks.TokenClassifier(bundle, **options.kwargs()),
    returns="list[Entity]",
    examples=("Ada Lovelace was born in London.",),
    metric="f1",
    job="ner",
)
