"""Image tokens of images of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import Arrays, EqualLengths
from glassformer.data.image_files import is_array_file
from glassformer.data.images import Augment, ImageSet
from glassformer.errors import ConflictError
from glassformer.tasks.drawing import Prompt
from glassformer.training import sections
from glassformer.training.hardware import Hardware
from glassformer.training.image_folder_job import ImageFolderData, ImageFolderJob
from glassformer.training.image_tokens_job import METRICS, ImageTokensJob, drop_conditions, token_batch
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import Latents
from glassformer.training.learner import count_labels


@dataclass(frozen=True, kw_only=True)
class ClassTokensData(Augment, ImageFolderData):
    """Images and their classes."""

    input: Literal["class"] = sections.input_kind("class", "text or class")
    image_size: tuple[int, ...] | None = sections.image_sides(
        "null is the size of the autoencoder, the only one"
    )


class ClassCodes(EqualLengths):
    """Classes and the codes of their images. augment: of the training, which also drops classes."""

    def __init__(
        self,
        images: ImageSet,
        spec: specs.ImageTokensModelSpec,
        rows: NDArray[np.int64] | None,
        *,
        augment: Augment | None,
        seed: int,
    ) -> None:
        self.images, self.codes, self.spec = images, Latents(images.folder), spec
        self.rows = np.arange(len(images)) if rows is None else rows
        self.augment, self.seed = augment, seed

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return ids and labels (B, T)."""
        numbers = self.rows[rows]
        codes = self.codes.read(numbers, numbers, self.augment, seed=self.seed, epoch=epoch)
        dropped = None if self.augment is None else drop_conditions(numbers, seed=self.seed, epoch=epoch)
        return token_batch(self.spec, self.images.labels(numbers)[:, None].tolist(), codes, dropped)


class ClassTokens(ImageTokensJob[ClassTokensData], ImageFolderJob[ClassTokensData]):
    """Train a decoder of [class | codes]."""

    unit, count = "tokens", staticmethod(count_labels)
    condition = "class"

    @property
    def channels(self) -> int:
        return 3

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.codes_key

    def size(self) -> tuple[int, int]:
        return self.side, self.side

    def finish_split(self, folder: Path, shape: tuple[int, int, int]) -> None:
        self.store_codes(folder)

    def _examples(
        self, images: ImageSet, rows: NDArray[np.int64] | None, augment: Augment | None
    ) -> ClassCodes:
        return ClassCodes(images, self.model_spec, rows, augment=augment, seed=self.recipe.seed)

    def train_examples(self) -> ClassCodes:
        return self._examples(self.train_set, self.train_rows, self.data)

    def valid_examples(self) -> ClassCodes:
        return self._examples(self.valid_set, self.valid_rows, None)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        return self.choose_training(hardware, self.train_examples())

    @property
    def model_spec(self) -> specs.ImageTokensModelSpec:
        return self.base_spec or self.new_spec(len(self.classes), 1)

    def build(self) -> Bundle:
        if self.base_spec is not None and self.base_spec.num_classes != len(self.classes):
            reason = f"there are {len(self.classes)} and {self.base_spec.num_classes} classes"
            raise ConflictError(("data.train", "model.folder"), reason)
        return self.build_model(classes=tuple(self.classes))

    def sample_prompts(self) -> Sequence[Prompt]:
        return range(len(self.classes))

    def prompt_name(self, prompt: Prompt) -> str:
        return self.classes[int(prompt)]


CLASSES = JobSpec(
    name="image_tokens",
    input="class",
    summary="Train a decoder that draws images of classes, as codes of an autoencoder.",
    factory=ClassTokens,
    data=ClassTokensData,
    metrics=METRICS,
    metric="loss",
    preset="llama",
    batch_unit="examples",
    r_drop=False,
    reads=lambda path: Path(path).is_dir() or is_array_file(path),
)
