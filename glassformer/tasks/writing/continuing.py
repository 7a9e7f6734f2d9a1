"""From a prompt to what follows it, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from glassformer.bundle import Bundle
from glassformer.generation.stopping import truncate_at_stop
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.watch import UNWATCHED, Watch
from glassformer.tasks.writing.batches import Plan
from glassformer.tasks.writing.checks import settings_of
from glassformer.tasks.writing.doubts import doubts_of
from glassformer.tasks.writing.ends import ends_of
from glassformer.tasks.writing.pieces import Layout, Place
from glassformer.tasks.writing.prompts import following, prompt_ids
from glassformer.tasks.writing.results import results
from glassformer.tasks.writing.sources import UNSAID, language
from glassformer.tasks.writing.streaming import Stream, streamed
from glassformer.tokenization import SpecialInText

CONTINUED = 256  # tokens that generate writes at most, where nothing says how many


def generate(
    bundle: Bundle,
    prompts: str | Iterable[str],
    *,
    special_in_text: SpecialInText = "plain",
    details: bool = False,
    tree: bool = False,
    batch_tokens: int | None = None,
    watch: Watch = UNWATCHED,
    **settings: Any,
) -> Any:
    """Go on from prompts: what is written after each, without the prompt.

    An empty prompt begins where the model's texts begin. One that the model cannot read is refused. Where
    nothing says how long, at most 256 tokens are written. `stream` gives the same piece by piece.
    special_in_text: marks such as <|im_start|> in a prompt are text ("plain"), or the tokenizer's own
    ("keep"), as a prompt from a chat's template needs.
    """
    plan = continuing(bundle, settings, special_in_text)
    return results(plan, prompts, details=details, tree=tree, batch_tokens=batch_tokens, watch=watch)


def stream(
    bundle: Bundle, prompt: str, *, special_in_text: SpecialInText = "plain", **settings: Any
) -> Stream:
    """Go on from one prompt, in pieces of text as they are written; joined they are what `generate` gives.

    No piece ends inside a letter. `close` stops the writing; afterwards `written` says how it ended.
    """
    return streamed(continuing(bundle, settings, special_in_text), prompt)


def continuing(
    bundle: Bundle,
    settings: dict[str, Any],
    special_in_text: SpecialInText,
    *,
    to: str | None = None,
    by: str = "translate and --to (`to`)",
) -> Plan:
    """The plan of `generate`.

    to: the language that a translator is to write, where it knows several; by: by what a person says it. With
    special_in_text "keep" a prompt holds the language's mark itself.
    """
    ends, tokenizer = ends_of(bundle), tokenizer_of(bundle)
    spoken = UNSAID
    if ends.shape == "rewrites" and (special_in_text == "plain" or to is not None):
        spoken = language(bundle, to, by=by)
    words = settings_of(bundle, {**settings, **spoken.settings})

    def compose(layout: Layout, found: list[list[int]]) -> str:
        if not layout:  # a prompt that was not asked
            return ""
        (place,), (ids,) = layout, found
        assert isinstance(place, Place)
        text = following(tokenizer, place.ids if ends.shape == "continues" else (), ids)
        return truncate_at_stop(text, words.stop_strings)

    def layouts(texts: Iterable[str], watch: Watch = UNWATCHED) -> Iterator[Layout]:
        known = prompt_ids(bundle, ends, texts, special_in_text=special_in_text, spoken=spoken, watch=watch)
        return ([Place(ids)] if ids else [] for ids in known)

    def limit(read: int) -> int:
        if ends.reads is None or ends.shape == "rewrites":
            return CONTINUED
        return max(1, min(CONTINUED, ends.reads + 1 - read))  # what is written last is not read

    return Plan(
        bundle=bundle,
        ends=ends,
        settings=words,
        layouts=layouts,
        compose=compose,
        decode=tokenizer.decode,
        limit=limit,
        doubts=doubts_of(bundle),
    )
