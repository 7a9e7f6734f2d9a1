"""What can be wrong with what a verb that writes is given, each told in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.settings import Decoding, decoding_from
from glassformer.tasks.reading import named, sound
from glassformer.tasks.writing.ends import generation_of

SEEDS = 1 << 64
STEEPEST = 10  # a length to this power is still a number in float32


def settings_of(bundle: Bundle, given: Mapping[str, Any]) -> Decoding:
    """The folder's settings, and over them those given."""
    try:
        words = decoding_from(generation_of(bundle), **given)
    except TypeError as error:
        raise GlassformerError(
            f"a setting given, or one in the generation_config.json of {named(bundle)}, is of the wrong "
            f"kind: {error}"
        ) from None
    if words.seed is not None and words.seed >= SEEDS:
        raise GlassformerError(f"seed must be below 2^64; got {words.seed}")
    if abs(words.length_penalty) > STEEPEST:
        raise GlassformerError(
            f"length_penalty must lie between {-STEEPEST} and {STEEPEST}; got {words.length_penalty}; "
            "beyond, the scores of long texts cannot be told apart"
        )
    return words


def numbered(texts: Iterable[Any], what: str) -> Iterator[tuple[int, str]]:
    """The texts with their numbers from 1; one that is none is refused under its number."""
    for number, text in enumerate(texts, 1):
        yield number, sound(text, f"{what} {number:,}")


@contextmanager
def within_bounds() -> Iterator[None]:
    """Tell what is too large for the machine in a sentence."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _of_memory(error):
            raise
        raise GlassformerError(
            "the memory does not hold a batch; lower batch_tokens, num_beams or max_new_tokens"
        ) from None


def _of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
