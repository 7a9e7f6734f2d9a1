"""Sequence-to-sequence tasks (translate, summarize, restore), and splitting a source into segments.

Line breaks are kept, and empty lines stay empty. Lines that are too long are split into
sentences, sentences into clauses or words, and words into parts. Nothing is dropped. If the model was trained
on single sentences, lines are always split into sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Unpack, get_args

from glassformer.bundle import Bundle
from glassformer.errors import (
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    UnsupportedError,
    attempt,
)
from glassformer.generation.stopping_criteria import truncate_at_stop
from glassformer.processors.text import check_text
from glassformer.tasks.declarations.translate import Split
from glassformer.tasks.text_generation import (
    NO_LANGUAGE,
    Document,
    Segment,
    TextGenerationTask,
    TextOptions,
    generation_architecture,
    target_language,
    task_prefix,
)
from glassformer.tokenization import Tokenizer, encode_tagged
from glassformer.tokenization.sentence_split import split_in_half, split_sentences, split_word

NUM_BEAMS = 4  # of translate and summarize, if neither the folder nor the caller sets it
LONGEST_TAG = 32  # characters of a language tag such as >>cmn_Hans<<

Encode = Callable[[Sequence[str]], list[list[int]]]
LINE_TOKENS = 128  # a longer line is split: most models are trained on sentences
SENTENCE_TOKENS = 512  # a longer sentence is split, however many tokens the model could read
SHORTEST_SPLIT = 48  # a sentence of fewer tokens is never split
LONGEST_WORD = 1 << 14  # characters without a space that may still be text of a script without spaces
# emoji and other pictographs with their modifiers: joiners, variation selectors, skin tones, flags
_SYMBOLS = re.compile(
    "(?:[\u231a\u231b\u23cf\u23e9-\u23fa\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
    "[\u200d\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*)+"
)


class SequenceToSequenceTask(TextGenerationTask[str]):
    """Base class: split a source into segments and generate a target with the same number of lines."""

    name: str  # for error messages
    segmenter: Segmenter

    def load(self, inputs: Iterable[str]) -> list[Document | GlassformerError]:
        return self.segmenter.segment(inputs)

    def decode(self, segment: Segment, ids: list[int]) -> str:
        """Decode to one line, truncated before the first stop string."""
        text = truncate_at_stop(self.tokenizer.decode(ids), self.params.config.stop_strings)
        return " ".join(text.splitlines()).strip()

    def default_limit(self, input_length: int) -> int:
        return 2 * input_length + 20


class Translator(SequenceToSequenceTask):
    """Translate texts of one or more lines; line breaks are kept, and empty lines stay empty.

    to: the target language, for a model that translates into several, as its tokenizer spells it: "fra" for
    the tag >>fra<<, "fr_XX", or "de" if config.json has a prefix for the language pair.
    prefix: prepended to every segment, e.g. "translate English to German: ".
    split: which lines are translated sentence by sentence: those of more than 128 tokens, or more than the
    model was trained on ("long"), all ("always") or none ("never"; a line that is too long for the model is
    rejected).
    Default: "always" if the model was trained on single sentences, else "long".

    Symbols such as emoji that are not in the vocabulary are copied next to the translation of their sentence.
    A line in capitals is translated in lower case if that takes fewer tokens; the output is then in capitals.
    """

    name, default_beams = "translate", NUM_BEAMS

    def __init__(
        self,
        bundle: Bundle,
        *,
        to: str | None = None,
        prefix: str | None = None,
        split: Split | None = None,
        **options: Unpack[TextOptions],
    ) -> None:
        check_source_task(bundle, self.name, jobs=("translate",))
        if split is not None and split not in get_args(Split):
            raise InvalidValueError("split", split, "long, always or never")
        language = target_language(bundle, to)
        super().__init__(bundle, options, language)
        prefix_of = tag_reader(self.tokenizer) if language == NO_LANGUAGE and not prefix else None
        self.segmenter = Segmenter(
            encode=source_encoder(
                self.tokenizer, prefix=language.prefix if prefix is None else prefix, tag=language.tag
            ),
            max_tokens=self.max_input_tokens,
            trained_tokens=bundle.job.usual_len,
            split=split or ("always" if bundle.job.unit == "sentence" else "long"),
            prefix_of=prefix_of or (lambda _: ""),
            knows=symbol_lookup(self.tokenizer),
            lowercase=True,
        )


class Summarizer(SequenceToSequenceTask):
    """Summarize texts without splitting them; a text that is too long for the model is rejected.

    prefix: prepended to every text; by default the prefix in config.json, e.g. "summarize: ".
    """

    name, default_beams = "summarize", NUM_BEAMS

    def __init__(self, bundle: Bundle, *, prefix: str | None = None, **options: Unpack[TextOptions]) -> None:
        # the job translate, without languages, trains summarizers too
        jobs = ("summarize",) if bundle.job.languages else ("summarize", "translate")
        check_source_task(bundle, self.name, jobs=jobs)
        super().__init__(bundle, options)
        if prefix is None:
            prefix = bundle.job.prefix
        if prefix is None:
            prefix = task_prefix(bundle, lambda name: name.startswith("summarization"))
        self.segmenter = Segmenter(
            encode=source_encoder(self.tokenizer, prefix=prefix),
            max_tokens=self.max_input_tokens,
            split="never",
            unit="document",
        )


class Restorer(SequenceToSequenceTask):
    """Restore sentences that were truncated, shuffled or have gaps, marked by the model's gap token."""

    name = "restore"

    def __init__(self, bundle: Bundle, **options: Unpack[TextOptions]) -> None:
        check_source_task(bundle, self.name, jobs=("restore",))
        if bundle.job.name != "restore":
            raise UnsupportedError(bundle.display_name, "restore", hint="train a model with the job restore")
        super().__init__(bundle, options)
        self.segmenter = Segmenter(
            encode=gap_encoder(self.tokenizer, bundle.job.gap, bundle.job.before),
            max_tokens=self.max_input_tokens,
        )


def source_task(
    bundle: Bundle, to: str | None = None, **options: Unpack[TextOptions]
) -> TextGenerationTask[str]:
    """Create the task that an encoder-decoder was trained for: restore, summarize or translate."""
    if bundle.job.name == "restore":
        return Restorer(bundle, **options)
    if bundle.job.name == "summarize":
        return Summarizer(bundle, **options)
    params = bundle.config.get("task_specific_params")
    names = params if isinstance(params, Mapping) else ()
    if bundle.job.name is None and to is None and any(name.startswith("summarization") for name in names):
        return Summarizer(bundle, **options)
    return Translator(bundle, to=to, **options)


def check_source_task(bundle: Bundle, task: str, *, jobs: tuple[str, ...]) -> None:
    """Raise unless the model is an encoder-decoder trained for one of `jobs`, or its job is unknown."""
    if bundle.job.name is not None and bundle.job.name not in jobs:
        hint = f"it was trained for the job {bundle.job.name}"
        raise UnsupportedError(bundle.display_name, task, hint=hint)
    if generation_architecture(bundle) != "encoder-decoder":
        raise UnsupportedError(bundle.display_name, task, hint="it continues a prompt: use generate")


def source_encoder(tokenizer: Tokenizer, *, prefix: str = "", tag: str | None = None) -> Encode:
    """Return a function that encodes texts with a prefix or a language tag prepended."""
    check_text(prefix, "prefix")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        sources = [prefix + text for text in texts]
        encoded = tokenizer.encode_batch(sources) if tag is None else encode_tagged(tokenizer, sources, tag)
        return [encoding.ids for encoding in encoded]

    return encode


def tag_reader(tokenizer: Tokenizer) -> Callable[[str], str]:
    """Return a function from a line to its leading language tag, which each of its sentences needs."""

    def read(line: str) -> str:
        if not line.startswith(">>"):
            return ""
        tag, end, _ = line[:LONGEST_TAG].partition("<<")
        index = tokenizer.token_id(tag + end)
        if not end or index is None or tokenizer.encode(tag + end, special=False).ids != [index]:
            return ""
        rest = line[len(tag + end) :]
        return line[: len(line) - len(rest.lstrip())]

    return read


def symbol_lookup(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Return a function that tells whether a symbol is in the vocabulary."""
    return cache(
        lambda symbol: tokenizer.fallback_ids.isdisjoint(tokenizer.encode(symbol, special=False).ids)
    )


def gap_encoder(tokenizer: Tokenizer, gap: str | None, before: str | None) -> Encode:
    """Return a function that encodes texts with gaps, each as one token.

    before: string to prepend to each part of the text between gaps, as in training (from job.json).
    """
    index = tokenizer.token_id(gap) if gap else None
    if gap is None or index is None or before is None:
        raise InvalidValueError("job.json: gap", gap, "a token of the tokenizer")
    empty = tokenizer.encode("a")
    inside = [n for n, sequence in enumerate(empty.sequence_ids) if sequence is not None]

    def encode(texts: Sequence[str]) -> list[list[int]]:
        sources = []
        for text in texts:
            ids = list(empty.ids[: inside[0]])
            for n, part in enumerate(text.split(gap)):
                ids += [index] if n else []
                if stripped := " ".join(part.split()):
                    ids += tokenizer.encode(before + stripped, special=False).ids
            sources.append([*ids, *empty.ids[inside[-1] + 1 :]])
        return sources

    return encode


@dataclass(frozen=True, kw_only=True)
class Segmenter:
    """Split documents into segments.

    encode: function from texts to ids. max_tokens: maximum input length; None: no limit.
    trained_tokens: usual maximum length in training; None: unknown.
    split: which lines are split into sentences: long ones, all or none.
    unit: "document" keeps a document with its line breaks as one segment.
    prefix_of: function from a line to the prefix that all its segments need, such as a language tag.
    knows: whether a symbol is in the vocabulary; others are moved next to the output. None: keep all.
    lowercase: encode a line in capitals in lower case if that takes fewer tokens.
    """

    encode: Encode
    max_tokens: int | None
    trained_tokens: int | None = None
    split: Split = "long"
    unit: Literal["line", "document"] = "line"
    prefix_of: Callable[[str], str] = lambda _: ""
    knows: Callable[[str], bool] | None = None
    lowercase: bool = False

    def segment(self, texts: Iterable[str]) -> list[Document | GlassformerError]:
        """Return the segmented documents, or the errors of those that cannot be segmented."""
        rows = [attempt(self._lines, text) for text in texts]
        parts = (part for row in rows if isinstance(row, list) for part in row)
        encoded = iter(self.encode([part.source for part in parts if isinstance(part, _Line)]))
        documents: list[Document | GlassformerError] = []
        for row in rows:
            if isinstance(row, list):
                ids = [next(encoded) if isinstance(part, _Line) else [] for part in row]
                documents.append(attempt(self._segment_lines, row, ids))
            else:
                documents.append(row)
        return documents

    def _segment_lines(self, lines: list[str | _Line], ids: list[list[int]]) -> Document:
        document: Document = []
        for line, line_ids in zip(lines, ids, strict=True):
            document += self._segment_line(line, line_ids) if isinstance(line, _Line) else [line]
        return document

    def _lines(self, text: str) -> list[str | _Line]:
        """Split a document into lines; leading spaces are copied, trailing ones dropped."""
        check_text(text)
        if self.unit == "document":
            return [_Line("", body)] if (body := text.strip()) else []
        lines: list[str | _Line] = []
        for at, line in enumerate(text.split("\n")):
            lines += ["\n"] if at else []
            if body := line.strip():
                prefix = self.prefix_of(body)
                lines += [line[: line.index(body[0])], self._lowered(_Line(prefix, body[len(prefix) :]))]
        return lines

    def _lowered(self, line: _Line) -> _Line:
        """Lowercase a line in capitals if that takes fewer tokens."""
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
        unsplit = self.split == "never" or (
            self.split == "long" and len(ids) <= min(most, LINE_TOKENS, self._sentence_limit)
        )
        parts = [(line.body, "")] if unsplit else split_sentences(line.body)
        cleaned = [self._without_symbols(sentence) for sentence, _ in parts]
        changed = [text for _, text, _ in cleaned if text and text != line.body]
        encoded = iter(self.encode([line.prefix + text for text in changed])) if changed else iter(())
        document: Document = []
        for (_, gap), (before, text, after) in zip(parts, cleaned, strict=True):
            document.append(before)
            if text:
                sentence_ids = ids if text == line.body else next(encoded)
                document += (
                    [Segment(sentence_ids, line.prefix + text)]
                    if unsplit
                    else self._fit(line.prefix, text, sentence_ids, most)
                )
            document += [after, gap]
        return [
            replace(part, uppercase=True) if line.uppercase and isinstance(part, Segment) else part
            for part in document
            if part
        ]

    def _without_symbols(self, sentence: str) -> tuple[str, str, str]:
        """Remove symbols outside the vocabulary; return those to copy before, the text, those after."""
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
        """Split a sentence into segments of at most `most` tokens."""
        if len(ids) <= min(most, self._sentence_limit):
            return [Segment(ids, prefix + sentence)]
        cut = split_in_half(sentence)
        if cut is None:
            if len(sentence) > LONGEST_WORD:
                raise InputTooLongError(len(sentence), LONGEST_WORD, unit="characters without a space")
            return list(self._fit_word(prefix, sentence, ids, most))
        left, gap, right = cut
        left_ids, right_ids = self.encode([prefix + left, prefix + right])
        return [*self._fit(prefix, left, left_ids, most), gap, *self._fit(prefix, right, right_ids, most)]

    def _fit_word(self, prefix: str, word: str, ids: list[int], most: int) -> Iterator[Segment]:
        cut = split_word(word) if len(ids) > min(most, self._sentence_limit) else None
        if cut is None and len(ids) > most:
            raise InputTooLongError(len(ids), most)
        if cut is None:
            yield Segment(ids, prefix + word, split_word=True)
            return
        for part, part_ids in zip(cut, self.encode([prefix + part for part in cut]), strict=True):
            yield from self._fit_word(prefix, part, part_ids, most)


@dataclass(frozen=True)
class _Line:
    """A line to be segmented, and the prefix of each of its segments."""

    prefix: str
    body: str
    uppercase: bool = False

    @property
    def source(self) -> str:
        return self.prefix + self.body
