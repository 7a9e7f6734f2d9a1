"""What a model was given to read and has not learnt to read: told, for its answer may mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from glassformer.bundle import Bundle
from glassformer.tasks.reading import named, tokenizer_of
from glassformer.tasks.writing.ends import shape_of
from glassformer.tasks.writing.pieces import Layout, Place

# "long": a piece of more tokens than it has learnt. "cut": letters without a space that were too many, and so
# cut. "letters": some that its vocabulary has no piece for.
Doubt = Literal["long", "cut", "letters"]


def learnt_length(bundle: Bundle) -> int | None:
    """The most tokens that a model has often learnt to read at once, where its folder says so."""
    return bundle.job.usual_len


def doubts_of(bundle: Bundle) -> Callable[[Layout], tuple[Doubt, ...]]:
    """Tells of a text, cut as the model reads it, what there is to doubt."""
    tokenizer, longest = tokenizer_of(bundle), learnt_length(bundle)
    # models that go on with text have learnt any, and read what has no piece by its bytes
    strange = tokenizer.fallback_ids if shape_of(bundle) == "rewrites" else tokenizer.unknown_ids

    def doubts(layout: Layout) -> tuple[Doubt, ...]:
        read = [part.ids for part in layout if isinstance(part, Place)]
        found: list[Doubt] = []
        if longest is not None and any(len(ids) > longest for ids in read):
            found.append("long")
        if any(part.torn for part in layout if isinstance(part, Place)):
            found.append("cut")
        if not all(strange.isdisjoint(ids) for ids in read):
            found.append("letters")
        return tuple(found)

    return doubts


def doubt_told(bundle: Bundle, doubt: Doubt, texts: int) -> str:
    """A sentence about so many texts."""
    one = texts == 1
    if doubt == "long":
        return (
            f"{texts:,} text{' is' if one else 's are'} longer than the {learnt_length(bundle)} tokens that "
            f"{named(bundle)} has learnt to read at once; split {'it' if one else 'them'} up"
        )
    if doubt == "cut":
        return (
            f"{texts:,} text{' has' if one else 's have'} a stretch without a space that is longer than "
            f"{named(bundle)} reads at once; it was cut into parts, and each read by itself"
        )
    return (
        f"{texts:,} text{' has' if one else 's have'} letters or signs that {named(bundle)} does not know; "
        "what it makes of the words they stand in means nothing"
    )
