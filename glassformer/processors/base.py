"""The interface of all processors: raw inputs of one modality -> the arguments of a model.

A processor loads inputs one by one, says how large they are, and collates several of them to a batch. Tasks,
training, traces and verification use the same processors, so that an input is read in one way everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypedDict, TypeVar

from glassformer.bundle import Bundle
from glassformer.core.inputs import ModelInputs
from glassformer.core.spec import ModelSpec
from glassformer.errors import GlassformerError, attempt

READ_AHEAD = 1024  # inputs that are loaded and sorted by size together
# How an image differs from the training data: it is blank (one shade), in color for a grayscale model, much
# larger than the model's input size, or much lighter or darker.
ImageWarning = Literal["blank", "color", "large", "light", "dark"]

ASK = "it answers questions about images: use ask"  # a hint

_KINDS: dict[tuple[str, ...], str] = {
    ("text",): "text",
    ("image",): "images",
    ("series",): "time series",
    ("image", "text"): "images and texts",
    ("latents",): "latents",
}

Source = TypeVar("Source")
Item = TypeVar("Item")


class ForwardInputs(TypedDict, total=False):
    """The arguments of a forward pass, `model(**inputs)`.

    inputs: of an encoder or a decoder. src, tgt: of an encoder-decoder. images: of a segmentation model.
    """

    inputs: ModelInputs
    src: ModelInputs
    tgt: ModelInputs
    images: ModelInputs


class Processor(ABC, Generic[Source, Item]):
    """Convert raw inputs to items, and items to the arguments of a model.

    name: what one input is called in errors. errors: those that concern a single input; others end a task.
    """

    name: ClassVar[str]
    errors: ClassVar[tuple[type[GlassformerError], ...]] = (GlassformerError,)

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Create the processor of a model, with default options."""
        return cls(bundle)

    @abstractmethod
    def load(self, source: Source) -> Item:
        """Read and prepare one input; raise if it cannot be used."""

    def load_batch(self, sources: Iterable[Source]) -> list[Item | GlassformerError]:
        """Load several inputs; return the error of those that cannot be used in their place."""
        return [attempt(self.load, source, errors=self.errors) for source in sources]

    def size(self, item: Item) -> int:
        """Return the size of an item, such as its tokens or pixels; batches are cut by it."""
        return 1

    def read_ahead(self, budget: int) -> int:
        """Return how many inputs to load together if the items of a batch have at most the size `budget`."""
        return READ_AHEAD

    def group(self, item: Item) -> Hashable:
        """Return what the items of a batch must have in common."""
        return None

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> ForwardInputs:
        """Return a batch of items as model inputs, on the model's device."""

    @abstractmethod
    def is_single(self, inputs: Any) -> bool:
        """Whether `inputs` is a single input rather than several."""


def input_kind(spec: ModelSpec) -> str:
    """Return the kind of input a model reads, in words: text, images, time series, latents, vectors."""
    return _KINDS.get(spec.modalities, "vectors")
