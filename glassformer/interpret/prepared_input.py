"""An input of a trace as the arguments of the model's forward, with the tokens at each position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from torch import Tensor

from glassformer.core.inputs import ModelInputs
from glassformer.data.image_processing import Size
from glassformer.data.windows import Doubles
from glassformer.interpret.schema import Kind, TokenSequence, TraceInput
from glassformer.processors.series import WindowScale
from glassformer.tasks.question_answering import EncodedQuestion

MAX_NUMBERS: Final = 1 << 25  # of one tensor in one forward pass
MAX_COPIES: Final = 64  # of the input in one forward pass


@dataclass(frozen=True, kw_only=True)
class PastValues:
    """The input columns of a forecast, in the units of the data.

    values (context, C): the steps that the model reads. truth (n, C): held-out steps, at most `horizon`.
    """

    names: tuple[str, ...]
    values: Doubles
    truth: Doubles | None
    scale: WindowScale
    horizon: int


@dataclass(frozen=True, kw_only=True)
class PreparedInput:
    """An input prepared for `model(**inputs)`.

    inputs: the arguments of the forward: src (1, S) and tgt (1, T) of an encoder-decoder, inputs (1, T) of
    others; texts as `TextInputs`, with masks, types or positions. sequences: the tokens at each position.
    rows: names of the batch rows, if there are several. start: number of target positions before the
    generated tokens. finish_reason: why generation stopped, if the model generated the target. question,
    past, size (height and width of the image): needed to compute the outcome. tensors: additional tensors of
    the input, by name.
    """

    kind: Kind
    input: TraceInput
    sequences: tuple[TokenSequence, ...]
    inputs: Mapping[str, Any]
    rows: tuple[str, ...] | None = None
    start: int = 0
    finish_reason: str | None = None
    question: EncodedQuestion | None = None
    past: PastValues | None = None
    size: Size | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def repeated(self, copies: int) -> dict[str, Any]:
        """Return the arguments of the forward with each row repeated."""
        rows = ((name, value) for name, value in self.inputs.items() if value is not None)
        return dict.fromkeys(self.inputs) | {name: repeat_rows(value, copies) for name, value in rows}


def copies_per_batch(*tensors: Tensor) -> int:
    """Return how many copies of an input to run together, from the largest tensors of one.

    >>> import torch
    >>> copies_per_batch(torch.empty(1, 1 << 10, 1 << 12))
    8
    """
    largest = max((tensor.numel() for tensor in tensors), default=0)
    return max(1, min(MAX_COPIES, MAX_NUMBERS // max(largest, 1)))


def repeat_rows(inputs: ModelInputs, copies: int) -> Any:
    """Return the inputs of a model with each row repeated."""
    if isinstance(inputs, Tensor):
        return inputs.repeat_interleave(copies, 0)
    tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    repeated: Any = {name: value.repeat_interleave(copies, 0) for name, value in tensors.items()}
    return replace(inputs, **repeated)
