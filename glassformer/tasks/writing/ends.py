"""How a folder's model begins and ends what it writes, and how much it can read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JobInfo
from glassformer.tasks.reading import named, tokenizer_of

Shape = Literal["rewrites", "continues"]  # a source into a target; a prompt into what follows it


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The ids around a text, and the room for it.

    start_ids: how a target begins, None: as the model's spec says. eos_ids: any of them ends a text; none
    where nothing does.
    reads: the most tokens of a source or prompt; None: no bound.
    """

    shape: Shape
    start_ids: tuple[int, ...] | None
    eos_ids: tuple[int, ...]
    pad_id: int
    reads: int | None


def ends_of(bundle: Bundle) -> Ends:
    """What the folder says in generation_config.json, else in config.json, else by its tokenizer and spec."""
    tokenizer, spec = tokenizer_of(bundle), bundle.spec
    shape = shape_of(bundle)
    eos = _ids(bundle, "eos_token_id") or ((tokenizer.eos_id,) if tokenizer.eos_id is not None else ())
    start = _ids(bundle, "decoder_start_token_id") if shape == "rewrites" else ()
    most = _vocabulary(spec)
    for name, ids, needed in (("eos_token_id", eos, 1), ("decoder_start_token_id", start, len(start))):
        if ids and sum(one < most for one in ids) < needed:
            raise GlassformerError(
                f"{named(bundle)} has {name} {max(ids)} among its settings, and knows the tokens 0 to "
                f"{most - 1:,}; mend its generation_config.json, config.json or tokenizer"
            )
    pad = _ids(bundle, "pad_token_id", none=-1)  # as some published folders say it
    known = (*pad, *(() if tokenizer.pad_id is None else (tokenizer.pad_id,)), *eos, 0)
    return Ends(
        shape=shape,
        start_ids=start or None,
        eos_ids=eos,
        pad_id=next(one for one in known if one < most),  # some folders name one that was never learnt
        reads=_room(spec, "source" if shape == "rewrites" else "input") or tokenizer.max_length,
    )


def generation_of(bundle: Bundle) -> Mapping[str, Any]:
    """The folder's settings for writing; older folders have them among the rest of config.json."""
    if bundle.generation:
        return bundle.generation
    return {name: bundle.config[name] for name in _OLD if bundle.config.get(name) is not None}


_OLD = (
    *("max_length", "min_length", "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size"),
    *("repetition_penalty", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "eos_token_id"),
)


def shape_of(bundle: Bundle) -> Shape:
    """Whether the model rewrites a source or goes on from a prompt; one that writes nothing is refused."""
    kind = type(bundle.spec).__name__
    head = getattr(bundle.spec, "head", None)
    writes = head is None or type(head).__name__ == "LanguageModel"  # a baseline has no other head
    if writes and kind in ("EncoderDecoder", "LSTMEncoderDecoder"):
        return "rewrites"
    if writes and kind in ("DecoderOnly", "LSTMLanguageModel"):
        return "continues"
    raise GlassformerError(
        f"{named(bundle)} writes no text ({kind} with the head {type(head).__name__}); "
        "give an encoder-decoder or a language model"
    )


def check_job(bundle: Bundle, verb: str, *, jobs: tuple[str, ...]) -> JobInfo:
    """What the folder says of the job it was trained for, where that is one of those the verb is for."""
    job = bundle.job.name
    if job is not None and job not in jobs:
        raise GlassformerError(f"{named(bundle)} was trained to {_WORDS.get(job, job)}, not to {verb}")
    return bundle.job


_WORDS = {"lm": "continue text", "images": "tell images apart"}


def _ids(bundle: Bundle, name: str, *, none: int | None = None) -> tuple[int, ...]:
    """An id, or several, under a name; what is not there, null or `none` is none."""
    found = bundle.generation.get(name)
    found = bundle.config.get(name) if found is None else found
    ids = tuple(found) if isinstance(found, list) else () if found in (None, none) else (found,)
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise GlassformerError(
                f"{named(bundle)} has {name} {one!r} among its settings; an id is due there"
            )
    return ids


def _vocabulary(spec: Any) -> int:
    """How many tokens a model can be given and write."""
    sides = [getattr(spec, name, None) for name in ("source", "target", "input", "head")]
    counts = [getattr(side, "vocab_size", None) for side in sides]
    counts += [getattr(spec, name, None) for name in ("src_vocab_size", "tgt_vocab_size", "vocab_size")]
    return min(count for count in counts if count is not None)


def _room(spec: Any, side: str) -> int | None:
    position = getattr(getattr(spec, side, None), "position", None)
    found: int | None = getattr(position, "max_len", None) or getattr(spec, "max_len", None)
    return found
