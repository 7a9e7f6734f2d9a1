"""What a folder tells of how its model writes: where a target starts, what ends it, what is never written."""

from __future__ import annotations

from typing import Any

from glassformer.api import JOB, Bundle
from glassformer.core import spec
from glassformer.text import encode_tagged


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
    """How the language to write is told to a model of several: an id that goes into a source's ids.

    place: before which of the ids it goes. ids: one for each language. Empty for a model of one language.
    """
    known, tokenizer = bundle.files.get(JOB, {}).get("languages"), bundle.tokenizer
    if not known or tokenizer is None:
        return {}
    (plain,), tags = tokenizer.encode_batch(["a"]), [f">>{one}<<" for one in known]
    tagged = [encode_tagged(tokenizer, ["a"], tag)[0].ids for tag in tags]
    place = next(n for n, index in enumerate(tagged[0]) if [*plain.ids, None][n] != index)
    return {"place": place, "ids": {one: ids[place] for one, ids in zip(known, tagged, strict=True)}}


def language_note(bundle: Bundle) -> tuple[str, ...]:
    """What whoever runs a model of several languages has to do."""
    known = languages_of(bundle).get("ids")
    if not known:
        return ()
    return (
        f"it writes several languages ({', '.join(known)}), each told by one token among the source's: "
        "export.json has their ids and the place (languages)",
    )


def never_written(bundle: Bundle) -> list[int]:
    """Tokens that the folder says are never written."""
    words = said(bundle, "bad_words_ids")
    return [*said(bundle, "suppress_tokens"), *(word[0] for word in words if len(word) == 1)]
