"""The site is built without a warning, all of it leads somewhere, and nothing in it comes from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")

FETCHED = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "video": "src"}


class Read(HTMLParser):
    """Of a page of the site: what can be linked to, where its links lead, what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.formulas = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = {name: value or "" for name, value in attrs}
        self.anchors |= {words[name] for name in ("id", "name") if name in words}
        self.formulas += tag == "math"
        if tag == "a" and "href" in words:
            self.links.append(words["href"])
        if FETCHED.get(tag) in words:
            self.fetched.append(words[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Read]:
    """Every page of the site, built strictly."""
    folder = tmp_path_factory.mktemp("built") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    return {path: Read(path) for path in folder.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_there(site: dict[Path, Read]) -> None:
    there = {path.stem for path in site}
    assert {page.stem for page in PAGES if page.parent != ROOT} <= there
    (parts,) = (page for path, page in site.items() if path.stem == "parts")
    source = ROOT / "docs" / "concepts" / "parts.md"
    assert parts.formulas == len(formulas(source.read_text(encoding="utf-8")))


def formulas(text: str) -> list[str]:
    """Every second piece between dollars, a pair of which counts as one."""
    return text.replace("$$", "$").split("$")[1::2]


def test_its_links_and_anchors_lead_somewhere(site: dict[Path, Read]) -> None:
    lost = []
    for path, page in site.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme in ("http", "https"):
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            found = site[target].anchors if target in site else set()
            if not target.exists() or (unquote(to.fragment) and unquote(to.fragment) not in found):
                lost.append(f"{path.name}: {link}")
    assert not lost, "\n".join(lost)


# Of a page: its tables and lines of code that reach beyond what is seen of them.
CUT = """() => [...document.querySelectorAll('.md-typeset pre > code, .md-typeset__scrollwrap')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.scrollWidth} in ${one.clientWidth}: ${one.innerText.slice(0, 60)}`)"""


def test_no_table_and_no_line_of_code_is_cut_off_on_a_small_laptop(
    site: dict[Path, Read], browser: Browser
) -> None:
    cut = {}
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    for path in site:
        page.goto(path.as_uri())
        page.evaluate("document.fonts.ready")
        cut[path.name] = page.evaluate(CUT)
    page.close()
    assert not any(cut.values()), {name: some for name, some in cut.items() if some}


def test_nothing_comes_from_elsewhere(site: dict[Path, Read]) -> None:
    for path, page in site.items():
        assert page.fetched
        for asked in page.fetched:
            to = urlsplit(asked)
            assert not to.netloc and (path.parent / unquote(to.path)).exists(), f"{path.name}: {asked}"
    folder = next(path.parent for path in site if path.name == "index.html")
    styles = list(folder.rglob("*.css"))
    assert styles
    for style in styles:
        text = style.read_text(encoding="utf-8")
        assert "@import" not in text and "url(http" not in text and "url(//" not in text, style.name
