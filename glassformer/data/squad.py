"""Questions with answers in a context, from files in the format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.readers import UTF8, JsonlReader, open_text
from glassformer.data.row_errors import RowCounter, RowErrors
from glassformer.data.sources import FileSource, Paths, list_paths
from glassformer.errors import FileProblemError
from glassformer.json_text import parse_json


@dataclass(frozen=True, kw_only=True)
class GoldAnswers:
    """The correct answers of a question: texts, and their character offsets in the context."""

    texts: tuple[str, ...]
    starts: tuple[int, ...]

    @classmethod
    def from_json(cls, text: str) -> GoldAnswers:
        """Read the third field of a row.

        >>> GoldAnswers.from_json('[["Paris"], [4]]').texts
        ('Paris',)
        """
        texts, starts = json.loads(text)
        return cls(texts=tuple(texts), starts=tuple(starts))


def questions(paths: Paths, *, encoding: str = UTF8) -> QuestionSource:
    """Open questions in SQuAD's JSON (`data`, `paragraphs`, `qas`), or in JSON Lines.

    A line of JSON Lines has the keys `context`, `question` and `answers`, with the lists `text` and
    `answer_start`. encoding: of the files.
    """
    return QuestionSource(list_paths(paths), encoding)


class QuestionSource(FileSource):
    """Rows of context, question and answers; the answers are JSON, see `GoldAnswers`."""

    fields = ("context", "question", "answers")

    def __init__(self, paths: Sequence[Path], encoding: str) -> None:
        super().__init__(paths, "questions", encoding)
        self.encoding = encoding

    def rows(self, errors: RowErrors) -> Iterator[tuple[str, ...]]:
        for path in self.paths:
            document = _read_document(path, self.encoding)
            unit = "line" if document is None else "question"
            counter = errors.start_file(path, unit=unit)
            items = _lines(path, self.encoding, counter) if document is None else _questions(path, document)
            for number, (context, question, answers, impossible) in items:
                reason, gold = _check_question(context, question, answers, impossible)
                if reason:
                    counter.add_error(number, reason)
                else:
                    counter.good += 1
                    yield context, question.strip(), json.dumps(gold, ensure_ascii=False)
            counter.finish()


def _read_document(path: Path, encoding: str) -> Mapping[str, Any] | None:
    """Read a SQuAD file; None if the file is JSON Lines."""
    with open_text(path, encoding=encoding) as stream:
        content = stream.read()
    try:
        document = parse_json(content)
    except ValueError:
        return None  # several objects, or damaged: the line reader reports it
    if isinstance(document, dict) and "question" in document:
        return None  # JSON Lines with a single line
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise FileProblemError(path, "is not in SQuAD's format", hint="it needs the key 'data' with a list")
    return document


Question = tuple[Any, Any, Any, bool]  # context, question, answers, whether there is no answer


def _questions(path: Path, document: Mapping[str, Any]) -> Iterator[tuple[int, Question]]:
    number = 0
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    number += 1
                    answers = {
                        "text": [answer["text"] for answer in qa.get("answers", ())],
                        "answer_start": [answer["answer_start"] for answer in qa.get("answers", ())],
                    }
                    impossible = bool(qa.get("is_impossible", False))
                    yield number, (paragraph["context"], qa["question"], answers, impossible)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"is not in SQuAD's format: question {number:,} ({type(error).__name__}: {error})"
        raise FileProblemError(path, problem) from None


def _lines(path: Path, encoding: str, counter: RowCounter) -> Iterator[tuple[int, Question]]:
    for number, row in JsonlReader(path, encoding=encoding).objects(counter):
        impossible = bool(row.get("is_impossible", False))
        yield number, (row.get("context"), row.get("question"), row.get("answers"), impossible)


def _check_question(
    context: Any, question: Any, answers: Any, impossible: bool
) -> tuple[str, tuple[list[str], list[int]]]:
    """Return what is wrong with a question (empty if nothing is), and its answers with their offsets."""
    for name, text in (("context", context), ("question", question)):
        if not isinstance(text, str) or not text.strip():
            return f"{name} is missing or empty", ([], [])
    answers = answers if isinstance(answers, dict) else {}
    texts, starts = answers.get("text") or [], answers.get("answer_start") or []
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return "answers need the lists 'text' and 'answer_start'", ([], [])
    if impossible or not texts:
        return "", ([], [])
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
            return "an answer is empty or has no 'answer_start'", ([], [])
        if start < 0 or context[start : start + len(text)] != text:
            return f"the answer {text[:40]!r} is not at offset {start} of its context", ([], [])
    return "", (texts, starts)
