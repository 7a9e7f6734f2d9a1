"""Translate texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glassformer import tasks
from glassformer.tasks.generation_options import GenerationTaskOptions, is_sequence_to_sequence, text_of
from glassformer.tasks.registry import TEXT, TaskSpec, setting
from glassformer.tasks.results import GeneratedResult

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

Split = Literal["long", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(GenerationTaskOptions):
    to: str | None = setting(None, "Target language, for a multilingual model, e.g. de.", max_length=32)
    prefix: str | None = setting(
        None, "Text to prepend to every input (default: from the model folder).", max_length=1000
    )
    split: Split | None = setting(None, "Which lines to split into sentences (default: set by the model).")


class Translation(GeneratedResult):
    """One translation. score: its log-probability; warnings: why it may be wrong."""

    column = "translation"


def prefers(bundle: Bundle, options: TranslateOptions) -> bool:
    """Whether a model translates into the target language, or needs none."""
    from glassformer.tasks.text_generation import target_language

    return target_language(bundle, options.to) is not None


TASK = TaskSpec(
    name="translate",
    summary="Translate texts.",
    description="Line breaks are kept, and empty lines stay empty. Lines of more than 128 tokens are "
    "translated sentence by sentence, as are all lines if the model was trained on single sentences. "
    "Defaults come from generation_config.json in the model folder; without it, beam search uses 4 beams.",
    lines="the translation",
    inputs=TEXT,
    argument="texts",
    options=TranslateOptions,
    result=Translation,
    accepts=is_sequence_to_sequence,
    make=lambda bundle, options: tasks.Translator(bundle, **options.kwargs()),
    prefers=prefers,
    value=text_of,
    returns="str",
    results="translations",
    view=lambda spec: True,
    examples=("Good morning.",),
    metric="bleu",
    job="translate",
)
