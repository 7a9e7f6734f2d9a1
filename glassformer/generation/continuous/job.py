"""A request on its way: what its caller hears of it, and may do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

from glassformer.generation.continuous.asked import Asked
from glassformer.generation.written import Written


class Token(NamedTuple):
    """A token that was just chosen."""

    row: int  # of num_return_sequences
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens with theirs, best first


OnToken = Callable[[Token], Any]
OnDone = Callable[["list[Written] | Exception"], Any]


class Job:
    """What `Writer.submit` gives; its callbacks are called in the writer's thread and must not block."""

    def __init__(
        self,
        asked: Asked,
        on_token: OnToken | None = None,
        on_done: OnDone | None = None,
        caller: Hashable | None = None,
    ) -> None:
        self.asked, self._on_token, self._on_done = asked, on_token, on_done
        self.caller: Hashable = self if caller is None else caller
        self.cancelled = False
        self._found: list[Written] | Exception | None = None
        self._done = threading.Event()

    def cancel(self) -> None:
        """Stop; its rows are free at the next step."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> list[Written]:
        """Wait for the texts, the best first; what went wrong is raised."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"nothing was finished within {timeout} seconds")
        assert self._found is not None
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def tell(self, token: Token) -> None:
        """Called by the writer with every token; a listener that fails is taken to be gone."""
        if self._on_token is None or self.cancelled:
            return
        try:
            self._on_token(token)
        except Exception:
            self.cancel()

    def finish(self, found: list[Written] | Exception) -> None:
        """Called by the writer, once."""
        if self.done:
            return
        self._found = found
        self._done.set()
        if self._on_done is not None:
            with suppress(Exception):  # whoever listens may be gone; the other requests must not hear of it
                self._on_done(found)
