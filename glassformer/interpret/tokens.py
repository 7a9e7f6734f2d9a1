"""The tokens of a sequence with their text spans, image boxes or series steps."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.interpret.schema import SequenceName, TokenSequence, TraceToken
from glassformer.tokenization import Encoded, Tokenizer
from glassformer.tokenization.display import display_parts, split_characters
from glassformer.tokenization.tokenizer import Side

_SEARCH = 8  # characters within which the next character of a token is looked for


def tokens_of(tokenizer: Tokenizer, ids: Sequence[int], side: Side = "source") -> tuple[TraceToken, ...]:
    """Convert ids to tokens without text spans."""
    parts = tokenizer.parts(ids, side=side)
    special = tokenizer.special_ids
    return tuple(
        TraceToken(
            id=index,
            piece=piece,
            raw=raw,
            bytes=part.hex()
            if isinstance(part, bytes) and "\ufffd" in part.decode(errors="replace")
            else None,
            special=index in special,
        )
        for index, piece, raw, part in zip(
            ids, display_parts(parts), tokenizer.tokens(ids, side=side), parts, strict=True
        )
    )


def encoded_sequence(
    tokenizer: Tokenizer, encoded: Encoded, text: str, name: SequenceName, *, second: int = 0
) -> TokenSequence:
    """Convert an encoded text to a token sequence. second: where the second of two texts starts in `text`.

    Spans include all code points of a composed character; tokenizers may report only the first.
    """
    shifts = [second if part else 0 for part in encoded.sequence_ids]
    starts = {start + shift for (start, _), shift in zip(encoded.offsets, shifts, strict=True)}
    tokens = []
    parts = zip(tokens_of(tokenizer, encoded.ids), encoded.offsets, encoded.sequence_ids, shifts, strict=True)
    for token, (start, end), part, shift in parts:
        if part is None:
            tokens.append(replace(token, special=True))
            continue
        start, end = start + shift, end + shift
        if token.piece.isspace() and text[start:end].strip():
            tokens.append(token)  # the space that a tokenizer adds before a text is not part of it
            continue
        while start < end < len(text) and end not in starts and _joins(text[end]):
            end += 1
        tokens.append(replace(token, start=start, end=end))
    return TokenSequence(name=name, kind="text", text=text, tokens=tuple(tokens))


def _joins(character: str) -> bool:
    """Whether a character combines with the one before: an accent, or a later part of a Korean syllable."""
    return bool(unicodedata.combining(character)) or "\u1160" <= character <= "\u11ff"


def generated_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], text: str, side: Side, *, first: int = 0
) -> tuple[TraceToken, ...]:
    """Convert generated ids to tokens with their spans in the decoded `text`, which starts at `first`.

    Tokens and text are aligned character by character; characters that occur in only one are skipped.
    """
    tokens = tokens_of(tokenizer, ids, side)
    parts = tokenizer.parts(ids, side=side)
    data, owners = b"", list[int]()
    for n, part in enumerate(parts):
        own = part if isinstance(part, bytes) else part.encode()
        if tokens[n].special and own.decode(errors="replace") not in text:
            own = b""
        data += own
        owners += [n] * len(own)
    spans: dict[int, tuple[int, int]] = {}
    at = first
    for character, start, end in split_characters(data):
        index = None if character is None else _find(text, at, character)
        if index is None:
            continue
        at = index + 1
        for n in set(owners[start:end]):
            spans[n] = (min(spans.get(n, (index, 0))[0], index), at)
    return tuple(
        replace(token, start=spans[n][0], end=spans[n][1]) if n in spans else token
        for n, token in enumerate(tokens)
    )


def _find(text: str, at: int, character: str) -> int | None:
    """Return the index of the character at `at` or, unless it is a space, a few characters later."""
    if text[at : at + 1] == character:
        return at
    index = -1 if character.isspace() else text.find(character, at, at + _SEARCH)
    return None if index < 0 else index


def image_sequence(
    read: specs.ImagePatchesSpec, image_size: tuple[int, int], name: SequenceName = "input"
) -> TokenSequence:
    """Return the patches of an image row by row, after prefix and register tokens and before the queries."""
    height, width = read.patch_size
    rows, columns = (i // p for i, p in zip(image_size, read.patch_size, strict=True))
    tokens = [
        TraceToken(piece=f"{row + 1},{column + 1}", box=(column * width, row * height, width, height))
        for row in range(rows)
        for column in range(columns)
    ]
    registers = [TraceToken(piece=f"[REG{n + 1}]", special=True) for n in range(read.registers)]
    return TokenSequence(
        name=name,
        kind="patches",
        tokens=(*_prefix_tokens(read.prefix), *registers, *tokens, *_query_tokens(read.suffix)),
        grid=(rows, columns),
        prefix=read.prefix + read.registers,
    )


def question_sequence(words: TokenSequence, patches: TokenSequence) -> TokenSequence:
    """Return the words of a question and the patches of an image as one sequence."""
    first = [replace(token, piece="[image]") for token in patches.tokens[: patches.prefix]]
    return replace(
        patches,
        text=words.text,
        tokens=(*words.tokens, *first, *patches.tokens[patches.prefix :]),
        prefix=len(words) + patches.prefix,
    )


def detection_sequences(
    read: specs.FeatureMapSpec, image_size: tuple[int, int], num_queries: int
) -> tuple[TokenSequence, TokenSequence]:
    """Return the cells of an image's feature map row by row, and the object queries."""
    stride = read.stride
    rows, columns = (-(-side // stride) for side in image_size)
    cells = tuple(
        TraceToken(piece=f"{row + 1},{column + 1}", box=(column * stride, row * stride, stride, stride))
        for row in range(rows)
        for column in range(columns)
    )
    queries = tuple(_query_tokens(num_queries))
    return (
        TokenSequence(name="source", kind="patches", tokens=cells, grid=(rows, columns)),
        TokenSequence(name="target", kind="queries", tokens=queries),
    )


def prompt_sequences(
    num_masks: int, labels: Sequence[int], has_box: bool, grid: tuple[int, int]
) -> tuple[TokenSequence, TokenSequence]:
    """Return the tokens of a promptable segmenter's decoder, and the grid of the cells of the image.

    labels: of the points, 1 for the object and 0 for background.
    """
    names = ["[IoU]", *(f"[mask {n}]" for n in range(num_masks + 1))]
    points = [f"{'+-'[label == 0]}{n + 1}" for n, label in enumerate(labels)]
    corners = ["[top left]", "[bottom right]"] if has_box else ["[no box]"]
    tokens = [TraceToken(piece=name, special=True) for name in names]
    tokens += [TraceToken(piece=name) for name in (*points, *corners)]
    cells = [TraceToken(piece=f"{n // grid[1] + 1},{n % grid[1] + 1}") for n in range(grid[0] * grid[1])]
    return (
        TokenSequence(name="prompt", kind="prompts", tokens=tuple(tokens), prefix=len(names)),
        TokenSequence(name="image", kind="patches", tokens=tuple(cells), grid=grid),
    )


def _query_tokens(count: int) -> list[TraceToken]:
    return [TraceToken(piece=f"q{n + 1}", special=True) for n in range(count)]


def merged_sequences(first: TokenSequence, count: int) -> tuple[TokenSequence, ...]:
    """Return the patches of an image for each of `count` stages; each merges 2 x 2 patches."""
    sequences = [first]
    for n in range(2, count + 1):
        before = sequences[-1]
        assert before.grid is not None
        (rows, columns), tokens = before.grid, []
        for row in range(0, rows, 2):
            for column in range(0, columns, 2):
                x, y, _, _ = _box(before, row, column)
                last = _box(before, min(row + 1, rows - 1), min(column + 1, columns - 1))
                box = (x, y, last[0] + last[2] - x, last[1] + last[3] - y)
                tokens.append(TraceToken(piece=f"{row // 2 + 1},{column // 2 + 1}", box=box))
        grid = (-(-rows // 2), -(-columns // 2))
        sequences.append(TokenSequence(name=f"stage{n}", kind="patches", tokens=tuple(tokens), grid=grid))
    return tuple(sequences)


def _box(patches: TokenSequence, row: int, column: int) -> tuple[int, int, int, int]:
    assert patches.grid is not None
    box = patches.tokens[patches.prefix + row * patches.grid[1] + column].box
    assert box is not None
    return box


def series_sequence(read: specs.SeriesPatchesSpec) -> TokenSequence:
    """Describe the tokens of a series: prefix tokens, then patches, oldest first; time steps count from 0."""
    skipped = (read.context_length - read.patch_length) % read.stride
    starts = range(skipped, skipped + read.num_patches * read.stride, read.stride)
    size = read.patch_length
    tokens = [TraceToken(piece=f"{n}\u2013{n + size - 1}", span=(n, n + size)) for n in starts]
    return TokenSequence(
        name="input", kind="series", tokens=(*_prefix_tokens(read.prefix), *tokens), prefix=read.prefix
    )


_PREFIX = ("[CLS]", "[DIST]")  # the learned tokens before the patches, as published models name them


def _prefix_tokens(count: int) -> list[TraceToken]:
    names = _PREFIX if count <= len(_PREFIX) else tuple(f"[{n}]" for n in range(count))
    return [TraceToken(piece=name, special=True) for name in names[:count]]


def best_encoded(bundle: Bundle, texts: tuple[str, ...]) -> str:
    """Return the text that suits the tokenizer best."""
    return min(texts, key=lambda text: encoding_cost(bundle, text))


def encoding_cost(bundle: Bundle, text: str) -> tuple[int, float]:
    """Return the number of unknown tokens, and the tokens per character."""
    if bundle.tokenizer is None:
        return 0, 0.0
    ids = bundle.tokenizer.encode(text, special=False).ids
    return sum(index == bundle.tokenizer.unk_id for index in ids), len(ids) / max(len(text), 1)
