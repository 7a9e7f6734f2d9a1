"""Requests that wait for a place: callers take turns, and none is given all the places.

A caller may ask for more than can be written at once. Others who come meanwhile are served before the rest of
it, and find places that are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from glassformer.generation.continuous.job import Request

SHARE: Final = 0.75  # of rows and tokens, for one caller with several requests


class Waiting:
    """Requests by their callers; not to be used by two threads at once."""

    def __init__(self, rows: int, tokens: int) -> None:
        """rows, tokens: what there is for all."""
        self._rows, self._tokens = SHARE * rows, SHARE * tokens
        self._by_caller: dict[Hashable, deque[Request]] = {}  # whose turn is next stands first
        self._taken: list[Request] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_caller.values()))

    def add(self, job: Request) -> None:
        self._by_caller.setdefault(job.caller, deque()).append(job)

    def take(self, rows: int, tokens: int) -> Request | None:
        """The next caller's first, if it fits; else all wait, so that none waits for ever."""
        self._taken = [job for job in self._taken if not job.done]
        first = next((jobs[0] for jobs in self._by_caller.values() if self._is_due(jobs[0])), None)
        if first is None or first.asked.rows > rows or first.asked.tokens > tokens:
            return None
        jobs = self._by_caller.pop(first.caller)
        jobs.popleft()
        if jobs:
            self._by_caller[first.caller] = jobs
        self._taken.append(first)
        return first

    def _is_due(self, job: Request) -> bool:
        """Whether its caller has nothing yet, or may have this too."""
        own = [one.asked for one in self._taken if one.caller == job.caller]
        rows, tokens = sum(one.rows for one in own), sum(one.tokens for one in own)
        within = rows + job.asked.rows <= self._rows and tokens + job.asked.tokens <= self._tokens
        return not own or within

    def take_cancelled(self) -> list[Request]:
        """Those that nobody wants any more."""
        gone = [job for jobs in self._by_caller.values() for job in jobs if job.cancelled]
        for job in gone:
            self._by_caller[job.caller].remove(job)
            if not self._by_caller[job.caller]:
                del self._by_caller[job.caller]
        return gone

    def take_all(self) -> list[Request]:
        found = [job for jobs in self._by_caller.values() for job in jobs]
        self._by_caller.clear()
        return found
