"""Image tokens of images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import Arrays, EqualLengths, StoredExamples
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.store import Ragged, Store
from glassformer.processors.text import truncate_longest_first
from glassformer.tasks.drawing import Prompt
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import Encoded, Row
from glassformer.training.hardware import Hardware
from glassformer.training.image_text_job import CaptionData, ImageTextJob, pixel_folder
from glassformer.training.image_tokens_job import METRICS, ImageTokensJob, drop_conditions, token_batch
from glassformer.training.job_spec import JobSpec
from glassformer.training.latents import Latents
from glassformer.training.learner import count_labels


@dataclass(frozen=True, kw_only=True)
class TextTokensData(CaptionData):
    """Images and their captions."""

    input: Literal["text"] = sections.input_kind("text", "text or class")
    image_size: tuple[int, ...] | None = sections.image_sides(  # type: ignore[assignment]
        "null is the size of the autoencoder, the only one"
    )
    max_len: int | None = sections.maximum_length("a caption; longer ones are truncated", default=32)


class CaptionCodes(EqualLengths, StoredExamples):
    """Captions and the codes of their images. augment: of the training, which also drops captions."""

    def __init__(
        self, store: Store, spec: specs.ImageTokensModelSpec, *, augment: Augment | None, seed: int
    ) -> None:
        super().__init__(store, pad_id=0)
        self.codes = Latents(pixel_folder(store.folder))
        self.spec, self.augment, self.seed = spec, augment, seed

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return ids and labels (B, T)."""
        (ids, *_, numbers), lengths = self.store.gather(rows)
        texts = np.split(ids, lengths[:, 0].cumsum()[:-1])
        codes = self.codes.read(numbers, rows, self.augment, seed=self.seed, epoch=epoch)
        dropped = None if self.augment is None else drop_conditions(rows, seed=self.seed, epoch=epoch)
        return token_batch(self.spec, [text.tolist() for text in texts], codes, dropped)


class TextTokens(ImageTokensJob[TextTokensData], ImageTextJob[TextTokensData]):
    """Train a decoder of [text | codes]."""

    template = "bos_eos"
    unit, count = "tokens", staticmethod(count_labels)
    condition, default_max_len = "text", 32

    def fill_max_len(self) -> None:
        limit = self.max_len or self.default_max_len
        known = self.base_spec.max_text_len if self.base_spec is not None else limit
        self.update_data(max_len=min(limit, known))

    @property
    def cache_key(self) -> tuple[object, ...]:
        return *super().cache_key, *self.codes_key

    def image_processor(self) -> ImageProcessor:
        return ImageProcessor(size={"height": self.side, "width": self.side}, resample=3)

    def finish_pixels(self, folder: Path) -> None:
        self.store_codes(folder)

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        encoded = tokenizer.encode_batch([caption for _, caption in rows])
        return [Ragged.of([truncate_longest_first(text, self.max_len).ids for text in encoded])], {}

    def examples(self, store: Store, *, augment: bool = False) -> CaptionCodes:
        return CaptionCodes(
            store, self.model_spec, augment=self.data if augment else None, seed=self.recipe.seed
        )

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        return self.choose_training(hardware, self.train_examples())

    @property
    def model_spec(self) -> specs.ImageTokensModelSpec:
        return self.base_spec or self.new_spec(self.corpus.max_id + 1, self.max_len)

    def build(self) -> Bundle:
        info: dict[str, Any] = {"max_len": self.max_len, "data_columns": self.corpus.data_columns}
        return replace(self.build_model(**info), tokenizer=self.corpus.tokenizer)

    def sample_prompts(self) -> Sequence[Prompt]:
        return list(dict.fromkeys(caption for _, caption in self.valid_texts()))


TEXTS = JobSpec(
    name="image_tokens",
    input="text",
    summary="Train a decoder that draws images from texts, as codes of an autoencoder.",
    factory=TextTokens,
    data=TextTokensData,
    metrics=METRICS,
    metric="loss",
    preset="llama",
    batch_unit="examples",
    r_drop=False,
)
