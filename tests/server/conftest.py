"""The models and the server that these tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.bundle import Bundle
from tests.faults.scale import Report
from tests.server.harness import Server, make_models, serving


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def bundles(folders: dict[str, Path]) -> dict[str, Bundle]:
    return {name: glassformer.load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    with serving(list(folders.values())) as running:
        yield running


@pytest.fixture
def report(record_property: Callable[[str, Any], None]) -> Report:
    """Add a row to the table of faults and fail if a trial failed."""

    def note(what: str, tried: int, failures: Sequence[str]) -> None:
        record_property("faults", [what, tried, len(failures)])
        shown = "\n".join(failures[:20])
        assert not failures, f"{len(failures)} of {tried} failed:\n{shown}"

    return note
