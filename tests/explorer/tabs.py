"""The browser's tabs, used again: to open the page in a tab that had it is half the work of a new tab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from playwright.sync_api import Browser, Page

from tests.explorer.seen import heed

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
