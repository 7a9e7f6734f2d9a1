"""Texts on their way to a model, and what a record of a file of answers counts: those that were answered.

A digest runs along with the texts and another with their lines, so a record of them costs the same however
long the file is.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from glassformer.cli.progress import Progress

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True, kw_only=True)
class Counted:
    """answered: how many texts were, those that are answered again not yet among them.

    known: how many of the lines that are counted are to be made again. inputs, answers: digests of the texts
    and of the lines that are counted. size: the bytes of these lines.
    """

    answered: int = 0
    known: int = 0
    inputs: _Hash = field(default_factory=hashlib.sha256)
    answers: _Hash = field(default_factory=hashlib.sha256)
    size: int = 0

    @property
    def lines(self) -> int:
        """How many lines are counted."""
        return self.answered + self.known

    def and_one(self, text: str, line: str) -> Counted:
        """The next text is answered with a line; one that was known changes nothing of the digests."""
        if self.known:
            return Counted(
                answered=self.answered + 1,
                known=self.known - 1,
                inputs=self.inputs,
                answers=self.answers,
                size=self.size,
            )
        inputs, answers, written = self.inputs.copy(), self.answers.copy(), written_as(line)
        inputs.update(_told_apart(text))
        answers.update(written)
        return Counted(
            answered=self.answered + 1, inputs=inputs, answers=answers, size=self.size + len(written)
        )


class Texts:
    """Gives texts one by one, and counts those that were answered.

    A signal may break in anywhere, so what is counted is one value that is replaced as a whole.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._waiting = lines, deque[str]()
        self.counted = Counted()
        self.when_asked: Callable[[], None] | None = None  # is told when a further text is asked for

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._waiting.append(line)
            yield line
            if self.when_asked is not None:
                self.when_asked()

    @property
    def answered(self) -> int:
        return self.counted.answered

    def answer(self, line: str) -> None:
        """The first that waited is answered with a line, which is written."""
        self.counted = self.counted.and_one(self._waiting[0], line)
        self._waiting.popleft()

    def go_on(self, progress: Progress, answers: _Hash) -> bool:
        """Begin at the text where batches began; whether those that were answered are the same as then.

        answers: the digest of their lines.
        """
        inputs, kept, many = hashlib.sha256(), list[str](), 0
        for many, line in enumerate(islice(self._lines, progress.lines), 1):
            inputs.update(_told_apart(line))
            if many > progress.again:
                kept.append(line)
        self._lines = chain(kept, self._lines)
        self.counted = Counted(
            answered=progress.again, known=len(kept), inputs=inputs, answers=answers, size=progress.size
        )
        return (many, inputs.hexdigest()) == (progress.lines, progress.inputs)

    def end(self) -> None:
        """There is nothing left to answer."""
        self._lines = iter(())


def written_as(line: str) -> bytes:
    """A line of answers as the file holds it."""
    return f"{line}\n".encode()


def _told_apart(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass") + b"\n"
