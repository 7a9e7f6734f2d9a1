"""Run the commands of rows in this process, which saves importing torch again."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from glassformer.cli.main import main


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `experiments.paths.glassformer` does, without a child."""

    def glassformer(*args: object) -> str:
        output = io.StringIO()
        with redirect_stdout(output), pytest.raises(SystemExit) as stop:
            main([str(word) for word in args])
        assert not stop.value.code
        return output.getvalue()

    for target in ("training_runs.glassformer", "language.command"):
        monkeypatch.setattr(f"experiments.{target}", glassformer)
