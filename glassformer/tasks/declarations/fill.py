"""Predict masked words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glassformer import tasks
from glassformer.tasks.registry import (
    COMMAND_ONLY,
    TEXT,
    TaskOptions,
    TaskResult,
    TaskSpec,
    setting,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """A token predicted for a mask: its id, text and probability."""

    token: int
    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class FillOptions(TaskOptions):
    top: int = setting(
        5, "Number of predictions per mask; a line has only the best.", interval="[1, inf)", max=1000
    )
    batch_tokens: int = setting(
        16_384, "Maximum number of tokens per batch.", interval="[1, inf)", panel="Device", **COMMAND_ONLY
    )


@dataclass(frozen=True, kw_only=True)
class FilledText(TaskResult):
    """A text with the most likely token at each mask, and the predictions for each mask."""

    text: str
    masks: list[list[TokenScore]]

    @classmethod
    def column_types(cls, bundle: Bundle, options: FillOptions) -> Mapping[str, type]:
        return {"filled": str}

    def cells(self) -> Mapping[str, object]:
        return {"filled": self.text}

    def line(self) -> str:
        return self.text


TASK = TaskSpec(
    name="fill",
    summary="Fill every [MASK] with the most likely word.",
    lines="the text with its masks filled. --json adds the predictions for each mask with their "
    "probabilities. Empty lines stay empty",
    inputs=TEXT,
    argument="texts",
    options=FillOptions,
    result=FilledText,
    accepts=lambda spec: spec.yields == "masked tokens" and spec.architecture == "encoder-only",
    make=lambda bundle, options: tasks.MaskFiller(bundle, **options.kwargs()),
    returns="FilledText",
    brief=lambda bundle, options: replace(options, top=1),
    view=lambda spec: True,
    examples=("The cat sat on the [MASK].",),
)
