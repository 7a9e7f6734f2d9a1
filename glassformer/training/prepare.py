"""What a text job prepares before it reads a row: its two sides, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer.data.held_out import held_out
from glassformer.data.sources import Source
from glassformer.errors import GlassformerError
from glassformer.tokenization import Side, Tokenizer, load_tokenizer
from glassformer.tokenization.train import Marks, TokenizerPlan, train_tokenizer
from glassformer.tokenization.two_libraries import separate
from glassformer.training import recipe as recipes
from glassformer.training.saving.keeping import replace_folder

Say = Callable[[str], None]
TOGETHER = 2000  # rows that tell whether a tokenizer knows their letters,
LOOKED_AT = 10_000  # by so many of the first of each
MOST_UNKNOWN = 0.5  # of a text's letters; with more, there is nothing to learn


def quiet(sentence: str) -> None:
    """What is said where nobody listens."""


def two_sides(make: Callable[[Sequence[str]], Source], data: Any, *, seed: int) -> tuple[Source, Source]:
    """Training and validation rows: from their own files, or a share held out of the first."""
    train = make(data.train)
    if isinstance(data.valid, float):
        if not 0 < data.valid < 1:
            raise GlassformerError(
                f"data.valid is {data.valid:g}; give files, or the share to hold out, as 0.02"
            )
        return held_out(train, data.valid, seed=seed)
    return train, train if data.valid == data.train else make(data.valid)


def tokenizer_for(
    words: recipes.Tokenizer,
    folder: Path,
    texts: Callable[[], Iterator[Sequence[str]]],
    *,
    marks: Marks,
    tags: Callable[[], Iterable[str]] = tuple,
    base: Tokenizer | None = None,
    again: bool = False,
    say: Say,
) -> Tokenizer:
    """The run's tokenizer: that of the model gone on from, of a folder, or one trained on the texts.

    `texts` gives rows of one or two texts; with separate sides each column trains its own. `tags` are asked
    for only where one is trained. The one that the run folder keeps is taken, unless it is to be made
    `again`.
    """
    kept = folder / "tokenizer"
    if not again and (kept / "tokenizer_config.json").is_file():
        found = load_tokenizer(kept)
        if found is not None:
            return found
    if base is None and words.folder is not None:
        base = load_tokenizer(words.folder)
        if base is None:
            raise GlassformerError(
                f"tokenizer.folder '{words.folder}' holds no tokenizer; train one or leave it out"
            )
    if base is None:
        plan = TokenizerPlan(
            kind=words.kind,
            vocab_size=words.vocab_size,
            lowercase=words.lowercase,
            marks=marks,
            tags=tuple(tags()),
        )
        say(f"training a {words.kind} tokenizer of at most {plan.vocab_size:,} tokens")
        if words.sides == "separate":
            base = separate(*(train_tokenizer((row[n] for row in texts()), plan) for n in (0, 1)))
        else:
            base = train_tokenizer((text for row in texts() for text in row), plan)
        unread = _unread(base, texts())
        if unread:
            raise GlassformerError(f"{unread}; raise tokenizer.vocab_size")
    elif unread := _unread(base, texts()):
        say(f"{unread}; what is unknown cannot be learned, so take one that was trained on texts like these")
    made = base
    replace_folder(kept, lambda path: made.save(path))
    return made


def _unread(made: Tokenizer, rows: Iterator[Sequence[str]]) -> str | None:
    """A sentence where a vocabulary cannot spell most of the texts, on either side; else None."""
    sides: tuple[Side, ...] = ("source", "target")
    for side, texts in zip(sides, zip(*islice(rows, TOGETHER), strict=True), strict=False):
        begun = [text[:LOOKED_AT] for text in texts]
        ids = [one.ids for one in made.encode_batch(begun, special=False, side=side)]
        if not any(made.unk_id in one for one in ids):
            continue
        # By letters: one unknown token may stand for a whole word, or a line, that could not be spelled.
        letters = _letters(begun)
        lost = letters - _letters([made.decode(one, side=side) for one in ids])
        if lost > MOST_UNKNOWN * letters:
            size = made.vocab_size if side == "source" else made.target_vocab_size
            return (
                f"a tokenizer of {size:,} tokens leaves {lost / letters:.0%} of the letters unknown, as in "
                f"{texts[0]!r:.40}"
            )
    return None


def _letters(texts: Sequence[str]) -> int:
    """Characters that are no spaces."""
    return sum(len("".join(text.split())) for text in texts)
