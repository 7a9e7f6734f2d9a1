"""Run the command line in this process, as its console script would."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from glassformer.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*args: object) -> Done:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        code = stop.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call
