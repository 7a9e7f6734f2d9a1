"""A request on its way: what its caller hears of it, and may do with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

from glassformer.generation.continuous.asked import Asked
from glassformer.generation.request import GenerationOutput, Token

OnDone = Callable[["list[GenerationOutput] | Exception"], Any]


class Request:
    """What `Scheduler.submit` gives; its callbacks are called in the writer's thread and must not block."""

    def __init__(
        self,
        asked: Asked,
        on_done: OnDone | None = None,
        caller: Hashable | None = None,
    ) -> None:
        self.asked, self._on_done = asked, on_done
        self.caller: Hashable = self if caller is None else caller
        self.cancelled = False
        self._found: list[GenerationOutput] | Exception | None = None
        self._done = threading.Event()

    def cancel(self) -> None:
        """Stop; its rows are free at the next step."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> list[GenerationOutput]:
        """Wait for the texts, the best first; what went wrong is raised."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"nothing was finished within {timeout} seconds")
        assert self._found is not None
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def tell(self, token: Token) -> None:
        """Called by the writer with every token; a listener that fails is taken to be gone."""
        on_token = self.asked.request.on_token
        if on_token is None or self.cancelled:
            return
        try:
            on_token(token)
        except Exception:
            self.cancel()

    def finish(self, found: list[GenerationOutput] | Exception) -> None:
        """Called by the writer, once."""
        if self.done:
            return
        self._found = found
        self._done.set()
        if self._on_done is not None:
            with suppress(Exception):  # whoever listens may be gone; the other requests must not hear of it
                self._on_done(found)
