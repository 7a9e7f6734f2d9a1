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
from tests.explorer.browser_page import BrowserSettings, TabPool, wait_until_idle
from tests.explorer.explorer_models import INPUTS, RUN, save_models
from tests.interpret.models import interventions
from tests.server.harness import Server, serving

OpenPage = Callable[..., Any]
ExpectedTrace = Callable[..., Trace]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("explorer"))


@pytest.fixture(scope="session")
def bundles(folders: dict[str, Path]) -> dict[str, Bundle]:
    """The models of the server, to compute expected values; of a run its final model."""
    return {
        name: glassformer.load(folder / "model" if name == RUN else folder)
        for name, folder in folders.items()
    }


@pytest.fixture(scope="session")
def expected_trace(bundles: dict[str, Bundle]) -> ExpectedTrace:
    """`expected_trace(name, **inputs)`: the library's trace of what the page shows."""

    @cache
    def compute(name: str, text: str) -> Trace:
        inputs = json.loads(text)
        changes = interventions(inputs.pop("changes", ()))
        example = to_json(example_input(bundles[name]))
        return trace_model(bundles[name], TraceInput.from_json({**example, **inputs}), changes, model=name)

    return lambda name, **inputs: compute(name, json.dumps({**INPUTS.get(name, {}), **inputs}))


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    with serving(list(folders.values())) as running:
        yield running


@pytest.fixture(scope="session")
def tabs(browser: Browser) -> TabPool:
    return TabPool(browser)


@pytest.fixture
def open_page(tabs: TabPool, server: Server) -> Iterator[OpenPage]:
    """`open_page(address, language=, theme=, width=)`: open a page and wait until it is drawn.

    Errors on the page's console and requests to other servers fail the test.
    """
    problems: list[str] = []

    @contextmanager
    def open_page(
        address: str = "", *, language: str = "en", theme: str = "light", width: int = 1280, height: int = 900
    ) -> Iterator[Page]:
        with tabs.use(BrowserSettings(language, theme, width, height), server.url, problems) as page:
            page.goto(address if "://" in address else f"{server.url}/{address}")
            wait_until_idle(page)
            yield page

    yield open_page
    assert not problems, "\n".join(problems)
