"""Helpers for tests in the browser: navigate, wait until the page is drawn, read numbers from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, Locator, Page, Request

QUIET = 30  # milliseconds without a request or a response after which everything is drawn
# After that time and two animation frames: is there a view, and is the model done?
_IS_DRAWN = """async quiet => {
  await new Promise((done) => setTimeout(done, quiet));
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  return document.querySelector('[data-view]') !== null && document.querySelector('.busy.on') === null;
}"""

# Errors inside an element: no figure, an empty figure or canvas, an alert, NaN or undefined in a text.
_DISPLAY_ERRORS = r"""element => {
  const errors = [];
  const small = new OffscreenCanvas(8, 8).getContext('2d', { willReadFrequently: true });
  const figures = [...element.querySelectorAll('[data-figure]')];
  if (!figures.length) errors.push('no figure');
  for (const figure of figures) {
    const name = figure.dataset.figure;
    const body = figure.querySelector('svg, canvas, table, li, button:not(.save), p');
    if (!body || figure.getBoundingClientRect().height < 40) errors.push(`empty: ${name}`);
    for (const canvas of figure.querySelectorAll('canvas')) {
      small.clearRect(0, 0, 8, 8);
      small.drawImage(canvas, 0, 0, 8, 8);
      if (!small.getImageData(0, 0, 8, 8).data.some((x) => x)) errors.push(`empty canvas: ${name}`);
    }
    for (const path of figure.querySelectorAll('path[d]'))
      if (/NaN|undefined|Infinity/.test(path.getAttribute('d'))) errors.push(`path: ${name}`);
  }
  for (const alert of document.querySelectorAll('[role=alert]')) errors.push(`alert: ${alert.textContent}`);
  const match = element.innerText.match(/.{0,30}(\bNaN\b|undefined|\[object|\bnull\b).{0,30}/);
  if (match) errors.push(`text: ${match[0]}`);
  return errors;
}"""


def address(model: str, view: str = "model", **params: Any) -> str:
    """The URL of a view of a model; `text` is the input."""
    if "text" in params:
        params["in"] = params.pop("text")
    return f"#/{model}/{view}" + (f"?{urlencode(params)}" if params else "")


@dataclass
class RequestLog:
    """The pending requests of a page, and a count of all requests and responses."""

    pending: set[Request] = field(default_factory=set)
    events: int = 0

    def start(self, request: Request) -> None:
        self.pending.add(request)
        self.events += 1

    def finish(self, request: Request) -> None:
        self.pending.discard(request)
        self.events += 1


_logs: WeakKeyDictionary[Page, RequestLog] = WeakKeyDictionary()


def log_requests(page: Page) -> None:
    """Log the requests of the page from now on."""
    if page not in _logs:
        page.on("request", lambda request: _logs[page].start(request))
        page.on("requestfinished", lambda request: _logs[page].finish(request))
        page.on("requestfailed", lambda request: _logs[page].finish(request))
    _logs[page] = RequestLog()


def wait_until_idle(page: Page) -> None:
    """Wait until no request is pending and the page is drawn."""
    if page not in _logs:
        page.wait_for_load_state("networkidle")
    log = _logs.get(page) or RequestLog()
    deadline = time.monotonic() + 30
    while True:
        events = log.events
        if page.evaluate(_IS_DRAWN, QUIET) and not log.pending and events == log.events:
            return
        assert time.monotonic() < deadline, [request.url for request in log.pending]


def navigate(page: Page, to: str, until: str = "[data-view]") -> None:
    """Go to an address inside the page, as a link would, and wait for an element there."""
    page.evaluate("to => { location.hash = to }", to)
    page.wait_for_selector(until, state="attached")
    wait_until_idle(page)


def display_errors(element: Locator) -> list[str]:
    """What is displayed wrongly inside an element."""
    errors: list[str] = element.evaluate(_DISPLAY_ERRORS)
    return errors


def number(element: Locator) -> float:
    """The exact value of a number that is shown rounded."""
    return float(str(element.get_attribute("data-value")))


def numbers(elements: Locator) -> list[float]:
    """The exact values, in the order of the page."""
    return [float(value) for value in elements.evaluate_all("all => all.map(one => one.dataset.value)")]


def texts(elements: Locator) -> list[str]:
    """The texts, in the order of the page."""
    return [text.strip() for text in elements.all_inner_texts()]


CLEAR_STORAGE = "() => { try { localStorage.clear(); sessionStorage.clear() } catch { /* about:blank */ } }"


class BrowserSettings(NamedTuple):
    """The settings of a browser that a page can read."""

    language: str
    theme: str
    width: int
    height: int


class Tab:
    """A page with given browser settings; while in use, its errors are collected."""

    def __init__(self, browser: Browser, settings: BrowserSettings) -> None:
        self.context = browser.new_context(
            viewport={"width": settings.width, "height": settings.height},
            locale={"en": "en-US", "ko": "ko-KR"}[settings.language],
            color_scheme="dark" if settings.theme == "dark" else "light",
            reduced_motion="reduce",
            accept_downloads=True,
        )
        self.page = page = self.context.new_page()
        self.server = ""  # the only server that it may send requests to
        self.problems: list[str] | None = None
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on(
            "console", lambda line: self._note(f"console: {line.text}", line.type in ("error", "warning"))
        )
        page.on("response", lambda reply: self._note(f"{reply.status}: {reply.url}", reply.status >= 400))
        page.on("request", lambda request: self._note(f"other: {request.url}", self._is_other(request.url)))

    def _is_other(self, url: str) -> bool:
        return not url.startswith((self.server, "data:", "blob:", "file:"))

    def _note(self, problem: str, is_problem: bool = True) -> None:
        if self.problems is not None and is_problem:
            self.problems.append(problem)

    def reset(self) -> None:
        """Clear storage and cookies and leave the page, so that the next test finds a new tab."""
        self.problems = None  # aborted requests do not matter
        self.page.evaluate(CLEAR_STORAGE)
        self.page.goto("about:blank")
        self.context.clear_cookies()


class TabPool:
    """Tabs to reuse, by their settings."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[BrowserSettings, Tab] = {}

    @contextmanager
    def use(self, settings: BrowserSettings, server: str, problems: list[str]) -> Iterator[Page]:
        """A blank tab; after a failure it is closed instead of reused."""
        tab = self._free.pop(settings, None) or Tab(self._browser, settings)
        tab.server, tab.problems = server, problems
        log_requests(tab.page)
        try:
            yield tab.page
        except BaseException:
            tab.context.close()
            raise
        tab.reset()
        self._free[settings] = tab
