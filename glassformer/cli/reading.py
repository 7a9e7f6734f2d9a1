"""What the verbs that read have in common: their options, and a line for every input."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from glassformer.cli.asking import AskedOfLines, asking
from glassformer.cli.given import Given, given
from glassformer.cli.refused import Refusals
from glassformer.cli.taken import Taker, taking
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.tasks.watch import Watch

AHEAD = 1024  # lines looked at together, for batches of one length; at a terminal each is answered at once
Out = TypeVar("Out")

Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut what is longer than the model reads, instead of refusing it.")
]


@dataclass(frozen=True, kw_only=True)
class Reading(AskedOfLines):
    """What every verb that reads lines is asked for."""

    def inputs(self, texts: Sequence[str] | None) -> Inputs:
        """What is to be read: arguments, a file, or standard input."""
        return Inputs(given(list(texts or ()), self.file, Refusals()).saying_if_empty())


reading_verb = asking(Reading)


class Inputs:
    """Lines on their way to a model, and when each was read."""

    def __init__(self, what: Given) -> None:
        self._since: deque[float] = deque()
        self._taker: Taker | None = None
        self._taken = 0
        self.what = replace(what, lines=self._timed(what.lines))

    def _timed(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self._since.append(time.perf_counter())
            yield line

    @property
    def lines(self) -> Iterator[str]:
        return self.what.lines

    @property
    def total(self) -> int | None:
        return self.what.total

    @property
    def watch(self) -> Watch:
        """Who is told of these lines while they are answered."""
        from glassformer.tasks.watch import Watch

        def answered(count: int) -> None:
            if self._taker is not None:
                self._taker.hear(count)

        refusals = self.what.refusals
        return Watch(answered=answered, refuse=None if refusals is None else refusals.add, blank="left")

    def refused(self) -> str | None:
        """Why the next line could not be answered; None: it could. Asked once for each, in order."""
        self._taken += 1
        return self.what.refused(self._taken)

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        """Answers to standard output; of a file, how far it has come on standard error."""
        with taking(total=self.total, telling=self.what.kind == "file") as self._taker:
            yield self._taker

    @property
    def ahead(self) -> int:
        """How many lines are looked at together."""
        return 1 if self.what.kind == "terminal" else AHEAD

    def seconds(self) -> float:
        """How long the next line has taken, waiting for its batch included; asked once for each, in order."""
        return time.perf_counter() - self._since.popleft()


def printed(
    inputs: Inputs,
    results: Iterator[Out],
    plain: Callable[[Out], str],
    full: Callable[[Out], dict[str, Any]] | None,
    *,
    notes: Callable[[], None] = lambda: None,
    beside: Refusals | None = None,
) -> None:
    """A line for each result as it comes, as JSON where `full` is given; of a file, how far it has come.

    notes: says what is to be said when all are there. A line that could not be answered is left empty, which
    is an error after that; so are lines `beside` them that could not be used.
    """
    with inputs.taking() as taker:
        for one in results:
            seconds, why = inputs.seconds(), inputs.refused()
            if full is None:
                taker.take("" if why is not None else " ".join(plain(one).splitlines()))
            else:
                told = full(one) if why is None else {"error": why}
                taker.take(json.dumps({**told, "seconds": seconds}, ensure_ascii=False))
    notes()
    inputs.what.end(beside)


def scored(pairs: Iterable[tuple[str, float]]) -> str:
    """Words and their scores in one line, tabs between.

    >>> scored([("good", 0.75), ("bad", 0.25)])
    'good\\t0.7500\\tbad\\t0.2500'
    """
    return "\t".join(f"{' '.join(word.split())}\t{score:.4f}" for word, score in pairs)


def lines_of(file: Path, what: str, refusals: Refusals) -> list[str]:
    """All lines of a file that is held whole; empty ones for those that are no text."""
    found = list(given([], file, refusals).lines)
    if not any(map(str.strip, found)):
        refusals.all_taken()
        raise GlassformerError(f"'{file}' holds no {what}; give some")
    return found
