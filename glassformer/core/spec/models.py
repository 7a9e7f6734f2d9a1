"""Whole models, and how a fresh one's numbers are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.checks import Part
from glassformer.core.spec.heads import Head
from glassformer.core.spec.inputs import Input
from glassformer.core.spec.parts import Stack
from glassformer.errors import InvalidValueError, MissingValueError


@dataclass(frozen=True, kw_only=True)
class Xavier(Part):
    """Matrices uniform by fan-in and fan-out, biases 0, token embeddings normal with 1/sqrt(d)."""


@dataclass(frozen=True, kw_only=True)
class Normal(Part):
    """Everything normal with `std`; with `residual`, layers writing to the stream shrunk by depth."""

    std: float = 0.02
    residual: Literal["same", "shrunk"] = "same"


Init = Xavier | Normal

# ---- whole models -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Part):
    """Reads one sequence, writes another. `tied` names what shares the target's token matrix."""

    source: Input
    target: Input
    encoder: Stack
    decoder: Stack
    head: Head
    tied: tuple[Literal["source", "head"], ...] = ()
    start_id: int | None = None
    init: Init = field(default_factory=Xavier)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder.block.cross_attention is None:
            raise MissingValueError("cross_attention", "in the block of an EncoderDecoder's decoder")


@dataclass(frozen=True, kw_only=True)
class EncoderOnly(Part):
    """Reads a whole sequence at once, every position seeing every other."""

    input: Input
    encoder: Stack
    head: Head
    tied: tuple[Literal["head"], ...] = ()
    init: Init = field(default_factory=Normal)


@dataclass(frozen=True, kw_only=True)
class DecoderOnly(Part):
    """Reads from left to right, every position seeing only those before it.

    max_len: the longest sequence it was made for, where no position table says so; not enforced.
    """

    input: Input
    decoder: Stack
    head: Head
    tied: tuple[Literal["head"], ...] = ()
    max_len: int | None = None
    init: Init = field(default_factory=Normal)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decoder.causal:
            raise InvalidValueError("causal", False, "True in the stack of a DecoderOnly")


Model = EncoderDecoder | EncoderOnly | DecoderOnly
