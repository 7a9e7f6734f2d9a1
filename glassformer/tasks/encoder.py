"""Base class of tasks with one forward pass per batch of texts or images."""

from __future__ import annotations

from typing import Any, TypedDict

from glassformer.bundle import Bundle
from glassformer.errors import UnsupportedError
from glassformer.processors.base import ASK, Processor, input_kind
from glassformer.processors.text import TextProcessor
from glassformer.tasks.base import BATCH_TOKENS, BatchTask, Out, check_at_least, encoder_model


class EncoderTaskOptions(TypedDict, total=False):
    """Options of encoder tasks. truncate: shorten long texts. batch_tokens: including padding."""

    truncate: bool
    batch_tokens: int


class EncoderTask(BatchTask[Any, Out]):
    """A task on texts, or on images if the model reads images; the budget of a batch is in tokens.

    text: further options of the `TextProcessor`.
    """

    def __init__(
        self, bundle: Bundle, *, truncate: bool = False, batch_tokens: int = BATCH_TOKENS, **text: Any
    ) -> None:
        check_at_least("batch_tokens", batch_tokens)
        self.bundle, self.budget = bundle, batch_tokens
        self.processor = encoder_processor(bundle, truncate=truncate, **text)
        self.read_ahead = self.processor.read_ahead(batch_tokens)

    @property
    def model(self) -> Any:
        return encoder_model(self.bundle)


def encoder_processor(bundle: Bundle, **text: Any) -> Processor[Any, Any]:
    """Return the processor of a text or image encoder. text: options of the `TextProcessor`."""
    if bundle.spec.modalities == ("text", "image"):
        raise UnsupportedError(bundle.display_name, "this task", hint=ASK)
    if input_kind(bundle.spec) != "images":
        return TextProcessor(bundle, **text)
    from glassformer.processors.image import FixedSizeVisionProcessor, reads_images

    if not reads_images(bundle):
        hint = "use the task detect or segment"
        raise UnsupportedError(bundle.display_name, "classification and embedding", hint=hint)
    return FixedSizeVisionProcessor.from_bundle(bundle)
