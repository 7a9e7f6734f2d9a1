"""Tiny models in the place of those that come with the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer import pretrained as models
from tests.cli.conftest import run  # noqa: F401
from tests.pretrained.made import make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder they lie in."""
    return make(tmp_path_factory.mktemp("models"))


@pytest.fixture
def shipped(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Where a model lies; this process takes the tiny ones for those that come along, in an empty folder."""
    monkeypatch.setattr(models, "HERE", made)
    monkeypatch.chdir(tmp_path)
    return lambda name: made / name
