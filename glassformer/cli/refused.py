"""Lines that cannot be answered where the others can: left empty, told, and counted at the end."""

from __future__ import annotations

from glassformer.cli.taken import say
from glassformer.core.errors import GlassformerError

TOLD = 10  # lines whose fault is told


class Refusals:
    """Hears of each such line when it is found, and says of a line whose turn has come why it is one."""

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}
        self._count = 0

    def add(self, number: int, why: str) -> None:
        """The line of a number, from 1, cannot be answered; what is found first of it counts."""
        if number in self._waiting:
            return
        self._waiting[number] = why
        self._count += 1
        if self._count <= TOLD:
            say(f"note: line {number:,} is left empty: {why}")

    def taken(self, number: int) -> str | None:
        """Why a line is left empty, asked once when it is its turn; None: it is not."""
        return self._waiting.pop(number, None)

    def end(self) -> None:
        """End in an error where any line was refused."""
        if self._count:
            many = "1 line was" if self._count == 1 else f"{self._count:,} lines were"
            more = "" if self._count <= TOLD else f"; the first {TOLD} are told above"
            raise GlassformerError(f"{many} left empty, for want of an answer{more}")
