"""Inputs of a model with an image and a text tower: each is an image or a text."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from glassformer.bundle import Bundle
from glassformer.data.image_files import is_image_name
from glassformer.errors import GlassformerError, attempt
from glassformer.processors.base import ForwardInputs, Processor
from glassformer.processors.image import FixedSizeVisionProcessor, ProcessedImage
from glassformer.processors.text import TextProcessor
from glassformer.tokenization import Encoded


class ImageTextProcessor(Processor[Any, Any]):
    """Prepare images and texts; a batch has one kind of them. image, text: processors of the towers."""

    name = "input"

    def __init__(self, image: Processor[Any, ProcessedImage], text: Processor[Any, Encoded]) -> None:
        self.image, self.text = image, text

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        image = FixedSizeVisionProcessor.from_bundle(bundle.tower("image"))
        return cls(image, TextProcessor.from_bundle(bundle.tower("text")))

    def is_single(self, inputs: Any) -> bool:
        return self.image.is_single(inputs)

    def load(self, source: Any) -> Any:
        return self._of("image" if is_image_input(source) else "text").load(source)

    def load_batch(self, sources: Iterable[Any]) -> list[Any | GlassformerError]:
        items, texts = dict[int, Any](), dict[int, str]()
        for number, source in enumerate(sources):
            if is_image_input(source):
                items[number] = attempt(self.image.load, source, errors=self.image.errors)
            else:
                texts[number] = source
        items |= zip(texts, self.text.load_batch(texts.values()), strict=True)
        return [items[number] for number in sorted(items)]

    def kind(self, item: Any) -> Literal["image", "text"]:
        """Return what an item is."""
        return "image" if isinstance(item, ProcessedImage) else "text"

    def _of(self, kind: Literal["image", "text"]) -> Processor[Any, Any]:
        return self.image if kind == "image" else self.text

    def size(self, item: Any) -> int:
        return self._of(self.kind(item)).size(item)

    def group(self, item: Any) -> Hashable:
        kind = self.kind(item)
        return kind, self._of(kind).group(item)

    def read_ahead(self, budget: int) -> int:
        return self.image.read_ahead(budget)

    def collate(self, items: Sequence[Any]) -> ForwardInputs:
        return self._of(self.kind(items[0])).collate(items)


class PlainText(str):
    """A text that is never taken for the path of an image, e.g. of a request."""


def is_image_input(item: object) -> bool:
    """Whether an input of a model with two towers is an image: anything but a text.

    >>> is_image_input("a cat"), is_image_input("cat.jpg"), is_image_input(b"...")
    (False, True, True)
    """
    if isinstance(item, PlainText):
        return False
    return not isinstance(item, str) or ("\n" not in item and is_image_name(Path(item)))
