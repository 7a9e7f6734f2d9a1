"""Base class of tasks with one forward pass per batch of texts or images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypedDict

import torch

from glassformer.bundle import Bundle
from glassformer.data.image_files import ImageLike
from glassformer.errors import EmptyInputError, InputTooLongError, InvalidValueError, UnsupportedError
from glassformer.tasks.base import (
    BATCH_TOKENS,
    MAX_CHARACTERS_PER_TOKEN,
    NO_CALLBACKS,
    Callbacks,
    Out,
    Raw,
    Task,
    batches,
    check_at_least,
    check_characters,
    check_text,
    chunks,
    encoder_model,
    input_kind,
    max_input_tokens,
    require_tokenizer,
    token_input,
    truncate_longest_first,
)
from glassformer.tasks.images import IMAGE_ERRORS, ImageCollator, ProcessedImage, reads_images
from glassformer.tokenization import Encoded

Item = Any  # an encoded text or a processed image


class EncoderTaskOptions(TypedDict, total=False):
    """Options of encoder tasks. truncate: shorten long texts. batch_tokens: including padding."""

    truncate: bool
    batch_tokens: int


class EncoderTask(Task[Any, Out], Generic[Raw, Out]):
    """A task with one forward pass per batch; inputs of similar length are batched within a token budget.

    Inputs are texts, or images if the model reads images: file paths, file contents (bytes), PIL
    images, arrays or tensors.
    forward: run the model on a batch of items and return one raw output per item.
    postprocess: convert an item and its raw output to a result; both are None if the input was rejected or
    skipped.
    """

    read_ahead = 1024  # inputs that are sorted by length together
    parse_special: bool = False
    reads_pairs = False  # whether an input may be a tuple of two texts

    def __init__(self, bundle: Bundle, *, truncate: bool = False, batch_tokens: int = BATCH_TOKENS) -> None:
        check_at_least("batch_tokens", batch_tokens)
        self.bundle, self.truncate, self.batch_tokens = bundle, truncate, batch_tokens
        self.images = ImageCollator(bundle) if reads_images(bundle) else None
        if self.images is None:
            if input_kind(bundle.spec) == "images":
                hint = "use the task detect or segment"
                raise UnsupportedError(bundle.display_name, "classification and embedding", hint=hint)
            token_input(bundle)
        else:
            self.read_ahead = max(1, batch_tokens // self.images.num_tokens)

    @property
    def model(self) -> Any:
        return encoder_model(self.bundle)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens per text."""
        return max_input_tokens(self.bundle)

    def prepare_text(self, text: str) -> str:
        """Return the text to tokenize, e.g. with a prompt prepended."""
        return text

    @abstractmethod
    def forward(self, items: Sequence[Item]) -> Sequence[Raw]:
        """Run the model on a batch."""

    @abstractmethod
    def postprocess(self, input: Any, item: Item | None, raw: Raw | None) -> Out:
        """Convert the raw output for one input to a result."""

    def preprocess(self, inputs: Sequence[Any], first: int, callbacks: Callbacks) -> list[Item | None]:
        """Encode inputs; None for those rejected or skipped. first: number of the first input, for errors."""
        selected = {n: input for n, input in enumerate(inputs, first) if not callbacks.skips(input)}
        items = (
            self._encode(selected, callbacks) if self.images is None else self._decode(selected, callbacks)
        )
        return [items.get(n) for n in range(first, first + len(inputs))]

    def _encode(self, texts: dict[int, Any], callbacks: Callbacks) -> dict[int, Encoded]:
        vocab_size, items = token_input(self.bundle).vocab_size, dict[int, Encoded]()
        prepared: dict[int, tuple[str, ...]] = {}  # a text, or a pair of texts
        for number, text in texts.items():
            parts = self._parts(number, text)
            errors = [check_characters(part, self.max_tokens) for part in parts]
            error = next((error for error in errors if error is not None), None)
            if error is not None and not self.truncate:
                callbacks.reject("text", number, error)
            else:
                most = self.max_tokens * MAX_CHARACTERS_PER_TOKEN
                prepared[number] = tuple(part[:most] for part in parts)
        tokenizer = require_tokenizer(self.bundle)
        encoded: dict[int, Encoded] = {}
        for size in (1, 2):  # a batch of the tokenizer has either texts or pairs
            group = {number: parts for number, parts in prepared.items() if len(parts) == size}
            columns = list(zip(*group.values(), strict=True))
            batch = tokenizer.encode_batch(*columns, parse_special=self.parse_special) if columns else []
            encoded |= zip(group, batch, strict=True)
        for number, encoding in encoded.items():
            if max(encoding.ids, default=0) >= vocab_size:
                hint = "use the tokenizer of this model"
                raise InvalidValueError("token id", max(encoding.ids), f"at most {vocab_size - 1}", hint=hint)
            if not encoding.ids:
                callbacks.reject("text", number, EmptyInputError("text"))
            elif len(encoding) > self.max_tokens and not self.truncate:
                error = InputTooLongError(len(encoding), self.max_tokens, hint="shorten or truncate it")
                callbacks.reject("text", number, error)
            else:
                items[number] = truncate_longest_first(encoding, self.max_tokens)
        return items

    def _parts(self, number: int, text: Any) -> tuple[str, ...]:
        """Return a text or a pair of texts as a tuple, with everything to tokenize."""
        if not isinstance(text, tuple):
            return (self.prepare_text(check_text(text, "text", number)),)
        if not self.reads_pairs or len(text) != 2:
            raise InvalidValueError(
                f"text {number}", text, "a pair of texts" if self.reads_pairs else "a text"
            )
        return check_text(text[0], "text", number), check_text(text[1], "text_pair", number)

    def _decode(self, files: dict[int, ImageLike], callbacks: Callbacks) -> dict[int, ProcessedImage]:
        assert self.images is not None
        items: dict[int, ProcessedImage] = {}
        for number, image in files.items():
            try:
                items[number] = self.images.process(image)
            except IMAGE_ERRORS as error:
                callbacks.reject("image", number, error)
        return items

    def run(self, inputs: Iterable[Any], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Out]:
        first = 1
        for chunk in chunks(inputs, self.read_ahead):
            items = self.preprocess(chunk, first, callbacks)
            raw = self.run_batches(items, callbacks)
            yield from map(self.postprocess, chunk, items, raw)
            first += len(chunk)

    @torch.inference_mode()
    def run_batches(
        self, items: Sequence[Item | None], callbacks: Callbacks = NO_CALLBACKS
    ) -> list[Raw | None]:
        """Run the model on items in batches; return the raw outputs in the order of the items."""
        results: list[Raw | None] = [None] * len(items)
        known = [(n, item) for n, item in enumerate(items) if item is not None]
        callbacks.on_done(len(items) - len(known))
        lengths = [len(item) if self.images is None else self.images.num_tokens for _, item in known]
        for rows in batches(lengths, self.batch_tokens):
            outputs = self.forward([known[row][1] for row in rows])
            for row, raw in zip(rows, outputs, strict=True):
                results[known[row][0]] = raw
            callbacks.on_done(len(rows))
        return results
