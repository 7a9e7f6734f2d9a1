"""From what a person gives to what a model takes, for every kind of model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence as Several
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.interpret import series, writers
from glassformer.interpret.kinds import Change, Given
from glassformer.interpret.outline import kind_of
from glassformer.interpret.ready import Ready, all_real
from glassformer.interpret.sequences import patches, read_text
from glassformer.tasks.embed import beginning, sentence_words
from glassformer.tasks.fill import MASK, mark_of
from glassformer.tasks.picturing import Ready as Pictures
from glassformer.tasks.picturing import reads_pictures
from glassformer.tasks.reading import encoded, named, room_of, together, tokenizer_of
from glassformer.tokenization import Encoded

MOST = 1024  # tokens that are looked into at once
LETTERS = 100_000  # of a text
PICTURE = 16_000_000  # bytes of a picture's file


def ready_for(bundle: Bundle, given: Given, changes: Several[Change] = ()) -> Ready:
    """The input made ready, by the model's kind; a word it needs and lacks is a sentence."""
    for name in ("text", "target", "question", "context"):
        if isinstance(text := getattr(given, name), str) and len(text) > LETTERS:
            raise GlassformerError(
                f"the {name} has {len(text):,} letters, and a trace takes at most {LETTERS:,}; shorten it"
            )
    kind = kind_of(bundle)
    match kind:
        case "translate":
            return writers.rewriting(bundle, given, changes, MOST)
        case "generate":
            return writers.continuing(bundle, given, MOST)
        case "forecast":
            return series.ready(bundle, given)
        case "answer":
            return _asked(bundle, given)
        case "image":
            return _picture(bundle, given)
        case "embed" if reads_pictures(bundle):
            return _picture(bundle, given)
    return _text(bundle, given)


def _text(bundle: Bundle, given: Given) -> Ready:
    """A text read whole: to be classified, embedded, or its masks filled."""
    kind, text, tokenizer = kind_of(bundle), given.text, tokenizer_of(bundle)
    if text is None:
        raise GlassformerError(f"{named(bundle)} reads a text; give one as `text`")
    room = room_of(bundle)
    if kind == "embed":
        words = sentence_words(bundle)
        room = min(room, words.get("max_seq_length") or room)
        text = beginning(bundle, None) + text
        text = text.lower() if words.get("do_lower_case") else text
    if kind == "fill":
        mark = mark_of(tokenizer, bundle)
        text = text if mark in text else text.replace(MASK, mark)
    (made,) = encoded(
        bundle,
        [text],
        first=1,
        room=min(room, MOST),
        special_in_text="keep" if kind == "fill" else "plain",
    )
    assert made is not None  # where nobody hears of a refusal, it ends all
    sequence = read_text(tokenizer, made, text, "source" if _both(bundle) else "input")
    if not _both(bundle):
        return Ready(kind=kind, given=given, sequences=(sequence,), inputs=_words(bundle, made))
    # a classifier with two stacks reads the same text on both sides
    start = getattr(bundle.spec, "start_id", None)
    if start is None:
        raise GlassformerError(f"{named(bundle)} does not say which token starts its answers")
    ids = together([made], bundle).ids
    begun = torch.cat((torch.full_like(ids[:, :1], start), ids[:, :-1]), 1)
    again = writers.target(tokenizer, begun[0].tolist(), 1, text)
    return Ready(
        kind=kind, given=given, sequences=(sequence, again), inputs={"src": ids, "tgt": begun}, start=1
    )


def _both(bundle: Bundle) -> bool:
    return isinstance(bundle.spec, specs.EncoderDecoder)


def _words(bundle: Bundle, made: Encoded) -> dict[str, Any]:
    """The named arguments of a model with one stack."""
    batch = together([made], bundle)
    name = "ids" if isinstance(bundle.spec, specs.DecoderOnly) else "inputs"
    spec: Any = bundle.spec
    return {name: batch.ids, **all_real("mask", batch.ids, spec.input), **batch.words()}


def _asked(bundle: Bundle, given: Given) -> Ready:
    """A question and the context its answer stands in."""
    question, context = given.question, given.context
    if not (question or "").strip() or not (context or "").strip():
        raise GlassformerError(
            f"{named(bundle)} answers a question about a context; give both, as `question` and `context`"
        )
    assert question is not None and context is not None
    tokenizer, room = tokenizer_of(bundle), min(room_of(bundle), MOST)
    made = tokenizer.encode(question, context)
    if len(made) > room:
        raise GlassformerError(
            f"question and context have {len(made):,} tokens, and a trace of {named(bundle)} takes at most "
            f"{room:,}; shorten the context"
        )
    if 1 not in made.sequences:
        raise GlassformerError("the context has no word that the model's tokenizer knows; give another")
    text = f"{question}\n{context}"
    sequence = read_text(tokenizer, made, text, "input", second=len(question) + 1)
    return Ready(
        kind="answer",
        given=given,
        sequences=(sequence,),
        inputs=_words(bundle, made),
        about=(made, context),
    )


def _picture(bundle: Bundle, given: Given) -> Ready:
    """A picture, brought to the model's size as the verbs do it."""
    if given.image is None:
        raise GlassformerError(f"{named(bundle)} reads a picture; give one as `image`, a data: URL or base64")
    ready = Pictures(bundle)
    pixels = ready.pixels(_bytes(given.image))  # (H, W, C)
    scaled = ready.scaled(pixels[None])
    dtype = next(bundle.model.parameters()).dtype
    return Ready(
        kind=kind_of(bundle),
        given=given,
        sequences=(patches(ready.read),),
        inputs={"inputs": scaled.to(dtype)},
        kept={"input.pixels": torch.from_numpy(pixels.copy())},
    )


def _bytes(image: str) -> bytes:
    """The file in a data: URL or in base64 alone."""
    head, comma, body = image.partition(",")
    if comma and not (head.startswith("data:image/") and head.endswith(";base64")):
        raise GlassformerError("image must be a data:image/...;base64 URL, or base64 alone")
    body = body if comma else image
    if len(body) > PICTURE * 4 // 3:
        raise GlassformerError(f"the picture's file is larger than {PICTURE // 10**6} MB; make it smaller")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise GlassformerError("image is not base64; send the file's bytes so, as a data: URL does") from None
