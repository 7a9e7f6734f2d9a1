"""Models that write: a source with its target, or a prompt with what was written after it.

S source places, T target places.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationConfig, GenerationRequest, generate_batched
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.stopping import truncate_at_stop
from glassformer.interpret.changed import Changed
from glassformer.interpret.choosing import limit_of, room_after, vocabulary
from glassformer.interpret.kinds import Change, Given, Sequence, Token
from glassformer.interpret.ready import Ready, all_real
from glassformer.interpret.sentences import read_as
from glassformer.interpret.sequences import pieces, read_text, written_text
from glassformer.tasks.reading import device_of, named, picked, tokenizer_of
from glassformer.tasks.writing.checks import within_bounds
from glassformer.tasks.writing.ends import Ends, ends_of
from glassformer.tasks.writing.prompts import following, prompt_ids
from glassformer.tasks.writing.rewriting import searching, usual_limit
from glassformer.tasks.writing.sources import Language, language, mending
from glassformer.tokenization import Tokenizer, encode_tagged

WRITTEN = 128  # tokens of an own answer at most


def rewriting(bundle: Bundle, given: Given, changes: Several[Change], most: int) -> Ready:
    """A source, and the target: what is given of it, else the model's own answer under the changes."""
    tokenizer, ends = tokenizer_of(bundle), ends_of(bundle)
    spoken = language(bundle, given.to, by="`to`")
    source = read_source(bundle, given, spoken)
    _check_room(bundle, "the text", len(source), min(ends.reads or most, most))
    starts = list(decoder_start_ids(bundle.model, ends.start_ids))
    ids = [token.id for token in source.tokens if token.id is not None]
    spec: Any = bundle.spec
    src = torch.tensor([ids], device=device_of(bundle))
    inputs = {"src": src, **all_real("src_mask", src, spec.source)}
    ended: str | None = None
    stop: tuple[str, ...] = ()
    own = given.target is None
    if own:
        settings = replace(searching(bundle, {}, spoken), do_sample=False, num_return_sequences=1)
        written, ended = own_answer(bundle, ids, changes, ends, settings)
        stop = settings.stop_strings
    else:
        written = given_ids(bundle, given)
    _check_room(bundle, "the target", len(starts) + len(written), most)
    text = told(tokenizer, written, stop)
    tgt = torch.tensor([[*starts, *written]], device=device_of(bundle))
    return Ready(
        kind="translate",
        given=given,
        sequences=(source, target(tokenizer, [*starts, *written], len(starts), text)),
        inputs={**inputs, "tgt": tgt, **all_real("tgt_mask", tgt, spec.target, first=1)},
        start=len(starts),
        ended=ended,
        wrote=own,
    )


def read_source(bundle: Bundle, given: Given, spoken: Language) -> Sequence:
    """The text as the model reads it: behind a prefix or a tag, with the gaps it is to mend, with letters."""
    tokenizer, body = tokenizer_of(bundle), (given.text or "").strip()
    if not body:
        raise GlassformerError(f"{named(bundle)} reads a text; give one as `text`")
    job = bundle.job
    if job.name == "restore":
        (ids,) = mending(bundle, gap=job.gap, before=job.before)([body])
        tokens = _between_gaps(tokenizer, ids, body, str(job.gap))
        return Sequence(name="source", kind="text", text=body, tokens=tokens)
    text = spoken.prefix + read_as(bundle, body, given.to)[0]
    if spoken.tag is None:
        made = tokenizer.encode(text)
    else:
        (made,) = encode_tagged(tokenizer, [text], spoken.tag)
    if not made.ids:
        raise GlassformerError("the text has no token that the model's tokenizer knows; give another")
    return read_text(tokenizer, made, text, "source")


def _between_gaps(tokenizer: Tokenizer, ids: list[int], text: str, gap: str) -> tuple[Token, ...]:
    """The tokens of a text with gaps; each gap's stands where its mark does."""
    index, found, at = tokenizer.token_id(gap), list[Token](), 0
    while index in ids:
        cut, place = ids.index(index), text.index(gap, at)
        found += written_text(tokenizer, ids[:cut], text[:place], "source", first=at)
        at = place + len(gap)
        found.append(replace(pieces(tokenizer, ids[cut : cut + 1])[0], start=place, end=at))
        ids = ids[cut + 1 :]
    return (*found, *written_text(tokenizer, ids, text, "source", first=at))


def told(tokenizer: Tokenizer, ids: Several[int], stop: Several[str] = ()) -> str:
    """What was written, as `translate` tells it: one line."""
    return " ".join(truncate_at_stop(tokenizer.decode(ids), stop).splitlines()).strip()


def target(tokenizer: Tokenizer, ids: Several[int], start: int, text: str) -> Sequence:
    """The tokens that start a target, and those that were written."""
    first = [replace(token, special=True) for token in pieces(tokenizer, ids[:start], "target")]
    rest = written_text(tokenizer, ids[start:], text, "target")
    return Sequence(name="target", kind="text", text=text, tokens=(*first, *rest), prefix=start)


def given_ids(bundle: Bundle, given: Given) -> list[int]:
    """What was written so far, as ids that the model can write, whether its tokenizer spells them or not."""
    if not given.target:
        return []
    ids = given.target
    if isinstance(ids, str):
        ids = tuple(tokenizer_of(bundle).encode(ids, special=False, side="target").ids)
    if ids and max(ids) >= (known := vocabulary(bundle)):
        raise GlassformerError(
            f"the target has the token {max(ids)}, and {named(bundle)} knows {known:,}; "
            "give ids of this model"
        )
    return list(ids)


def own_answer(
    bundle: Bundle, source: list[int], changes: Several[Change], ends: Ends, settings: GenerationConfig
) -> tuple[list[int], str]:
    """What the verb writes for a source, searched with the changed model; the ids, and why they ended."""
    model: Any = bundle.model
    starts = len(decoder_start_ids(model, ends.start_ids))
    limit = limit_of(settings, given=starts, usual=usual_limit(len(source)))
    with within_bounds():
        ((written,),) = generate_batched(
            Changed(model, changes) if changes else bundle.ready(),
            [source],
            GenerationRequest(
                config=settings,
                start_ids=ends.start_ids,
                eos_token_id=ends.eos_ids,
                pad_token_id=ends.pad_id,
                max_new_tokens=min(limit, WRITTEN),
                decode=tokenizer_of(bundle).decode,
            ),
        )
    # the last token written needs no position to be written, but one to be looked at
    return written.ids[: room_after(bundle, starts, WRITTEN)], written.finish_reason


def continuing(bundle: Bundle, given: Given, most: int) -> Ready:
    """A prompt, and behind it what was written so far."""
    tokenizer, ends = tokenizer_of(bundle), ends_of(bundle)
    if given.text is None:
        raise GlassformerError(f"{named(bundle)} goes on from a prompt; give one as `text`")
    (prompt,) = prompt_ids(bundle, ends, [given.text])
    written = given_ids(bundle, given)
    _check_room(
        bundle, "the prompt with what is written", len(prompt) + len(written), min(ends.reads or most, most)
    )
    made = tokenizer.encode(given.text)
    if made.ids[: len(prompt)] == prompt and given.text:
        read = read_text(tokenizer, picked(made, range(len(prompt))), given.text, "input").tokens
    else:  # an empty prompt begins with a mark of its own
        read = tuple(replace(token, special=True) for token in pieces(tokenizer, prompt))
    text = given.text + following(tokenizer, prompt, written)
    after = written_text(tokenizer, written, text, "target", first=len(given.text))
    sequence = Sequence(name="input", kind="text", text=text, tokens=(*read, *after))
    spec: Any = bundle.spec
    ids = torch.tensor([[*prompt, *written]], device=device_of(bundle))
    return Ready(
        kind="generate",
        given=given,
        sequences=(sequence,),
        inputs={"ids": ids, **all_real("mask", ids, spec.input)},
        start=len(prompt),
        ended="end" if written and written[-1] in ends.eos_ids else None,
    )


def _check_room(bundle: Bundle, what: str, length: int, most: int) -> None:
    if length > most:
        raise GlassformerError(
            f"{what} has {length:,} tokens, and a trace of {named(bundle)} takes at most {most:,}; shorten it"
        )
