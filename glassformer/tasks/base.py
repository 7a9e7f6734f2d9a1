"""Base classes of all tasks: `processor -> forward -> postprocess` for one model and one set of options.

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
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from typing import Any, ClassVar, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.model import EncoderOnly
from glassformer.errors import GlassformerError, InvalidValueError, NonFiniteError, UnsupportedError
from glassformer.inference.encoder import supports
from glassformer.processors.base import READ_AHEAD, Processor

READ_AHEAD_CHARACTERS = 1 << 18  # an encoded character takes up to 300 bytes
BATCH_TOKENS = 16_384  # per batch of an encoder, including padding

In = TypeVar("In")
Out = TypeVar("Out")
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
    on_step: called before each input and between the steps of a long one; an exception ends the task.
    on_reject: called with the number (from 1) of an input that cannot be processed, and the error; its result
    is then empty. Without it, such an input raises `RejectedInputError`.
    skip_blank: skip inputs that are empty or only spaces; their result is empty.
    """

    on_done: Callable[[int], None] = lambda _: None
    on_step: Callable[[], None] = lambda: None
    on_reject: Callable[[int, GlassformerError], None] | None = None
    skip_blank: bool = False

    def reject(self, kind: str, number: int, reason: GlassformerError) -> None:
        """Pass the error of an input to `on_reject`; without that callback, raise it."""
        if self.on_reject is None:
            raise RejectedInputError(kind, number, reason)
        self.on_reject(number, reason)


NO_CALLBACKS = Callbacks()


class Task(ABC, Generic[In, Out]):
    """A model with the options of one task. Constructing it validates both and reads no input.

    read_ahead: number of inputs that are loaded together.
    """

    bundle: Bundle
    read_ahead: int = READ_AHEAD

    @abstractmethod
    def run(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Out]:
        """Yield a result for each input, in order, reading a bounded number of inputs ahead."""

    def load(self, inputs: Iterable[In]) -> Iterable[Any]:
        """Convert inputs to items; return the errors of those that cannot be processed in their place."""
        return inputs

    def is_single(self, inputs: Any) -> bool:
        """Whether `inputs` is a single input rather than several."""
        return isinstance(inputs, str | bytes | PathLike)

    def input_name(self, input: In) -> str:
        """Return what an input is called in errors."""
        return "text"

    def is_blank(self, input: In) -> bool:
        """Whether an input is empty or only spaces."""
        return isinstance(input, str) and not input.strip()

    def read(self, inputs: Iterable[In], callbacks: Callbacks) -> Iterator[list[tuple[In, Any]]]:
        """Yield lists of inputs with their items, in order; None for those rejected or skipped."""
        first = 1
        for chunk in chunks(inputs, self.read_ahead):
            rows = [n for n, one in enumerate(chunk) if not (callbacks.skip_blank and self.is_blank(one))]
            items: list[Any] = [None] * len(chunk)
            for row, item in zip(
                rows, self.load(_stepwise((chunk[row] for row in rows), callbacks)), strict=True
            ):
                if isinstance(item, GlassformerError):
                    callbacks.reject(self.input_name(chunk[row]), first + row, item)
                else:
                    items[row] = item
            yield list(zip(chunk, items, strict=True))
            first += len(chunk)

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


class BatchTask(Task[In, Out]):
    """A task with one forward pass per batch; inputs of similar size are batched within a budget.

    processor: loads inputs and collates them. budget: maximum size of a batch, including padding.
    """

    processor: Processor[Any, Any]
    budget: int = 1

    @abstractmethod
    def forward(self, items: Sequence[Any]) -> Sequence[Any]:
        """Run the model on a batch of items; return one raw output per item."""

    @abstractmethod
    def postprocess(self, input: In, item: Any, raw: Any) -> Out:
        """Convert an input, its item and its raw output to a result; both are None if it was rejected."""

    def load(self, inputs: Iterable[In]) -> Iterable[Any]:
        return self.processor.load_batch(inputs)

    def is_single(self, inputs: Any) -> bool:
        return self.processor.is_single(inputs)

    def input_name(self, input: In) -> str:
        return self.processor.name

    def preprocess(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Any]:
        """Yield an item for each input; None for those rejected or skipped."""
        for chunk in self.read(inputs, callbacks):
            yield from (item for _, item in chunk)

    def run(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Out]:
        for chunk in self.read(inputs, callbacks):
            outputs = self.run_batches([item for _, item in chunk], callbacks)
            for (input, item), raw in zip(chunk, outputs, strict=True):
                yield self.postprocess(input, item, raw)

    @torch.inference_mode()
    def run_batches(self, items: Sequence[Any], callbacks: Callbacks = NO_CALLBACKS) -> list[Any]:
        """Run the model on items in batches; return the raw outputs in the order of the items."""
        outputs: list[Any] = [None] * len(items)
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for row, item in enumerate(items):
            if item is not None:
                groups[self.processor.group(item)].append(row)
        callbacks.on_done(sum(item is None for item in items))
        for group in groups.values():
            for batch in batches([self.processor.size(items[row]) for row in group], self.budget):
                rows = [group[n] for n in batch]
                for row, output in zip(rows, self.forward([items[row] for row in rows]), strict=True):
                    outputs[row] = output
                callbacks.on_done(len(rows))
        return outputs


def _stepwise(inputs: Iterable[In], callbacks: Callbacks) -> Iterator[In]:
    """Yield the inputs; call `on_step` before each."""
    for input in inputs:
        callbacks.on_step()
        yield input


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


def check_finite(bundle: Bundle, output: Numbers) -> Numbers:
    """Return a model's output; raise if it contains NaN or infinity."""
    finite = output.isfinite() if isinstance(output, Tensor) else np.isfinite(output)
    if not finite.all():
        raise NonFiniteError(
            f"the output of {bundle.display_name}",
            hint="its weights are damaged or it overflowed: download or train it again, or use dtype float32",
        )
    return output


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
