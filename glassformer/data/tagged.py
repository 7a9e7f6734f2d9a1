"""Sentences whose words have tags, e.g. named entities, from CoNLL-style files or JSON Lines.

A row has two fields: the words and the tags of a sentence, each joined by WORD_SEPARATOR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from glassformer.data.readers import (
    UTF8,
    Column,
    JsonlReader,
    ParquetReader,
    TableReader,
    file_format,
    find_column,
    open_table,
    read_lines,
)
from glassformer.data.row_errors import Invalid, RowCounter, RowErrors
from glassformer.data.sources import FileSource, Paths, clean_label, clean_text, list_paths
from glassformer.errors import FileProblemError, InvalidValueError
from glassformer.messages import plural, quantity

WORD_SEPARATOR = "\x1f"
WORD_NAMES = "tokens words text".split()
TAG_NAMES = "ner_tags tags labels ner pos_tags".split()
_DOCUMENT_START = "-DOCSTART-"  # a line of CoNLL-2003 that is not a sentence
Sentence = tuple[list[object], list[object]]  # words and tags


def tagged_sentences(
    paths: Paths, *, columns: Sequence[Column] | None = None, encoding: str = UTF8
) -> TaggedSource:
    """Open tagged sentences: one word per line with a blank line between sentences, or lists in JSON Lines.

    columns: numbers (from 1) of the word and the tag column of a CoNLL-style file, by default the first and
    the last. In JSON Lines or Parquet, names of the two lists, by default common ones: tokens, ner_tags, ...
    encoding: of text files.
    """
    if columns is not None and len(columns) != 2:
        raise InvalidValueError("columns", list(columns), "two columns, words and tags")
    return TaggedSource(list_paths(paths), columns, encoding)


class TaggedSource(FileSource):
    """Tagged sentences of one or several files."""

    fields = ("words", "tags")

    def __init__(self, paths: Sequence[Path], columns: Sequence[Column] | None, encoding: str) -> None:
        super().__init__(paths, "tagged", columns, encoding)
        self.columns, self.encoding = columns, encoding

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        for path in self.paths:
            counter = errors.start_file(path)
            if file_format(path) in ("jsonl", "parquet"):
                sentences = self._table_rows(open_table(path, encoding=self.encoding), counter)
            else:
                sentences = self._line_rows(path, counter)
            for line, (words, tags) in sentences:
                if reason := _problem(words, tags):
                    counter.add_error(line, reason)
                    continue
                counter.good += 1
                cleaned = (" ".join(str(word).split()) for word in words), map(str, map(clean_label, tags))
                yield tuple(WORD_SEPARATOR.join(part) for part in cleaned)
            counter.finish()

    def _table_rows(self, table: TableReader, counter: RowCounter) -> Iterator[tuple[int, Sentence]]:
        assert isinstance(table, JsonlReader | ParquetReader)
        names = table.head(1).names or ()
        columns = self.columns or (find_column(names, WORD_NAMES), find_column(names, TAG_NAMES))
        if None in columns:
            hint = f"name them with data.columns: it has {', '.join(names)}"
            raise FileProblemError(table.path, "cannot tell which columns are words and tags", hint=hint)
        for line, (words, tags) in table.rows([c for c in columns if c is not None], counter):
            if isinstance(words, list) and isinstance(tags, list):
                yield line, (words, tags)
            else:
                counter.add_error(line, "needs a list of words and a list of tags")

    def _line_rows(self, path: Path, counter: RowCounter) -> Iterator[tuple[int, Sentence]]:
        words, tags, first, reason = list[object](), list[object](), 1, ""
        for number, line in enumerate([*read_lines(path, encoding=self.encoding), ""], 1):
            if isinstance(line, Invalid):
                reason = reason or line.reason
            elif line.strip():
                cells = line.split("\t") if "\t" in line else line.split()
                word, tag = self._cells(cells)
                if word is None or tag is None:
                    reason = reason or f"line {number:,} has {len(cells)} {plural('column', len(cells))}"
                elif word != _DOCUMENT_START:
                    words.append(word)
                    tags.append(tag)
            else:
                if reason:
                    counter.add_error(first, reason)
                elif words:
                    yield first, (words, tags)
                words, tags, first, reason = [], [], number + 1, ""

    def _cells(self, cells: Sequence[str]) -> tuple[str | None, str | None]:
        """Return the word and the tag of a line; None if it has too few columns."""
        word, tag = self.columns or (1, max(2, len(cells)))
        if not isinstance(word, int) or not isinstance(tag, int) or min(word, tag) < 1:
            raise InvalidValueError("columns", [word, tag], "column numbers from 1, as there is no header")
        found = dict(enumerate(cells, 1))
        return found.get(word), found.get(tag)


def _problem(words: Sequence[object], tags: Sequence[object]) -> str:
    """Describe what is wrong with a sentence; empty if nothing is."""
    if len(words) != len(tags):
        return f"has {quantity(len(words), 'word')} and {quantity(len(tags), 'tag')}"
    for name, values, clean in (("word", words, clean_text), ("tag", tags, clean_label)):
        bad = next((c for c in map(clean, values) if isinstance(c, Invalid)), None)
        if bad is not None:
            return f"a {name} {bad.reason}"
    return "" if words else "has no words"
