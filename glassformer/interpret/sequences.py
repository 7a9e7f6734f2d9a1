"""What stands at each place of a sequence: pieces of text, of a picture, of a series."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence as Several
from dataclasses import replace

from glassformer.core import spec as specs
from glassformer.interpret.kinds import Sequence, SequenceName, Token
from glassformer.tokenization import Encoded, Tokenizer
from glassformer.tokenization.display import letters, readable
from glassformer.tokenization.tokenizer import Side

_NEAR = 8  # letters within which a piece of a written text is looked for


def pieces(tokenizer: Tokenizer, ids: Several[int], side: Side = "source") -> tuple[Token, ...]:
    """The ids in a readable form, with no word of where they stand in a text."""
    parts = tokenizer.parts(ids, side=side)
    marks = tokenizer.special_ids
    return tuple(
        Token(
            id=index,
            piece=piece,
            raw=raw,
            bytes=part.hex() if isinstance(part, bytes) and not _whole_letters(part) else None,
            special=index in marks,
        )
        for index, piece, raw, part in zip(
            ids, readable(parts), tokenizer.tokens(ids, side=side), parts, strict=True
        )
    )


def _whole_letters(part: bytes) -> bool:
    try:
        part.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_text(
    tokenizer: Tokenizer, encoded: Encoded, text: str, name: SequenceName, *, second: int = 0
) -> Sequence:
    """A text that was read. second: where the second of two texts begins in `text`.

    A tokenizer that composes letters calls the first sign of each its place; here all its signs are.
    """
    shifts = [second if part else 0 for part in encoded.sequences]
    begun = {start + shift for (start, _), shift in zip(encoded.offsets, shifts, strict=True)}
    tokens = []
    places = zip(pieces(tokenizer, encoded.ids), encoded.offsets, encoded.sequences, shifts, strict=True)
    for token, (start, end), part, shift in places:
        if part is None:
            tokens.append(replace(token, special=True))
            continue
        start, end = start + shift, end + shift
        if token.piece.isspace() and text[start:end].strip():
            tokens.append(token)  # a space that the tokenizer put before the text stands nowhere in it
            continue
        while start < end < len(text) and end not in begun and _joins(text[end]):
            end += 1
        tokens.append(replace(token, start=start, end=end))
    return Sequence(name=name, kind="text", text=text, tokens=tuple(tokens))


def _joins(sign: str) -> bool:
    """Whether a sign belongs to the letter before it: an accent, or a later part of a Korean syllable."""
    return bool(unicodedata.combining(sign)) or "\u1160" <= sign <= "\u11ff"


def written_text(
    tokenizer: Tokenizer, ids: Several[int], text: str, side: Side, *, first: int = 0
) -> tuple[Token, ...]:
    """Tokens that were written, with the place of each in the `text` that they make from `first` on.

    Pieces and text are gone through side by side, and letters that only one of them has are passed over.
    """
    tokens = pieces(tokenizer, ids, side)
    parts = tokenizer.parts(ids, side=side)
    run, owners = b"", list[int]()
    for n, part in enumerate(parts):
        own = part if isinstance(part, bytes) else part.encode() if not tokens[n].special else b""
        run += own
        owners += [n] * len(own)
    spans: dict[int, tuple[int, int]] = {}
    at = first
    for letter, start, end in letters(run):
        place = None if letter is None else _place(text, at, letter)
        if place is None:
            continue
        at = place + 1
        for n in set(owners[start:end]):
            spans[n] = (min(spans.get(n, (place, 0))[0], place), at)
    return tuple(
        replace(token, start=spans[n][0], end=spans[n][1]) if n in spans else token
        for n, token in enumerate(tokens)
    )


def _place(text: str, at: int, letter: str) -> int | None:
    """Where the letter stands next: here, or behind a few others if it is no space."""
    if text[at : at + 1] == letter:
        return at
    found = -1 if letter.isspace() else text.find(letter, at, at + _NEAR)
    return None if found < 0 else found


def patches(read: specs.ImagePatches) -> Sequence:
    """The squares of a picture row by row, behind the prefix tokens."""
    high, wide = read.patch_size
    rows, columns = (i // p for i, p in zip(read.image_size, read.patch_size, strict=True))
    tokens = [
        Token(piece=f"{row + 1},{column + 1}", box=(column * wide, row * high, wide, high))
        for row in range(rows)
        for column in range(columns)
    ]
    return Sequence(
        name="input",
        kind="patches",
        tokens=(*_prefix(read.prefix), *tokens),
        grid=(rows, columns),
        prefix=read.prefix,
    )


def stretches(read: specs.SeriesPatches) -> Sequence:
    """The patches of a series from the oldest on, behind the prefix tokens; the context's first step is 0."""
    spare = (read.context_length - read.patch_length) % read.stride
    starts = [spare + n * read.stride for n in range(read.num_patches)]
    tokens = [
        Token(piece=f"{start}\u2013{start + read.patch_length - 1}", span=(start, start + read.patch_length))
        for start in starts
    ]
    return Sequence(name="input", kind="series", tokens=(*_prefix(read.prefix), *tokens), prefix=read.prefix)


_PREFIX = ("[CLS]", "[DIST]")  # what published models call the learned tokens before their patches


def _prefix(count: int) -> list[Token]:
    names = _PREFIX if count <= len(_PREFIX) else tuple(f"[{n}]" for n in range(count))
    return [Token(piece=name, special=True) for name in names[:count]]
