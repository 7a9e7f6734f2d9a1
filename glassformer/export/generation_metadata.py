"""What a folder says about generation: start and end tokens, languages, suppressed tokens."""

from __future__ import annotations

from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.tokenization import code_languages, tag_ids, tag_languages, tag_position

NAMED = 8  # languages in the note


def config_values(bundle: Bundle, name: str) -> list[Any]:
    """The value of a key as a list, from generation_config.json or else config.json."""
    found = bundle.generation.get(name)
    found = bundle.config.get(name) if found is None else found
    return list(found) if isinstance(found, list) else [] if found is None else [found]


def special_token_id(bundle: Bundle, name: str) -> int | None:
    """The id of a special token: bos, eos, unk."""
    return None if bundle.tokenizer is None else getattr(bundle.tokenizer, f"{name}_id")


def end_tokens(bundle: Bundle) -> list[int]:
    """The tokens that end a text, if the folder names any."""
    eos = special_token_id(bundle, "eos")
    return config_values(bundle, "eos_token_id") or ([] if eos is None else [eos])


def start_tokens(bundle: Bundle, what: spec.Model) -> list[int]:
    """The tokens that a target starts with; none for a decoder-only model."""
    if not isinstance(what, spec.EncoderDecoder):
        return []
    return config_values(bundle, "decoder_start_token_id") or (
        [] if what.start_id is None else [what.start_id]
    )


def language_tokens(bundle: Bundle) -> dict[str, Any]:
    """How a multilingual translator is given the target language; empty for a single language.

    ids: a token id for each language. in: whether it goes into the source or the target.
    place: its position there; in a target, after the start tokens.
    """
    tokenizer, what = bundle.tokenizer, bundle.spec
    if tokenizer is None or not isinstance(what, spec.EncoderDecoder):
        return {}
    job = bundle.job  # a model trained here lists its languages
    if known := tag_languages(tokenizer) if job.name is None else job.languages:
        ids = tag_ids(tokenizer, [f">>{one}<<" for one in known])
        return {"in": "source", "place": tag_position(tokenizer), "ids": dict(zip(known, ids, strict=True))}
    if job.name is None and (known := code_languages(tokenizer)):
        ids = tag_ids(tokenizer, known)
        place = len(start_tokens(bundle, what))
        return {"in": "target", "place": place, "ids": dict(zip(known, ids, strict=True))}
    return {}


def language_note(bundle: Bundle) -> tuple[str, ...]:
    """A note for users of a multilingual model."""
    tokens = language_tokens(bundle)
    if not tokens:
        return ()
    names = list(tokens["ids"])
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    how = "a token in the source" if tokens["in"] == "source" else "the first token of the target"
    return (
        f"it translates into several languages ({listed}), chosen by {how}: "
        "see languages in export.json for ids and position",
    )


def forced_first_tokens(bundle: Bundle) -> list[int]:
    """The token that follows the start tokens in every target, unless that is the language."""
    tokens = language_tokens(bundle)
    return [] if tokens.get("in") == "target" else config_values(bundle, "forced_bos_token_id")


def suppressed_tokens(bundle: Bundle) -> list[int]:
    """Tokens that are never generated, according to the folder."""
    words = config_values(bundle, "bad_words_ids")
    return [*config_values(bundle, "suppress_tokens"), *(word[0] for word in words if len(word) == 1)]
