"""Looking at the page: going somewhere in it, waiting until it stands, reading numbers off it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, Locator, Page, Request

QUIET = 30  # milliseconds in which nothing is asked for and nothing comes: everything is drawn
# Two frames after that time the page has a view and is not waiting for its model.
_STANDS = """async quiet => {
  await new Promise((done) => setTimeout(done, quiet));
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  return document.querySelector('[data-view]') !== null && document.querySelector('.busy.on') === null;
}"""

# What is wrong with what is shown inside an element: nothing drawn, a canvas left empty, a complaint, or
# numbers that are none.
_WRONG = r"""one => {
  const wrong = [];
  const small = new OffscreenCanvas(8, 8).getContext('2d', { willReadFrequently: true });
  const figures = [...one.querySelectorAll('[data-figure]')];
  if (!figures.length) wrong.push('no figure');
  for (const figure of figures) {
    const body = figure.querySelector('svg, canvas, table, li, button:not(.save), p');
    if (!body || figure.getBoundingClientRect().height < 40) wrong.push(`empty: ${figure.dataset.figure}`);
    for (const canvas of figure.querySelectorAll('canvas')) {
      small.clearRect(0, 0, 8, 8);
      small.drawImage(canvas, 0, 0, 8, 8);
      const painted = small.getImageData(0, 0, 8, 8).data.some((x) => x);
      if (!painted) wrong.push(`unpainted: ${figure.dataset.figure}`);
    }
    for (const path of figure.querySelectorAll('path[d]'))
      if (/NaN|undefined|Infinity/.test(path.getAttribute('d'))) wrong.push(`path: ${figure.dataset.figure}`);
  }
  for (const alert of document.querySelectorAll('[role=alert]')) wrong.push(`alert: ${alert.textContent}`);
  const strange = one.innerText.match(/.{0,30}(\bNaN\b|undefined|\[object|\bnull\b).{0,30}/);
  if (strange) wrong.push(`text: ${strange[0]}`);
  return wrong;
}"""


def address(model: str, view: str = "model", **words: Any) -> str:
    """Where a view of a model is, with the words of the address; `text` is what the model is given."""
    if "text" in words:
        words["in"] = words.pop("text")
    return f"#/{model}/{view}" + (f"?{urlencode(words)}" if words else "")


@dataclass
class Traffic:
    """What a page has asked for and not yet got, and how often it asked or was answered."""

    coming: set[Request] = field(default_factory=set)
    heard: int = 0

    def asks(self, one: Request) -> None:
        self.coming.add(one)
        self.heard += 1

    def gets(self, one: Request) -> None:
        self.coming.discard(one)
        self.heard += 1


_traffic: WeakKeyDictionary[Page, Traffic] = WeakKeyDictionary()


def heed(page: Page) -> None:
    """Heed the page's traffic from now on, and none that was before."""
    if page not in _traffic:
        page.on("request", lambda one: _traffic[page].asks(one))
        page.on("requestfinished", lambda one: _traffic[page].gets(one))
        page.on("requestfailed", lambda one: _traffic[page].gets(one))
    _traffic[page] = Traffic()


def settled(page: Page) -> None:
    """Wait until the page has what it asked for, its own parts too, and has drawn it."""
    if page not in _traffic:  # opened by someone who does not heed it
        page.wait_for_load_state("networkidle")
    traffic = _traffic.get(page) or Traffic()
    patience = time.monotonic() + 30
    while True:
        heard = traffic.heard
        if page.evaluate(_STANDS, QUIET) and not traffic.coming and heard == traffic.heard:
            return
        assert time.monotonic() < patience, [one.url for one in traffic.coming]


def go(page: Page, to: str, until: str = "[data-view]") -> None:
    """Go to an address inside the page, as a link there would, until something stands there."""
    page.evaluate("to => { location.hash = to }", to)
    page.wait_for_selector(until, state="attached")
    settled(page)


def wrong(shown: Locator) -> list[str]:
    """What is wrong with what is shown there, in words."""
    found: list[str] = shown.evaluate(_WRONG)
    return found


def number(shown: Locator) -> float:
    """The exact number behind one that is shown rounded."""
    return float(str(shown.get_attribute("data-value")))


def numbers(shown: Locator) -> list[float]:
    """The exact numbers, in the page's order."""
    return [float(one) for one in shown.evaluate_all("all => all.map(one => one.dataset.value)")]


def texts(shown: Locator) -> list[str]:
    """The texts, in the page's order."""
    return [one.strip() for one in shown.all_inner_texts()]


# What the page remembers from one visit to the next.
FORGET = (
    "() => { try { localStorage.clear(); sessionStorage.clear() } catch { /* nowhere to keep a thing */ } }"
)


class Look(NamedTuple):
    """How a browser is set up, as far as a page can tell."""

    language: str
    theme: str
    width: int
    height: int


class Tab:
    """A page of one look, and what it complains of while somebody listens."""

    def __init__(self, browser: Browser, look: Look) -> None:
        self.context = browser.new_context(
            viewport={"width": look.width, "height": look.height},
            locale={"en": "en-US", "ko": "ko-KR"}[look.language],
            color_scheme="dark" if look.theme == "dark" else "light",
            reduced_motion="reduce",
            accept_downloads=True,
        )
        self.page = page = self.context.new_page()
        self.home = ""  # the only server that it may ask
        self.complaints: list[str] | None = None
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: self._note(f"error: {error}"))
        page.on(
            "console", lambda said: self._note(f"console: {said.text}", said.type in ("error", "warning"))
        )
        page.on("response", lambda got: self._note(f"{got.status}: {got.url}", got.status >= 400))
        page.on(
            "request",
            lambda asked: self._note(f"asked elsewhere: {asked.url}", self._is_elsewhere(asked.url)),
        )

    def _is_elsewhere(self, url: str) -> bool:
        return not url.startswith((self.home, "data:", "blob:", "file:"))

    def _note(self, complaint: str, is_one: bool = True) -> None:
        if self.complaints is not None and is_one:
            self.complaints.append(complaint)

    def leave(self) -> None:
        """Forget all and go nowhere, so that the next who comes finds a tab like a new one."""
        self.complaints = None  # what is asked for and not waited for is no harm
        self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        self.context.clear_cookies()


class Tabs:
    """A tab for each look that is asked for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[Look, Tab] = {}

    @contextmanager
    def used(self, look: Look, home: str, complaints: list[str]) -> Iterator[Page]:
        """A tab that is nowhere yet; after a failure inside nobody uses it again."""
        tab = self._free.pop(look, None) or Tab(self._browser, look)
        tab.home, tab.complaints = home, complaints
        heed(tab.page)
        try:
            yield tab.page
        except BaseException:
            tab.context.close()
            raise
        tab.leave()
        self._free[look] = tab
