"""What a folder tells of how its model writes: where a target starts, what ends it, what is never written."""

from __future__ import annotations

from typing import Any

from glassformer.api import Bundle
from glassformer.core import spec


def said(bundle: Bundle, name: str) -> list[Any]:
    """What a folder gives under a name, in generation_config.json or else in config.json."""
    found = bundle.generation.get(name)
    found = bundle.config.get(name) if found is None else found
    return list(found) if isinstance(found, list) else [] if found is None else [found]


def role(bundle: Bundle, name: str) -> int | None:
    """The token of the tokenizer that has a role: bos, eos, unk."""
    return None if bundle.tokenizer is None else getattr(bundle.tokenizer, f"{name}_id")


def ends_of(bundle: Bundle) -> list[int]:
    """The tokens that end a text; none where the folder names none."""
    eos = role(bundle, "eos")
    return said(bundle, "eos_token_id") or ([] if eos is None else [eos])


def starts_of(bundle: Bundle, what: spec.Model) -> list[int]:
    """The tokens that a target starts with; none for a model without a source, or where nothing names one."""
    if not isinstance(what, spec.EncoderDecoder):
        return []
    return said(bundle, "decoder_start_token_id") or ([] if what.start_id is None else [what.start_id])


def never_written(bundle: Bundle) -> list[int]:
    """Tokens that the folder says are never written."""
    words = said(bundle, "bad_words_ids")
    return [*said(bundle, "suppress_tokens"), *(word[0] for word in words if len(word) == 1)]
