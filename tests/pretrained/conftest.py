"""Tiny models in place of the shipped ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer import pretrained as models
from tests.cli.conftest import run  # noqa: F401
from tests.pretrained.tiny_models import save_models


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny models."""
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def shipped(model_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make the tiny models the shipped ones, in an empty working directory; return the folder of a name."""
    monkeypatch.setattr(models, "HERE", model_root)
    monkeypatch.chdir(tmp_path)
    return lambda name: model_root / name
