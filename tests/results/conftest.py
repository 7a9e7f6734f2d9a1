"""Rows whose commands run in this process, so that a test does not wait for torch to be imported anew."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import pytest

from glassformer.cli.main import main

STOPPED = 128 + signal.SIGTERM


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `results.place.glassformer` does, without a child."""

    def glassformer(*words: object, stop_after: float | None = None) -> str:
        told = io.StringIO()
        with redirect_stdout(told), pytest.raises(SystemExit) as stop, _asked_to_stop(stop_after):
            main([str(word) for word in words])
        assert not stop.value.code or (stop_after is not None and stop.value.code == STOPPED)
        return told.getvalue()

    for place in ("trained.glassformer", "timed.glassformer", "language.command"):
        monkeypatch.setattr(f"results.{place}", glassformer)


@contextmanager
def _asked_to_stop(after: float | None) -> Iterator[None]:
    """Send this process the signal that a child would get; outside the command nothing comes of it."""
    if after is None:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGTERM, before)
