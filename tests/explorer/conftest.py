"""One server with a model of every kind, for all tests of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import glassformer
from glassformer.bundle import Bundle
from glassformer.interpret.examples import example_input
from glassformer.interpret.schema import TraceInput, to_json
from glassformer.interpret.trace import Trace, trace_model
from tests.explorer.made import GIVEN, RUN, make
from tests.explorer.seen import Look, Tabs, settled
from tests.interpret.models import interventions
from tests.server.harness import Server, serving

Opened = Callable[..., Any]
Traced = Callable[..., Trace]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="session")
def bundles(folders: dict[str, Path]) -> dict[str, Bundle]:
    """The same models here, to be asked what the page shows; a run's is the one that it ended with."""
    return {
        name: glassformer.load(folder / "model" if name == RUN else folder)
        for name, folder in folders.items()
    }


@pytest.fixture(scope="session")
def traced(bundles: dict[str, Bundle]) -> Traced:
    """`traced(name, **given)`: the library's own trace of what the page shows of a model."""

    @cache
    def taken(name: str, told: str) -> Trace:
        given = json.loads(told)
        changes = interventions(given.pop("changes", ()))
        example = to_json(example_input(bundles[name]))
        return trace_model(bundles[name], TraceInput.from_json({**example, **given}), changes, model=name)

    return lambda name, **given: taken(name, json.dumps({**GIVEN.get(name, {}), **given}))


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    with serving(list(folders.values())) as running:
        yield running


@pytest.fixture(scope="session")
def tabs(browser: Browser) -> Tabs:
    return Tabs(browser)


@pytest.fixture
def opened(tabs: Tabs, server: Server) -> Iterator[Opened]:
    """`opened(address, language=, theme=, width=)`: a page there, ready.

    Whatever the page complains of fails the test, and so does asking any other server for anything.
    """
    complaints: list[str] = []

    @contextmanager
    def open_page(
        address: str = "", *, language: str = "en", theme: str = "light", width: int = 1280, height: int = 900
    ) -> Iterator[Page]:
        with tabs.used(Look(language, theme, width, height), server.url, complaints) as page:
            page.goto(address if "://" in address else f"{server.url}/{address}")
            settled(page)
            yield page

    yield open_page
    assert not complaints, "\n".join(complaints)
