"""Summarize texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer import tasks
from glassformer.tasks.generation_options import GenerationTaskOptions, is_sequence_to_sequence, text_of
from glassformer.tasks.registry import TEXT, TaskSpec, setting
from glassformer.tasks.results import GeneratedResult

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(GenerationTaskOptions):
    prefix: str | None = setting(
        None, "Text to prepend to every input (default: from the model folder).", max_length=1000
    )


class Summary(GeneratedResult):
    """A summary. score: its log-probability; warnings: why it may be wrong."""

    column = "summary"


def prefers(bundle: Bundle, options: SummarizeOptions) -> bool:
    """Whether a model was trained to summarize."""
    return bundle.job.name == TASK.job


TASK = TaskSpec(
    name="summarize",
    summary="Summarize texts.",
    description="A text longer than the model's maximum length is an error.",
    lines="the summary; empty lines stay empty",
    inputs=TEXT,
    argument="texts",
    options=SummarizeOptions,
    result=Summary,
    accepts=is_sequence_to_sequence,
    make=lambda bundle, options: tasks.Summarizer(bundle, **options.kwargs()),
    prefers=prefers,
    value=text_of,
    returns="str",
    results="summaries",
    examples=("The old lighthouse was built in 1871. It has guided ships ever since.",),
    metric="rougeL",
    job="summarize",
)
