"""Embed texts or images as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer import tasks
from glassformer.tasks.registry import (
    TEXT_OR_IMAGE,
    TaskResult,
    TaskSpec,
    TextBatchOptions,
    setting,
)

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.bundle import Bundle


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(TextBatchOptions):
    prompt: str | None = setting(
        None, "Name of a prompt defined in the model folder, e.g. query.", max_length=200
    )


@dataclass(frozen=True)
class Vector(TaskResult):
    """The vector of an input; empty if the input was skipped."""

    vector: list[float]
    is_vector = True

    @classmethod
    def of(cls, output: Tensor) -> Vector:
        values: list[float] = output.tolist()
        return cls([] if values[0] != values[0] else values)

    @classmethod
    def column_types(cls, bundle: Bundle, options: Any) -> Mapping[str, type]:
        return {"embedding": list}

    def cells(self) -> Mapping[str, object]:
        return {"embedding": self.vector}

    def line(self) -> str:
        return " ".join(f"{value:.9g}" for value in self.vector)


def accepts(spec: Any) -> bool:
    """Whether a model has an encoder of texts or images; those that find objects have other outputs."""
    objects = ("boxes", "masks", "pixels", "prompted masks", "images")
    alone = ("text",), ("image",), ("image", "text")  # or in two towers
    return bool(spec.heads()) and spec.modalities in alone and spec.yields not in objects


def view(spec: Any) -> bool:
    """Whether a model has a single stack of texts or images, without queries."""
    read, *others = spec.inputs()
    return not others and len(spec.stacks()) == 1 and not getattr(read, "suffix", 0)


def collect(bundle: Bundle, values: list[Tensor]) -> Tensor:
    import torch

    from glassformer.tasks.embedding import embedding_size

    return torch.stack(values) if values else torch.empty(0, embedding_size(bundle))


TASK = TaskSpec(
    name="embed",
    summary="Embed texts or images as vectors.",
    description="A sentence encoder pools and normalizes as configured; other text encoders return the mean "
    "over tokens, image encoders their class token, if they have one. A model with an image and a text tower "
    "embeds both: names that end like an image file's are images. A folder means all its images.",
    lines="the values of the vector, separated by spaces. --out writes a float32 array (N, D) to a .npy "
    "file, in which the rows of empty lines are NaN, or a table",
    inputs=TEXT_OR_IMAGE,
    argument="inputs",
    options=EmbedOptions,
    result=Vector,
    accepts=accepts,
    make=lambda bundle, options: tasks.Embedder(bundle, **options.kwargs()),
    returns="Tensor",
    collect=collect,
    results="vectors",
    view=view,
    examples=("A cat sat on the mat.",),
    metric="spearman",
    job="embed",
)
