"""Questions about images: each input is an image and a question."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import ImageTextInputs, TextInputs
from glassformer.data.image_files import ImageLike, is_single_image
from glassformer.errors import (
    EmptyInputError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    attempt,
)
from glassformer.processors.base import ForwardInputs, Processor
from glassformer.processors.image import (
    ProcessedImage,
    VisionProcessor,
    image_input,
    load_image_processor,
    unique_images,
)
from glassformer.processors.text import TextProcessor, check_text
from glassformer.tokenization import Encoded

Source = tuple[ImageLike, str]


@dataclass(frozen=True)
class ImageQuestion:
    """An encoded question and a decoded image."""

    question: Encoded
    image: ProcessedImage


class ImageQuestionProcessor(Processor[Source, ImageQuestion]):
    """Prepare questions about images. image, text: processors of both; an image is decoded once.

    patches: the spec of the image input.
    """

    name = "question"

    def __init__(self, bundle: Bundle, *, truncate: bool = False) -> None:
        super().__init__(bundle)
        self.patches = image_input(bundle)
        size, channels = self.patches.image_size, self.patches.channels
        transform = load_image_processor(bundle, channels=channels, image_size=size)
        self.image = VisionProcessor(bundle, transform)
        self.text = TextProcessor(bundle, truncate=truncate)

    def is_single(self, inputs: Any) -> bool:
        return is_image_question(inputs)

    def load(self, source: Source) -> ImageQuestion:
        (item,) = self.load_batch([source])
        if isinstance(item, GlassformerError):
            raise item
        return item

    def load_batch(self, sources: Iterable[Source]) -> list[ImageQuestion | GlassformerError]:
        pairs = [attempt(check_image_question, source) for source in sources]
        questions = iter(self.text.load_batch(pair[1] for pair in pairs if isinstance(pair, tuple)))
        items: list[ImageQuestion | GlassformerError] = []
        images: dict[object, ProcessedImage | GlassformerError] = {}  # of the same path or object
        for pair in pairs:
            if not isinstance(pair, tuple):
                items.append(pair)
                continue
            source, question = pair[0], next(questions)
            name = source if isinstance(source, str | Path) else id(source)
            if name not in images:
                images[name] = attempt(self._load_image, source)
            image = images[name]
            problem = next((one for one in (question, image) if isinstance(one, GlassformerError)), None)
            items.append(problem or ImageQuestion(question, image))  # type: ignore[arg-type]
        return items

    def _load_image(self, source: ImageLike) -> ProcessedImage:
        image = self.image.load_cached(source)
        if any(a < b for a, b in zip(image.pixels.shape[:2], self.patches.patch_size, strict=True)):
            high, wide = image.size
            raise InvalidValueError(
                "image", f"{wide:,} x {high:,} pixels", "an image that is not that narrow"
            )
        return image

    def size(self, item: ImageQuestion) -> int:
        """Return the number of tokens of both."""
        tokens: int = self.patches.num_tokens((1, 1, *item.image.pixels.shape[:2]))
        return len(item.question) + tokens

    def read_ahead(self, budget: int) -> int:
        return max(1, budget // self.patches.num_tokens((1, 1, *self.patches.image_size)))

    def group(self, item: ImageQuestion) -> Hashable:
        return self.image.group(item.image)

    def texts(self, items: Sequence[ImageQuestion]) -> TextInputs:
        """Return the questions of a batch."""
        (text, *_) = self.text.collate([item.question for item in items]).values()
        assert isinstance(text, TextInputs)
        return text

    def collate(self, items: Sequence[ImageQuestion]) -> ForwardInputs:
        unique, rows = unique_images([item.image for item in items])
        first = next(self.bundle.model.parameters())
        pixels = self.image.stack(unique).pixels.to(first.device, first.dtype)
        return {"inputs": with_images(self.texts(items), pixels[torch.tensor(rows, device=pixels.device)])}


def is_image_question(inputs: Any) -> bool:
    """Whether `inputs` is one image with one question."""
    is_pair = isinstance(inputs, tuple) and len(inputs) == 2
    return is_pair and is_single_image(inputs[0]) and isinstance(inputs[1], str)


def check_image_question(source: Any) -> Source:
    """Return an image and a question; raise if one of them is missing."""
    if not isinstance(source, tuple) or len(source) != 2:
        raise InvalidValueError("question", type(source).__name__, "an image and a question")
    image, question = source
    if image is None or (isinstance(image, str) and not image.strip()):
        raise MissingValueError("an image", "for the question")
    if not check_text(question, "question").strip():
        raise EmptyInputError("question")
    return image, question


def with_images(text: TextInputs, images: Tensor) -> ImageTextInputs:
    """Return texts with an image, or its vectors, for each."""
    return ImageTextInputs(text.ids, text.mask, text.types, text.positions, images=images)
