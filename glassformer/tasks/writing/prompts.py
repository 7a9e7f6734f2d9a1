"""Prompts as ids, and what was written after them as text, whole or in pieces as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.stopping import truncate_at_stop
from glassformer.tasks.reading import named, tokenizer_of
from glassformer.tasks.watch import UNWATCHED, Watch, refused
from glassformer.tasks.writing.checks import numbered
from glassformer.tasks.writing.ends import Ends
from glassformer.tasks.writing.pieces import TOGETHER
from glassformer.tasks.writing.sources import UNSAID, Language
from glassformer.tokenization import Encoded, SpecialInText, Tokenizer, encode_tagged

BEFORE = 8  # tokens of a prompt that are decoded with what follows: the first of a text loses its space
_HELD = 4  # letters not given out at once: a later token may still change the space before them
_WINDOW = 128  # tokens decoded at once while text comes in pieces


def prompt_ids(
    bundle: Bundle,
    ends: Ends,
    prompts: Iterable[str],
    *,
    special_in_text: SpecialInText = "plain",
    spoken: Language = UNSAID,
    watch: Watch = UNWATCHED,
) -> Iterator[list[int]]:
    """The ids of each prompt: begun as the tokenizer begins a text, and not ended; none of one not asked.

    spoken: how a model that rewrites is told the language to write.
    """
    tokenizer = tokenizer_of(bundle)
    stream = numbered(prompts, "prompt")
    while many := list(islice(stream, TOGETHER)):
        told = [spoken.prefix + prompt for _, prompt in many]
        made = (
            tokenizer.encode_batch(told, special_in_text=special_in_text)
            if spoken.tag is None
            else encode_tagged(tokenizer, told, spoken.tag)
        )
        for (number, prompt), encoded in zip(many, made, strict=True):
            if watch.leaves(prompt):
                yield []
                continue
            ids = encoded.ids if ends.shape == "rewrites" else unended(encoded)
            ids = ids or _begin(bundle, ends)
            if ends.reads is not None and len(ids) > ends.reads:
                why = f"has {len(ids):,} tokens, and {named(bundle)} reads at most {ends.reads:,}; shorten it"
                refused(watch.refuse, "prompt", number, why)
                ids = []
            yield ids


def unended(encoded: Encoded) -> list[int]:
    """The ids without the marks that close a text."""
    last = len(encoded.ids)
    while (
        last and encoded.sequences[last - 1] is None and any(s is not None for s in encoded.sequences[:last])
    ):
        last -= 1
    return encoded.ids[:last]


def _begin(bundle: Bundle, ends: Ends) -> list[int]:
    """What stands before a text's first word: the begin token, else the end of the text before."""
    first = tokenizer_of(bundle).bos_id
    found = ends.eos_ids[:1] if first is None else (first,)
    if not found:
        raise GlassformerError(
            f"an empty prompt needs a token to begin with, and {named(bundle)} has none; give a prompt"
        )
    return list(found)


def _alike(known: str, text: str) -> int:
    """How many letters both begin with."""
    pairs = zip(known, text, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(known), len(text)))


def following(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of ids that follow a prompt, its first space kept."""
    before = list(prompt[-BEFORE:])
    known, text = tokenizer.decode(before), tokenizer.decode([*before, *ids])
    return text[_alike(known, text) :]


class Pieces:
    """The text of tokens that come one by one, in pieces that joined are the text of them all.

    No piece ends inside a letter. `push` gives what a token made certain, often nothing; `end` the rest.
    The text ends before the first of `stops`.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._held = max(_HELD, *map(len, stops)) if stops else _HELD
        self._ids = list(prompt[-BEFORE:])
        self._text = self._known = tokenizer.decode(self._ids)
        self._begun = False
        self._given = len(self._text)  # letters of the text that were given out

    def push(self, token: int) -> str:
        """What is certain of the text now that this token is known."""
        if len(self._ids) >= _WINDOW and self._begun:
            self._forget()
        self._ids.append(token)
        self._text = self._tokenizer.decode(self._ids)
        if not self._begun:
            self._given = _alike(self._known, self._text)
        return self._give(len(self._text) - self._held)

    def end(self) -> str:
        """What was held back."""
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        # a stop is the last that is written, so whatever follows it is its own
        end = min(
            max(end, self._given), self._given + len(truncate_at_stop(self._text[self._given :], self._stops))
        )
        piece = self._text[self._given : end]
        self._given = end
        self._begun = self._begun or bool(piece)
        return piece

    def _forget(self) -> None:
        """Go on with the later half of the tokens; what they still owe is counted from the end."""
        owed = len(self._text) - self._given
        ids = self._ids[_WINDOW // 2 :]
        text = self._tokenizer.decode(ids)
        if owed <= len(text) and text.endswith(self._text[self._given :]):
            self._ids, self._text, self._given = ids, text, len(text) - owed
