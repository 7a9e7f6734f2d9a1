"""What can be wrong with what a verb that writes is given, each told in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.config import GenerationConfig, merge_generation_config
from glassformer.tasks.reading import sound
from glassformer.tasks.writing.ends import generation_of


def settings_of(bundle: Bundle, given: Mapping[str, Any]) -> GenerationConfig:
    """The folder's settings, and over them those given."""
    return merge_generation_config(generation_of(bundle), given)


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
