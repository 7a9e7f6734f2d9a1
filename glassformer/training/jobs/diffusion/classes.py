"""Diffusion models that draw images of classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import is_array_file
from glassformer.data.images import Augment
from glassformer.errors import ConflictError
from glassformer.training import sections
from glassformer.training.diffusion_job import METRICS, DiffusionJob
from glassformer.training.drawing_job import ClassDrawingJob
from glassformer.training.image_folder_job import ImageFolderData
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import ClassImages
from glassformer.training.model_setup import keep_fitting_weights


@dataclass(frozen=True, kw_only=True)
class ClassImageData(Augment, ImageFolderData):
    """Images and their classes."""

    input: Literal["class"] = sections.input_kind("class", "text or class")
    prediction_type: sections.PredictionType | None = sections.predicted_noise()


class DrawClasses(DiffusionJob[ClassImageData], ClassDrawingJob[ClassImageData]):
    """Train a denoiser of images of classes."""

    condition_option = "num_classes"

    def size(self) -> tuple[int, int] | None:
        size = super().size()
        if size is None:
            return None if self.base_side is None else (self.base_side, self.base_side)
        self.check_size(*size)
        return size

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest square in the default size that the model can draw."""
        if self.data.image_size is not None or self.base_side is not None:
            return height, width
        side = min(height, width) // self.multiple * self.multiple
        self.check_size(*((side, side) if side else (height, width)))
        return side, side

    def train_examples(self) -> ClassImages:
        seed = self.recipe.seed
        return ClassImages(self.train_set, rows=self.train_rows, augment=self.data, seed=seed)

    def valid_examples(self) -> ClassImages:
        return ClassImages(self.valid_set, rows=self.valid_rows)

    @property
    def model_spec(self) -> specs.DiffusionModelSpec:
        _, side, channels = self.train_set.shape
        return self.base_spec or self.new_spec(
            channels, side, {"num_classes": len(self.classes), "text_dim": None}
        )

    def build(self) -> Bundle:
        channels = self.train_set.shape[2]
        if self.channels not in (None, channels):
            reason = f"the images have {channels} channels and the model {self.channels}"
            raise ConflictError(("data.train", "model.folder"), reason)
        bundle = self.build_model()
        if self.base_spec is not None and bundle.job.classes != tuple(self.classes):
            bundle = with_new_classes(bundle, len(self.classes))
        return self.with_job(bundle, classes=tuple(self.classes))


def with_new_classes(bundle: Bundle, count: int) -> Bundle:
    """Return the model with a new, untrained table of classes."""
    model: Any = bundle.spec
    latents = replace(model.denoiser.input, num_classes=count)
    changed = keep_fitting_weights(bundle, replace(model, denoiser=replace(model.denoiser, input=latents)))
    frozen = {name for name, part in bundle.model.named_parameters() if not part.requires_grad}
    for name, parameter in changed.model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    config = {key: value for key, value in bundle.config.items() if key != "id2label"}
    parts = {name: part for name, part in bundle.parts.items() if name != "denoiser"}
    return replace(changed, config=config, parts=parts)


CLASSES = JobSpec(
    name="diffusion",
    input="class",
    summary="Train a model that draws images of classes.",
    factory=DrawClasses,
    data=ClassImageData,
    metrics=METRICS,
    metric="loss",
    preset="dit-mini",
    batch_unit="examples",
    defaults={"ema": 0.999},
    r_drop=False,
    reads=lambda path: Path(path).is_dir() or is_array_file(path),
)
