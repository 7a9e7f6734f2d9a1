"""Restore sentences with missing or shuffled words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassformer import tasks
from glassformer.tasks.generation_options import GenerationTaskOptions, is_sequence_to_sequence, text_of
from glassformer.tasks.registry import TEXT, TaskSpec
from glassformer.tasks.results import GeneratedResult

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


class RestoredText(GeneratedResult):
    """A restored text. score: its log-probability; warnings: why it may be wrong."""

    column = "restored"


def prefers(bundle: Bundle, options: GenerationTaskOptions) -> bool:
    """Whether a model was trained to restore texts."""
    return bundle.job.name == TASK.job


TASK = TaskSpec(
    name="restore",
    summary="Restore sentences with missing or shuffled words.",
    description="`<gap>` marks missing words. The model must be trained with the job restore.",
    lines="the restored sentence; empty lines stay empty",
    inputs=TEXT,
    argument="texts",
    options=GenerationTaskOptions,
    result=RestoredText,
    accepts=is_sequence_to_sequence,
    make=lambda bundle, options: tasks.Restorer(bundle, **options.kwargs()),
    prefers=prefers,
    value=text_of,
    returns="str",
    examples=("the sat <gap> mat the on",),
    metric="exact",
    job="restore",
)
