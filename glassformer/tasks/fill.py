"""Guess the hidden words of texts: what a model of masked words thinks stands at each mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.tasks.finite import finite
from glassformer.tasks.reading import (
    AHEAD,
    TOKENS,
    encoded,
    listed,
    model_of,
    named,
    reads,
    room_of,
    sound,
    stretches,
    together,
    tokenizer_of,
    where_sound,
)
from glassformer.tasks.watch import UNWATCHED, Watch, refused
from glassformer.tokenization import Encoded, Tokenizer

MASK = "[MASK]"  # understood for every model, whatever its own mark is
_CONTINUED = "##"  # how some vocabularies begin a piece that goes on a word


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A token for a mask: its id, how it is written, and how likely it is."""

    token: int
    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A text with the likeliest token at each mask, and the guesses for each, likeliest first."""

    text: str
    masks: list[list[Guess]]


def fill(
    bundle: Bundle,
    texts: Iterable[str],
    *,
    top: int = 5,
    batch_tokens: int = TOKENS,
    ahead: int = AHEAD,
    watch: Watch = UNWATCHED,
) -> Iterator[Filled]:
    """The `top` guesses for every [MASK] (or the model's own mark) of each text; masks do not see each other.

    Other marks of the model that a text spells ("[SEP]") are marks too. An empty text stays empty.
    """
    head = getattr(bundle.spec, "head", None)
    masked = isinstance(bundle.spec, specs.EncoderOnly) and isinstance(head, specs.MaskedLanguageModel)
    if not masked:
        raise GlassformerError(
            f"{named(bundle)} guesses no hidden words (its head is {type(head).__name__}); give one with a "
            "MaskedLanguageModel head"
        )
    assert isinstance(head, specs.MaskedLanguageModel)
    if not 1 <= top <= head.vocab_size:
        raise GlassformerError(f"top is {top}; ask for 1 to {head.vocab_size:,} guesses")
    reads(bundle)
    mark = mark_of(tokenizer_of(bundle), bundle)
    return _filled(bundle, stretches(listed(texts), ahead), mark, top, batch_tokens, watch)


def mark_of(tokenizer: Tokenizer, bundle: Bundle) -> str:
    """How the model's tokenizer spells a mask."""
    if tokenizer.mask_id is None:
        raise GlassformerError(f"the tokenizer of {named(bundle)} has no token for a hidden word")
    return tokenizer.tokens([tokenizer.mask_id])[0]


def _filled(
    bundle: Bundle, parts: Iterator[list[str]], mark: str, top: int, batch_tokens: int, watch: Watch
) -> Iterator[Filled]:
    tokenizer, room, first = tokenizer_of(bundle), room_of(bundle), 1
    for part in parts:
        whole = [sound(text, f"text {n:,}") for n, text in enumerate(part, first)]
        spelt = [text if mark in text else text.replace(MASK, mark) for text in whole]
        asked: list[str | None] = []
        for n, text in enumerate(spelt, first):
            plain = bool(text.strip()) and mark not in text
            if plain:
                why = f"hides no word; put {MASK} where the model is to guess: '{text[:60]}'"
                refused(watch.refuse, "text", n, why)
            asked.append(None if plain or watch.leaves(text) else text)
        made = encoded(bundle, asked, first=first, room=room, special_in_text="keep", refuse=watch.refuse)
        found = where_sound(made, _Guesser(bundle, top), tokens=batch_tokens, watch=watch)
        for n, (text, guesses) in enumerate(zip(spelt, found, strict=True), first):
            pieces = text.split(mark)
            if guesses is not None and len(pieces) != len(guesses) + 1:
                refused(watch.refuse, "text", n, f"spells {mark} where the tokenizer reads no mask")
                guesses = None
            if guesses is None:
                yield Filled(text="", masks=[])
                continue
            masks = [
                [Guess(token=token, text=_spelt(tokenizer, token), score=score) for token, score in one]
                for one in guesses
            ]
            yield Filled(text=_joined(pieces, [one[0].text for one in masks]), masks=masks)
        first += len(part)


class _Guesser:
    """The likeliest tokens at each mask of some of the texts."""

    def __init__(self, bundle: Bundle, top: int) -> None:
        self.bundle, self.top = bundle, top
        self.mask_id = tokenizer_of(bundle).mask_id or 0

    @torch.inference_mode()
    def __call__(self, texts: list[Encoded]) -> list[list[list[tuple[int, float]]]]:
        batch = together(texts, self.bundle)
        model = model_of(self.bundle)
        x, context = model.hidden_states(batch.ids, batch.real, **batch.words())
        hidden = batch.ids.eq(self.mask_id)  # (B, T)
        found: list[list[list[tuple[int, float]]]] = [[] for _ in texts]
        # the head looks at each position alone, so only the masks' vectors (masks, 1, D) go through it
        logits: Tensor = model.head(x[hidden][:, None], context)[:, 0].float()
        scores, best = finite(self.bundle, logits).softmax(-1).topk(self.top, dim=-1)
        where = hidden.nonzero()[:, 0].tolist()
        for row, tokens, likely in zip(where, best.tolist(), scores.tolist(), strict=True):
            found[row].append(list(zip(tokens, likely, strict=True)))
        return found


def _spelt(tokenizer: Tokenizer, token: int) -> str:
    """A token as it stands in a text: a piece that goes on a word keeps its mark, spaces go."""
    own = tokenizer.tokens([token])[0]
    return own if own.startswith(_CONTINUED) else tokenizer.decode([token], skip_special=False).strip()


def _joined(pieces: list[str], words: list[str]) -> str:
    """The text between the masks with the words put in; a piece that goes on a word stands right after it.

    >>> _joined(["two cat ", " sleep"], ["##s"])
    'two cats sleep'
    """
    text = pieces[0]
    for word, after in zip(words, pieces[1:], strict=True):
        goes_on = word.startswith(_CONTINUED) and len(word) > len(_CONTINUED)
        text = (text.rstrip() + word.removeprefix(_CONTINUED) if goes_on else text + word) + after
    return text
