"""Base class of all tasks: `preprocess -> model -> postprocess` for one model and one set of options.

>>> import glassformer
>>> from glassformer.tasks import Translator
>>> task = Translator(glassformer.load("pocket"), to="de")          # options are validated here
>>> task("Good morning.").text                                      # one input, one result
'Guten Morgen.'
>>> [result.text for result in task(["Good morning.", "Thank you."])]
['Guten Morgen.', 'Danke.']

`task.run` takes any iterable, reads a bounded number of inputs ahead and yields results in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.model import EncoderOnly
from glassformer.data.image_files import is_image_array, is_pillow_image
from glassformer.errors import (
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnsupportedError,
)
from glassformer.inference.encoder import supports
from glassformer.tokenization import Encoded, Tokenizer

READ_AHEAD_CHARACTERS = 1 << 18  # an encoded character takes up to 300 bytes
MAX_CHARACTERS_PER_TOKEN = 32  # on average; a text with more per token of the limit is not even encoded
BATCH_TOKENS = 16_384  # per batch of an encoder, including padding

In = TypeVar("In")
Out = TypeVar("Out")
Raw = TypeVar("Raw")
Numbers = TypeVar("Numbers", Tensor, NDArray[np.float32], NDArray[np.float64])


@dataclass(eq=False)
class RejectedInputError(GlassformerError):
    """One of several inputs cannot be processed. number: counted from 1. reason: the original error."""

    kind: str
    number: int
    reason: GlassformerError
    template: ClassVar[str] = "{kind} {number:,}: {reason}"

    @property
    def code(self) -> str:
        return self.reason.code

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.reason.fields, "kind": self.kind, "number": self.number}


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Progress and error callbacks of `Task.run`.

    on_done: called with the number of inputs that were just finished, in any order.
    on_reject: called with the number (from 1) of an input that cannot be processed, and the error; its result
    is then empty. Without it, such an input raises `RejectedInputError`.
    skip_blank: skip inputs that are empty or only spaces; their result is empty.
    """

    on_done: Callable[[int], None] = lambda _: None
    on_reject: Callable[[int, GlassformerError], None] | None = None
    skip_blank: bool = False

    def skips(self, item: object) -> bool:
        """Whether to skip an input because it is blank.

        >>> Callbacks(skip_blank=True).skips(" "), Callbacks().skips("")
        (True, False)
        """
        return self.skip_blank and isinstance(item, str) and not item.strip()

    def reject(self, kind: str, number: int, reason: GlassformerError) -> None:
        """Pass the error of an input to `on_reject`; without that callback, raise it."""
        if self.on_reject is None:
            raise RejectedInputError(kind, number, reason)
        self.on_reject(number, reason)


NO_CALLBACKS = Callbacks()


class Task(ABC, Generic[In, Out]):
    """A model with the options of one task. Constructing it validates both and reads no input."""

    bundle: Bundle

    @abstractmethod
    def run(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Out]:
        """Yield a result for each input, in order, reading a bounded number of inputs ahead."""

    @overload
    def __call__(self, inputs: In) -> Out: ...

    @overload
    def __call__(self, inputs: Iterable[In]) -> list[Out]: ...

    def __call__(self, inputs: Any) -> Out | list[Out]:
        """Return one result for one input, and a list of results for several."""
        if not self.is_single(inputs):
            if not isinstance(inputs, Iterable):
                raise InvalidValueError(
                    "inputs", type(inputs).__name__, "a text or file path, or a list of them"
                )
            return list(self.run(inputs))
        try:
            (result,) = self.run([inputs])
        except RejectedInputError as error:
            raise error.reason from None
        return result

    def is_single(self, inputs: Any) -> bool:
        """Whether `inputs` is a single input rather than several."""
        return isinstance(inputs, str | bytes | PathLike) or is_pillow_image(inputs) or is_image_array(inputs)


def chunks(inputs: Iterable[In], size: int) -> Iterator[list[In]]:
    """Yield the inputs in lists of at most `size`, in order; long texts make a list shorter."""
    chunk: list[In] = []
    characters = 0
    for item in inputs:
        chunk.append(item)
        characters += len(item) if isinstance(item, str) else 0
        if len(chunk) >= size or characters >= READ_AHEAD_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of input indices, longest inputs first: if the first batch fits into memory, all do.

    tokens: maximum number of tokens per batch, including padding.

    >>> list(batches([2, 9, 3, 8], tokens=18))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    start = 0
    while start < len(order):
        count = max(1, tokens // max(1, lengths[order[start]]))
        yield order[start : start + count]
        start += count


def check_at_least(name: str, value: int | None, least: int = 1, most: int | None = None) -> None:
    """Raise unless an option is None or an integer of at least `least` and at most `most`."""
    valid = isinstance(value, int) and value >= least and (most is None or value <= most)
    if value is not None and not valid:
        expected = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
        raise InvalidValueError(name, value, expected)


def check_probability(name: str, value: float) -> None:
    """Raise unless an option is a number from 0 to 1."""
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise InvalidValueError(name, value, "a number from 0 to 1")


def check_characters(text: str, limit: int) -> InputTooLongError | None:
    """Return an error if a text has far more characters than `limit` tokens can have, else None."""
    most = limit * MAX_CHARACTERS_PER_TOKEN
    return InputTooLongError(len(text), most, "characters") if len(text) > most else None


def check_text(text: object, kind: str = "text", number: int = 1) -> str:
    """Return the text if it is a string of valid Unicode, else raise.

    The command line decodes invalid UTF-8 bytes as lone surrogates, which no tokenizer accepts.
    """
    if not isinstance(text, str):
        raise InvalidValueError(f"{kind} {number}", type(text).__name__, "a string")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(f"{kind} {number}", ascii(text), "valid Unicode") from None
    return text


def check_finite(bundle: Bundle, output: Numbers) -> Numbers:
    """Return a model's output; raise if it contains NaN or infinity."""
    finite = output.isfinite() if isinstance(output, Tensor) else np.isfinite(output)
    if not finite.all():
        raise NonFiniteError(
            f"the output of {bundle.display_name}",
            hint="its weights are damaged or it overflowed: download or train it again, or use dtype float32",
        )
    return output


def require_tokenizer(bundle: Bundle) -> Tokenizer:
    """Return the model's tokenizer; raise if it has none."""
    if bundle.tokenizer is not None:
        return bundle.tokenizer
    if input_kind(bundle.spec) != "text":
        token_input(bundle)  # raises an error that says what the model reads
    hint = "put its tokenizer.json (or vocab.txt, ...) into its folder"
    raise MissingValueError(f"the tokenizer of {bundle.display_name}", "to encode text", hint=hint)


def token_input(bundle: Bundle) -> specs.TokensSpec:
    """Return the token embedding spec of a model that reads text; raise for any other model."""
    spec: Any = bundle.spec
    read = getattr(spec, "input", getattr(spec, "source", None))
    if isinstance(read, specs.TokensSpec):
        return read
    if (kind := input_kind(spec)) != "text":
        raise UnsupportedError(bundle.display_name, "text input", hint=f"it reads {kind}")
    raise UnsupportedError(bundle.display_name, "this task", hint="it is an LSTM baseline")


def input_kind(spec: Any) -> str:
    """Return the kind of input a model reads: text, images, time series or vectors."""
    if hasattr(spec, "prediction_length"):  # a forecasting baseline
        return "time series"
    if isinstance(spec, specs.TwoTowerSpec):
        return "images and texts"
    read = getattr(spec, "input", getattr(spec, "source", None))
    kinds: dict[type, str] = {
        specs.ImagePatchesSpec: "images",
        specs.FeatureMapSpec: "images",
        specs.ConvolutionStemSpec: "images",
        specs.SeriesPatchesSpec: "time series",
        specs.TokensSpec: "text",
        type(None): "text",  # an LSTM
    }
    return kinds.get(type(read), "vectors")


def max_input_tokens(bundle: Bundle) -> int:
    """Return the maximum input length in tokens; a very large number if there is no limit."""
    declared = bundle.tokenizer.max_length if bundle.tokenizer is not None else None
    bounds = [getattr(token_input(bundle).position, "max_len", None), getattr(bundle.spec, "max_len", None)]
    return min(
        (most for most in (*bounds, bundle.job.max_len, declared) if most is not None), default=1 << 30
    )


def encoder_model(bundle: Bundle) -> Any:
    """Return the model for encoder tasks: prepared for inference if it is encoder-only."""
    if isinstance(bundle.model, EncoderOnly) and supports(bundle.model):
        return bundle.inference_model()
    if bundle.weights != "own":
        raise UnsupportedError(
            bundle.display_name,
            f"{bundle.weights} weights in this task",
            hint="supported are text and image encoders, and text generation",
        )
    return bundle.model


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """A batch of texts: ids (B, T), mask (None: no padding), token types (None if the model has none)."""

    ids: Tensor
    mask: Tensor | None
    types: Tensor | None

    def kwargs(self) -> dict[str, Tensor]:
        """Return the arguments of an encoder besides ids and mask."""
        return {} if self.types is None else {"types": self.types}


def collate(bundle: Bundle, encoded: Sequence[Encoded]) -> TokenBatch:
    """Pad texts of any length on the right to one batch on the model's device.

    For a head that reads the last position, texts are padded to the full length, and padding is not masked.
    """
    read = token_input(bundle)
    head = getattr(bundle.spec, "head", None)
    full = isinstance(head, specs.ProjectionSpec) and head.pool == "last_position"
    longest = max_input_tokens(bundle) if full else max(len(encoding) for encoding in encoded)
    pad_id = require_tokenizer(bundle).pad_id if full else read.pad_id
    ids = torch.full((len(encoded), longest), pad_id or 0)
    types = torch.zeros_like(ids)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, encoding in enumerate(encoded):
        ids[row, : len(encoding)] = torch.tensor(encoding.ids)
        types[row, : len(encoding)] = torch.tensor(encoding.type_ids)
        mask[row, : len(encoding)] = True
    return TokenBatch(
        ids=ids.to(bundle.device),
        mask=None if full or bool(mask.all()) else mask.to(bundle.device),
        types=types.to(bundle.device) if (read.types or 0) > 1 else None,
    )


def truncate_longest_first(encoded: Encoded, limit: int) -> Encoded:
    """Truncate a text to `limit` tokens, keeping all special tokens; of a pair, the longer text first.

    This is the default strategy of transformers, "longest_first".
    """
    if len(encoded) <= limit:
        return encoded
    special, first, second = (
        [n for n, sequence in enumerate(encoded.sequence_ids) if sequence == part] for part in (None, 0, 1)
    )
    capacity = max(0, limit - len(special))
    shorter = min(len(first), len(second), capacity // 2)
    sizes = (shorter, capacity - shorter) if len(first) <= len(second) else (capacity - shorter, shorter)
    return select_tokens(encoded, sorted([*special, *first[: sizes[0]], *second[: sizes[1]]]))


def select_tokens(encoded: Encoded, indices: Sequence[int]) -> Encoded:
    """Return the tokens of a text at `indices`."""
    return Encoded(
        ids=[encoded.ids[n] for n in indices],
        type_ids=[encoded.type_ids[n] for n in indices],
        offsets=[encoded.offsets[n] for n in indices],
        sequence_ids=[encoded.sequence_ids[n] for n in indices],
        word_ids=[encoded.word_ids[n] for n in indices],
    )
