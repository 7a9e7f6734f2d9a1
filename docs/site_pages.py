"""What `make docs` does beside MkDocs' own work: pages from outside this folder, and formulas as MathML.

MkDocs calls the functions by their names. The README, the changelog and the models' cards stay where they are
read without a site; the site has them as pages, their links led to its own. Formulas are drawn by the browser
itself, from MathML that is written here, so that no script and no font has to come from elsewhere.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "README.ko.md": "ko.md", "CHANGELOG.md": "changelog.md"}
OTHERS = {"LICENSE": "LICENSE.txt", "web/public/icon.svg": "icon.svg"}
LINK = re.compile(r"""(?P<before>\]\(|(?:src|href)=")(?P<to>[^)"\s#]+)""")
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?:span|div)>', re.S
)


def pages() -> dict[str, str]:
    """The pages from outside this folder: where each lies -> where it stands in the site."""
    cards = {
        path.relative_to(ROOT).as_posix(): f"models/{path.parent.name}.md"
        for path in sorted(ROOT.glob("glassformer/pretrained/*/CARD.md"))
    }
    return {source: page for source, page in {**PAGES, **cards}.items() if (ROOT / source).exists()}


def written() -> list[str]:
    """Every page in this folder, relative to it."""
    docs = ROOT / "docs"
    return [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]


@cache
def outside() -> dict[str, str]:
    """All that the site has from outside this folder: the pages, and every file that a page links to."""
    known = pages() | OTHERS
    for source in [*pages(), *(f"docs/{page}" for page in written())]:
        for link in LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
            place = lies(link["to"], source)
            if place not in known and not place.startswith("docs/") and (ROOT / place).is_file():
                known[place] = f"files/{place}"
    return known


def lies(link: str, source: str) -> str:
    """Where in the checkout the target of a link lies, which stands in the page `source`."""
    return normpath((PurePosixPath(source).parent / link).as_posix())


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that GitHub gives them, and cards their place in the navigation."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    outside.cache_clear()  # while MkDocs watches, pages change
    cards = [page for page in pages().values() if page.startswith("models/")]
    assert config.nav is not None
    config.nav = there([*config.nav, *([{"Model cards": cards}] if cards else [])])
    return config


def there(nav: list[Any]) -> list[Any]:
    """The navigation without the pages that this checkout does not have."""
    known = {*written(), *pages().values()}
    kept: list[Any] = []
    for entry in nav:
        title, page = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(page, list):
            kept.append({title: there(page)})
        elif page in known:
            kept.append(entry)
    return kept


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what lies outside this folder."""
    for source, page in outside().items():
        path = ROOT / source
        if source in pages():
            text = led(path.read_text(encoding="utf-8"), source, page)
            files.append(File.generated(config, page, content=text))
        else:
            files.append(File.generated(config, page, abs_src_path=str(path)))
    return files


def led(text: str, source: str, page: str) -> str:
    """A page's text with its links, written for where it lies, led to where it stands in the site."""

    def lead(found: re.Match[str]) -> str:
        to = found["to"]
        if "://" in to:
            return found.group()
        place = lies(to, source)
        target = outside().get(place, place.removeprefix("docs/"))
        return found["before"] + relpath(target, PurePosixPath(page).parent.as_posix() or ".")

    return LINK.sub(lead, text)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of this folder lead to what the site has from there."""
    place = page.file.src_uri
    return markdown if place in pages().values() else led(markdown, f"docs/{place}", place)


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["latex"]).strip(), display=display)

    return FORMULA.sub(drawn, content)
