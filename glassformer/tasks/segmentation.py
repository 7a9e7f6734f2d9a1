"""Split documents into the segments that a sequence-to-sequence model reads, and reassemble its outputs.

Lines stay lines, and empty ones stay empty. A line that is too long becomes its sentences, a sentence that is
too long its clauses or words, and a word that is too long parts of it. Nothing is left out. Lines of a model
that was trained on single sentences always become sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from glassformer.errors import GlassformerError, InputTooLongError
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, check_text
from glassformer.tokenization.sentence_split import is_unspaced, split_in_half, split_sentences, split_word

Split = Literal["long", "always", "never"]
Encode = Callable[[Sequence[str]], list[list[int]]]
LINE_TOKENS = 128  # a longer line is split: most models are trained on sentences
SENTENCE_TOKENS = 512  # a longer sentence is split, however many tokens the model could read
SHORTEST_SPLIT = 48  # a sentence of fewer tokens is never split
LONGEST_WORD = 1 << 14  # characters without a space that may still be text of a script without spaces
ENCODED_TOGETHER = 256  # documents
# emoji and other pictures, with what modifies them: joiners, variation selectors, skin tones, flags
_SYMBOLS = re.compile(
    "(?:[\u231a\u231b\u23cf\u23e9-\u23fa\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    "[\u200d\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*)+"
)


@dataclass(frozen=True)
class Segment:
    """A piece of a document that the model reads at once.

    ids: as the model reads it. text: the same as text. split_word: whether it was cut within a word.
    uppercase: whether it was lower-cased for the model, so that the output is upper-cased.
    """

    ids: list[int]
    text: str = ""
    split_word: bool = False
    uppercase: bool = False


Document = list[str | Segment]  # text that is copied, and segments that are replaced by the model's output


def segments_of(document: Document) -> list[Segment]:
    """The segments of a document, in order."""
    return [part for part in document if isinstance(part, Segment)]


def reassemble(document: Document, outputs: Iterable[str]) -> str:
    """The document with the model's outputs in place of its segments.

    >>> reassemble([Segment([1]), " ", Segment([2]), "\\n"], ["One.", "Two."])
    'One. Two.\\n'
    """
    remaining, text, after_segment = iter(outputs), "", False
    for part in document:
        is_segment = isinstance(part, Segment)
        piece = next(remaining) if isinstance(part, Segment) else part
        if isinstance(part, Segment) and part.uppercase:
            piece = piece.upper()
        if not piece:
            continue
        # two outputs without a space between, as after a wide full stop, may need one in the target language
        if after_segment and is_segment and not is_unspaced(text[-1]):
            text += " "
        text += piece
        after_segment = is_segment
    return text


@dataclass(frozen=True, kw_only=True)
class Segmenter:
    """Documents into segments.

    encode: texts to ids as the model reads them. max_tokens: the most it can read; None: no bound.
    trained_tokens: the most it was usually trained on; None: unknown.
    split: which lines are split into sentences: long ones, all or none.
    unit: "document" keeps a document with its line breaks as one segment.
    prefix_of: the beginning of a line that every segment of the line needs, such as a language tag.
    knows: whether the vocabulary has a symbol; unknown ones are copied next to the output. None: not asked.
    lowercase: whether a line in capitals is encoded in lower case if that takes fewer tokens.
    """

    encode: Encode
    max_tokens: int | None
    trained_tokens: int | None = None
    split: Split = "long"
    unit: Literal["line", "document"] = "line"
    prefix_of: Callable[[str], str] = lambda _: ""
    knows: Callable[[str], bool] | None = None
    lowercase: bool = False

    def segment(self, documents: Iterable[str], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Document]:
        """The segments of each document, none for one that is rejected."""
        numbered = enumerate(documents, 1)
        while batch := list(islice(numbered, ENCODED_TOGETHER)):
            lines = [self._lines(check_text(text, "text", number)) for number, text in batch]
            encoded = iter(
                self.encode([line.source for row in lines for line in row if isinstance(line, _Line)])
            )
            for (number, _), row in zip(batch, lines, strict=True):
                ids = [next(encoded) if isinstance(line, _Line) else [] for line in row]
                try:
                    document: Document = []
                    for line, one in zip(row, ids, strict=True):
                        document += self._segment_line(line, one) if isinstance(line, _Line) else [line]
                except GlassformerError as error:
                    callbacks.reject("text", number, error)
                    document = []
                yield document

    def _lines(self, text: str) -> list[str | _Line]:
        """A document's lines; spaces before each are copied, those at its end dropped."""
        if self.unit == "document":
            return [_Line("", body)] if (body := text.strip()) else []
        found: list[str | _Line] = []
        for at, line in enumerate(text.split("\n")):
            found += ["\n"] if at else []
            if body := line.strip():
                prefix = self.prefix_of(body)
                found += [line[: line.index(body[0])], self._lowered(_Line(prefix, body[len(prefix) :]))]
        return found

    def _lowered(self, line: _Line) -> _Line:
        """A line in capitals in lower case, if the vocabulary has longer pieces for it."""
        if not (self.lowercase and line.body.isupper() and " " in line.body):
            return line
        lowered = re.sub(r"(?:^|[.!?…]\s+)\w", lambda start: start[0].upper(), line.body.lower())
        upper_ids, lower_ids = self.encode([line.body, lowered])
        return replace(line, body=lowered, uppercase=True) if len(lower_ids) < len(upper_ids) else line

    @property
    def _sentence_limit(self) -> int:
        trained = SENTENCE_TOKENS if self.trained_tokens is None else self.trained_tokens
        return min(SENTENCE_TOKENS, max(SHORTEST_SPLIT, trained))

    def _segment_line(self, line: _Line, ids: list[int]) -> Document:
        most = len(ids) if self.max_tokens is None else self.max_tokens
        if self.split == "never" and len(ids) > most:
            raise InputTooLongError(len(ids), most)
        whole = self.split == "never" or (
            self.split == "long" and len(ids) <= min(most, LINE_TOKENS, self._sentence_limit)
        )
        parts = [(line.body, "")] if whole else split_sentences(line.body)
        cleaned = [self._without_symbols(sentence) for sentence, _ in parts]
        changed = [text for _, text, _ in cleaned if text and text != line.body]
        encoded = iter(self.encode([line.prefix + text for text in changed])) if changed else iter(())
        found: Document = []
        for (_, gap), (before, text, after) in zip(parts, cleaned, strict=True):
            found.append(before)
            if text:
                one = ids if text == line.body else next(encoded)
                found += (
                    [Segment(one, line.prefix + text)] if whole else self._fit(line.prefix, text, one, most)
                )
            found += [after, gap]
        return [
            replace(part, uppercase=True) if line.uppercase and isinstance(part, Segment) else part
            for part in found
            if part
        ]

    def _without_symbols(self, sentence: str) -> tuple[str, str, str]:
        """A sentence without symbols that the vocabulary lacks, and what is copied before and after it."""
        knows = self.knows
        if knows is None or sentence.isascii():
            return "", sentence, ""
        leading, trailing = "", ""

        def copy(symbols: re.Match[str]) -> str:
            nonlocal leading, trailing
            if all(map(knows, symbols[0])):
                return symbols[0]
            if sentence[: symbols.start()].strip(leading + " "):
                trailing += f" {symbols[0]}"
            else:
                leading += f"{symbols[0]} "
            return " "

        text = _SYMBOLS.sub(copy, sentence)
        if text == sentence:
            return "", sentence, ""
        text = re.sub(r"\s+([.,;:!?…])", r"\1", " ".join(text.split()))
        return (leading, text, trailing) if any(map(str.isalnum, text)) else (sentence, "", "")

    def _fit(self, prefix: str, sentence: str, ids: list[int], most: int) -> Document:
        """A sentence as segments of which none is too long."""
        if len(ids) <= min(most, self._sentence_limit):
            return [Segment(ids, prefix + sentence)]
        cut = split_in_half(sentence)
        if cut is None:
            if len(sentence) > LONGEST_WORD:
                raise InputTooLongError(len(sentence), LONGEST_WORD, unit="characters without a space")
            return list(self._fit_word(prefix, sentence, ids, most))
        left, gap, right = cut
        one, other = self.encode([prefix + left, prefix + right])
        return [*self._fit(prefix, left, one, most), gap, *self._fit(prefix, right, other, most)]

    def _fit_word(self, prefix: str, word: str, ids: list[int], most: int) -> Iterator[Segment]:
        cut = split_word(word) if len(ids) > min(most, self._sentence_limit) else None
        if cut is None and len(ids) > most:
            raise InputTooLongError(len(ids), most)
        if cut is None:
            yield Segment(ids, prefix + word, split_word=True)
            return
        for part, one in zip(cut, self.encode([prefix + part for part in cut]), strict=True):
            yield from self._fit_word(prefix, part, one, most)


@dataclass(frozen=True)
class _Line:
    """A line to be segmented, and the prefix of each of its segments."""

    prefix: str
    body: str
    uppercase: bool = False

    @property
    def source(self) -> str:
        return self.prefix + self.body
