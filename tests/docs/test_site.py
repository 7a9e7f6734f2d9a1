"""The site builds without warnings, its links work, its reference is complete, and no resource is remote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

import glassformer
from docs.reference import describe_keys
from glassformer import generation, tasks, training
from glassformer.cli.main import commands
from glassformer.families.registry import families
from tests.docs.pages import DOCS, PAGES, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
pytestmark = pytest.mark.slow

RESOURCES = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "video": "src"}


class SitePage(HTMLParser):
    """The anchors, links, resources and number of formulas of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.formulas = 0
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        self.formulas += tag == "math"
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if RESOURCES.get(tag) in attributes:
            self.resources.append(attributes[RESOURCES[tag]])


Site = dict[str, SitePage]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with --strict."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Site:
    return {
        path.relative_to(folder).as_posix(): SitePage(path)
        for path in folder.rglob("*.html")
        if path.name != "404.html"
    }


def test_every_page_is_built(site: Site) -> None:
    pages = [page.relative_to(DOCS) for page in PAGES if page.is_relative_to(DOCS)]
    assert {page.with_suffix(".html").as_posix() for page in pages} <= site.keys()


@pytest.mark.parametrize("page", ["concepts/parts", "ko/concepts"])
def test_formulas_are_mathml(site: Site, page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    formulas = text.replace("$$", "$").split("$")[1::2]
    assert site[f"{page}.html"].formulas == len(formulas)


@pytest.mark.parametrize("module", [glassformer, tasks, generation, training], ids=lambda one: one.__name__)
def test_reference_has_every_public_name(site: Site, module: object) -> None:
    anchors = set().union(*(page.anchors for path, page in site.items() if path.startswith("reference/")))
    names = {name for name in module.__all__ if name != "spec"}  # type: ignore[attr-defined]
    assert {name for name in names if f"{module.__name__}.{name}" not in anchors} == set()  # type: ignore[attr-defined]


def test_reference_has_every_command_option_and_key(site: Site) -> None:
    assert {
        name for name in commands() if f"glassformer-{name}" not in site["reference/cli.html"].anchors
    } == set()
    assert families().keys() <= site["reference/model-options.html"].anchors
    recipe = site["reference/recipe.html"].text
    assert all(f"<code>{key.key}</code>" in recipe for key in describe_keys() if key.key != "overrides")


def test_reference_explains_every_argument(site: Site) -> None:
    """`docs/docstrings.py` writes a space for a missing description; in a table the second cell is empty."""
    for path, page in site.items():
        if path.startswith("reference/"):
            assert "&nbsp;" not in page.text, path
            assert re.findall(r"<tr>\s*<td><code>([^<]+)</code></td>\s*<td[^>]*></td>", page.text) == [], path


def test_links_and_anchors_exist(site: Site, folder: Path) -> None:
    broken = []
    for path, page in site.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme in ("http", "https"):
                continue
            target = (folder / path).parent / unquote(url.path) if url.path else folder / path
            target = target / "index.html" if target.is_dir() else target
            name = os.path.relpath(target.resolve(), folder.resolve())
            anchors = site[name].anchors if name in site else set()
            if not target.exists() or (unquote(url.fragment) and unquote(url.fragment) not in anchors):
                broken.append(f"{path}: {link}")
    assert not broken, "\n".join(broken)


# tables and code that are wider than their place
OVERFLOWING = """() => [...document.querySelectorAll('.md-typeset pre > code, .md-typeset__scrollwrap')]
  .filter((element) => element.scrollWidth > element.clientWidth + 1)
  .map((element) => `${element.scrollWidth} in ${element.clientWidth}: ${element.innerText.slice(0, 60)}`)"""


def test_no_table_or_code_overflows_on_a_small_laptop(site: Site, folder: Path, browser: Browser) -> None:
    overflowing = {}
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    for path in site:
        page.goto((folder / path).as_uri())
        page.evaluate("document.fonts.ready")
        overflowing[path] = page.evaluate(OVERFLOWING)
    page.close()
    assert not any(overflowing.values()), {path: found for path, found in overflowing.items() if found}


def test_no_resource_is_remote(site: Site, folder: Path) -> None:
    for path, page in site.items():
        assert page.resources
        for resource in page.resources:
            url = urlsplit(resource)
            assert not url.netloc and ((folder / path).parent / unquote(url.path)).exists(), (
                f"{path}: {resource}"
            )
    styles = list(folder.rglob("*.css"))
    assert styles
    for style in styles:
        text = style.read_text(encoding="utf-8")
        assert "@import" not in text and "url(http" not in text and "url(//" not in text, style.name
