"""The next token as the verbs choose it, for whoever goes one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.generation import GenerationConfig, GenerationRequest
from glassformer.generation.shaping import Shaping
from glassformer.tasks.writing.ends import Ends


def vocabulary(bundle: Bundle) -> int:
    """How many tokens the model can write."""
    head: Any = bundle.spec.head
    size: int = head.vocab_size
    return size


def shaping_of(
    bundle: Bundle, settings: GenerationConfig, ends: Ends, *, given: Sequence[int], limit: int
) -> Shaping:
    """What the settings do to the scores of one text.

    given: what stands before the first token to write, a target's start tokens or the prompt. limit: the most
    tokens that are written.
    """
    GenerationRequest(config=settings, decode=str).check_forced_ids(vocabulary(bundle))
    first = settings.forced_bos_token_id
    forced = first is not None and ends.shape == "rewrites" and len(given) == 1
    return Shaping.of(
        settings,
        ends=torch.tensor(ends.eos_ids).long(),
        vocab=vocabulary(bundle),
        prefix=(first,) if first is not None and forced else (),
        limits=torch.tensor([limit]),
        least=torch.tensor([max(settings.min_length - len(given), settings.min_new_tokens)]),
        given=torch.tensor([list(given)]).long(),
    )


def limit_of(settings: GenerationConfig, *, given: int, usual: int) -> int:
    """The most tokens that are written after so many given ones: as the settings say, else `usual`."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    return usual if settings.max_length is None else max(0, settings.max_length - given)


def room_after(bundle: Bundle, given: int, most: int) -> int:
    """How many tokens can follow so many given ones and still be read, at most `most`: tables have an end."""
    model: Any = bundle.model
    embed = model.tgt_embed if hasattr(model, "tgt_embed") else model.embed
    places = getattr(getattr(embed, "position", None), "max_len", None)
    return most if places is None else min(most, places - given)
