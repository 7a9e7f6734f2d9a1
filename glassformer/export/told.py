"""What a folder tells of how its model writes: where a target starts, what ends it, what is never written."""

from __future__ import annotations

from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.tokenization import code_languages, tag_ids, tag_languages, tag_position

NAMED = 8  # languages of a note; the file has all


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


def languages_of(bundle: Bundle) -> dict[str, Any]:
    """How the language to write is told to a translator of several; empty for one of a single language.

    ids: a token's id for each language. in: the ids that it goes into, those of the source or of the target.
    place: before which of them; in a target, behind what it starts with.
    """
    tokenizer, what = bundle.tokenizer, bundle.spec
    if tokenizer is None or not isinstance(what, spec.EncoderDecoder):
        return {}
    job = bundle.job  # a model trained here says what it was taught, whatever its marks
    if known := tag_languages(tokenizer) if job.name is None else job.languages:
        ids = tag_ids(tokenizer, [f">>{one}<<" for one in known])
        return {"in": "source", "place": tag_position(tokenizer), "ids": dict(zip(known, ids, strict=True))}
    if job.name is None and (known := code_languages(tokenizer)):
        ids = tag_ids(tokenizer, known)
        place = len(starts_of(bundle, what))
        return {"in": "target", "place": place, "ids": dict(zip(known, ids, strict=True))}
    return {}


def language_note(bundle: Bundle) -> tuple[str, ...]:
    """What whoever runs a model of several languages has to do."""
    told = languages_of(bundle)
    if not told:
        return ()
    names = list(told["ids"])
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    how = "one token among the source's" if told["in"] == "source" else "the first token of the target"
    return (
        f"it writes several languages ({listed}), each told by {how}: "
        "export.json has their ids and the place (languages)",
    )


def begun_by(bundle: Bundle) -> list[int]:
    """The token that every target begins with, behind its start; none where that is the language's."""
    told = languages_of(bundle)
    return [] if told.get("in") == "target" else said(bundle, "forced_bos_token_id")


def never_written(bundle: Bundle) -> list[int]:
    """Tokens that the folder says are never written."""
    words = said(bundle, "bad_words_ids")
    return [*said(bundle, "suppress_tokens"), *(word[0] for word in words if len(word) == 1)]
