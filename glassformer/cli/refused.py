"""Lines that cannot be answered where the others can: left empty, told, and counted at the end."""

from __future__ import annotations

from collections.abc import Iterable

from glassformer.cli.taken import say
from glassformer.core.errors import GlassformerError

TOLD = 10  # lines whose fault is told


class Refusals:
    """Hears of each such line when it is found, and says of a line whose turn has come why it is one."""

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}
        self._numbers = set[int]()

    def add(self, number: int, why: str) -> None:
        """The line of a number, from 1, cannot be answered; what is found first of it counts."""
        self._waiting.setdefault(number, why)
        self._tell(number, f"is left empty: {why}")

    def go_on(self, numbers: Iterable[int]) -> None:
        """These were refused by the run that is gone on with."""
        for number in numbers:
            self._tell(number, "was left empty by the run that is gone on with")

    def upto(self, last: int) -> list[int]:
        """The numbers of those found so far, up to one."""
        return sorted(number for number in self._numbers if number <= last)

    def _tell(self, number: int, what: str) -> None:
        if number in self._numbers:
            return
        self._numbers.add(number)
        if len(self._numbers) <= TOLD:
            say(f"note: line {number:,} {what}")

    def taken(self, number: int) -> str | None:
        """Why a line is left empty, asked once when it is its turn; None: it is not."""
        return self._waiting.pop(number, None)

    def end(self) -> None:
        """End in an error where any line was refused."""
        if count := len(self._numbers):
            many = "1 line was" if count == 1 else f"{count:,} lines were"
            more = "" if count <= TOLD else f"; the first {TOLD} are told above"
            raise GlassformerError(f"{many} left empty, for want of an answer{more}")
