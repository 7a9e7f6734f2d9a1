"""What the declarations of the tasks that generate text have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassformer.errors import InvalidValueError
from glassformer.generation.config import GenerationConfig
from glassformer.tasks.registry import COMMAND_ONLY, PYTHON_ONLY, TaskOptions, setting

if TYPE_CHECKING:
    from glassformer.tasks.text_generation import GeneratedText

PANEL = "Generation"
GENERATION = {"spread": GenerationConfig, "panel": PANEL}


@dataclass(frozen=True, kw_only=True)
class GenerationTaskOptions(TaskOptions):
    """Options of tasks whose output is text: those of `GenerationConfig`, and these."""

    batch_tokens: int | None = setting(
        None,
        "Maximum number of tokens per batch, including padding and beams (default: chosen for the device).",
        interval="[1, inf)",
        panel="Device",
        **COMMAND_ONLY,
    )
    return_tree: bool = setting(False, "Return the search tree of each segment.", **PYTHON_ONLY)
    json_schema: Mapping[str, Any] | None = setting(
        None, "JSON schema that the output follows, unless it reaches the token limit.", **PYTHON_ONLY
    )
    generation: Mapping[str, Any] = field(default_factory=dict, metadata=GENERATION)


def text_of(output: GeneratedText) -> str:
    """Return the text of an output; raise if there are several."""
    if output.alternatives:
        hint = "construct the task, whose results hold the alternatives"
        raise InvalidValueError("num_return_sequences", 1 + len(output.alternatives), "1", hint=hint)
    return output.text


def generates(spec: Any, *kinds: str) -> bool:
    """Whether a model of one of these kinds predicts tokens."""
    return spec.kind in kinds and spec.yields == "next tokens"


def is_sequence_to_sequence(spec: Any) -> bool:
    return generates(spec, "EncoderDecoder", "LSTMEncoderDecoder") and spec.modalities == ("text",)


def is_language_model(spec: Any) -> bool:
    return generates(spec, "DecoderOnly", "LSTMLanguageModel")
