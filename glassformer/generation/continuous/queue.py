"""The queue of requests that wait for rows: callers take turns, and none gets all the rows.

A caller may submit more than can run at once. Others who come meanwhile are served before the rest of it, and
find free rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

from glassformer.generation.continuous.request import Request

MAX_SHARE: Final = 0.75  # of rows and tokens, for one caller with several requests


class RequestQueue:
    """Requests by their callers; not thread-safe."""

    def __init__(self, rows: int, tokens: int) -> None:
        """rows, tokens: the capacity for all."""
        self._rows, self._tokens = MAX_SHARE * rows, MAX_SHARE * tokens
        self._by_caller: dict[Hashable, deque[Request]] = {}  # the caller whose turn is next comes first
        self._running: list[Request] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_caller.values()))

    def add(self, request: Request) -> None:
        self._by_caller.setdefault(request.caller, deque()).append(request)

    def pop(self, rows: int, tokens: int) -> Request | None:
        """The first request of the next caller, if it fits; else all wait, so that none waits forever."""
        self._running = [request for request in self._running if not request.done]
        waiting = (requests[0] for requests in self._by_caller.values())
        first = next(filter(self._within_share, waiting), None)
        if first is None or first.rows > rows or first.tokens > tokens:
            return None
        requests = self._by_caller.pop(first.caller)
        requests.popleft()
        if requests:
            self._by_caller[first.caller] = requests
        self._running.append(first)
        return first

    def _within_share(self, request: Request) -> bool:
        """Whether its caller has nothing running yet, or may run this too."""
        own = [one for one in self._running if one.caller == request.caller]
        rows, tokens = sum(one.rows for one in own), sum(one.tokens for one in own)
        within = rows + request.rows <= self._rows and tokens + request.tokens <= self._tokens
        return not own or within

    def pop_cancelled(self) -> list[Request]:
        cancelled = [one for requests in self._by_caller.values() for one in requests if one.cancelled]
        for request in cancelled:
            self._by_caller[request.caller].remove(request)
            if not self._by_caller[request.caller]:
                del self._by_caller[request.caller]
        return cancelled

    def pop_all(self) -> list[Request]:
        found = [request for requests in self._by_caller.values() for request in requests]
        self._by_caller.clear()
        return found
