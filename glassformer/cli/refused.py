"""Lines that cannot be used where the others can: left empty or out, told in order, counted at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from glassformer.cli.taken import say
from glassformer.errors import GlassformerError

TOLD = 10  # lines whose fault is told


class Refusals:
    """Hears of each such line when it is found, and tells of it when its turn has come.

    of: the file that the lines are of, where it is not the one that is answered. becomes: what is done with
    one of them.
    """

    def __init__(
        self, *, of: Path | None = None, becomes: Literal["left empty", "left out"] = "left empty"
    ) -> None:
        self._of, self._becomes = of, becomes
        self._waiting: dict[int, str] = {}
        self._numbers = set[int]()

    def add(self, number: int, why: str) -> None:
        """The line of a number, from 1, cannot be used; what is found first of it counts."""
        self._waiting.setdefault(number, why)

    def taken(self, number: int) -> str | None:
        """Why a line cannot be used, asked and told once when it is its turn; None: it can."""
        why = self._waiting.pop(number, None)
        if why is not None:
            self._tell(number, f"is {self._becomes}: {why}")
        return why

    def all_taken(self) -> None:
        """It is the turn of all that were found."""
        for number in sorted(self._waiting):
            self.taken(number)

    def go_on(self, numbers: Iterable[int]) -> None:
        """These were refused by the run that is gone on with, beside what was found again meanwhile."""
        was = "was left empty by the run that is gone on with"
        for number in sorted({*numbers, *self._waiting}):
            why = self._waiting.get(number)  # may be asked for again, where a line is answered again
            self._tell(number, was if why is None else f"is {self._becomes}: {why}")

    def upto(self, last: int) -> list[int]:
        """The numbers of those whose turn has come, up to one."""
        return sorted(number for number in self._numbers if number <= last)

    def _tell(self, number: int, what: str) -> None:
        if number in self._numbers:
            return
        self._numbers.add(number)
        if len(self._numbers) <= TOLD:
            say(f"note: line {number:,}{self._where} {what}")

    @property
    def _where(self) -> str:
        return "" if self._of is None else f" of '{self._of}'"

    def summary(self) -> str | None:
        """What became of how many; None: there are none."""
        count = len(self._numbers)
        if not count:
            return None
        many = f"1 line{self._where} was" if count == 1 else f"{count:,} lines{self._where} were"
        want = ", for want of an answer" if self._of is None else ""
        more = "" if count <= TOLD else f"; the first {TOLD} are told above"
        return f"{many} {self._becomes}{want}{more}"


def end_in_error(*refusals: Refusals | None) -> None:
    """End in an error where any line was refused."""
    told = [one.summary() for one in refusals if one is not None]
    if said := [summary for summary in told if summary is not None]:
        raise GlassformerError("; ".join(said))
