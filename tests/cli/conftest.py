"""Run the command line in this process, as its console script does."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from glassformer.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def error(self) -> str:
        """The error message of a command that failed with exit code 2 and printed nothing else."""
        assert self.code == 2 and not self.out, self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return self.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*args: object) -> Done:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        code = stop.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put bytes on stdin."""

    def put(content: bytes, *, terminal: bool = False) -> None:
        stream = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: terminal)
        monkeypatch.setattr(sys, "stdin", stream)

    return put
