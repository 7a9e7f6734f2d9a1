"""Rank candidates by the similarity of their embeddings to a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glassformer.tasks.declarations import classify, embed
from glassformer.tasks.registry import (
    PYTHON_ONLY,
    REQUIRED,
    TEXT_OR_IMAGE,
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
    from glassformer.tasks.embedding import SimilaritySearch


@dataclass(frozen=True, kw_only=True)
class Match:
    """A candidate, its index, and its cosine similarity to the query. text: empty for pixels and bytes."""

    index: int
    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class SimilarOptions(TextBatchOptions):
    candidates: Any = setting(
        REQUIRED,
        "File to search, one text or image path per line, or a folder of images.",
        flag="--corpus",
        collection=True,
    )
    callbacks: Any = setting(None, "Callbacks for the candidates; see `Callbacks`.", **PYTHON_ONLY)
    top: int | None = setting(
        None, "Number of results per input.", interval="[1, inf)", max=100_000, command_default=1
    )


@dataclass(frozen=True)
class NearestMatches(TaskResult):
    """The candidates for a query, the most similar first."""

    nearest: list[Match]

    @classmethod
    def column_types(cls, bundle: Bundle, options: SimilarOptions) -> Mapping[str, type]:
        return top_columns({"match": str, "score": float}, options.top or 1)

    def cells(self) -> Mapping[str, object]:
        return top_cells(("match", "score"), [(match.text, match.score) for match in self.nearest])

    def to_json(self) -> dict[str, Any]:
        return {
            "nearest": [{"line": m.index + 1, "text": m.text, "score": m.score} for m in self.nearest],
        }

    def line(self) -> str:
        return format_scores((match.text, match.score) for match in self.nearest)


def make(bundle: Bundle, options: SimilarOptions) -> SimilaritySearch:
    from glassformer.tasks.base import NO_CALLBACKS
    from glassformer.tasks.embedding import SimilaritySearch

    return SimilaritySearch(
        bundle,
        options.candidates,
        top=options.top,
        on_candidates=options.callbacks or NO_CALLBACKS,
        truncate=options.truncate,
        batch_tokens=options.batch_tokens,
    )


TASK = TaskSpec(
    name="similar",
    summary="Find the most similar texts or images.",
    description="Candidates are ranked by the cosine similarity of their vectors to that of the query. With "
    "an image and a text tower, texts find images and images find texts.",
    lines="the nearest candidates and their cosine similarities, separated by tabs. Empty lines of the "
    "corpus are ignored",
    inputs=TEXT_OR_IMAGE,
    argument="queries",
    second="candidates",
    options=SimilarOptions,
    result=NearestMatches,
    accepts=embed.accepts,
    make=make,
    returns="list[Match]",
    brief=lambda bundle, options: replace(options, top=options.top or 1),
    view=lambda spec: "similarity" if classify.compares(spec) else "",
    examples=("A cat sat on the mat.",),
    metric="recall_at_1",
    job="contrastive",
)
