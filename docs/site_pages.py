"""MkDocs hooks: pages from outside docs/, the generated reference, and formulas as MathML.

MkDocs calls the functions `on_*`. README, changelog and model cards stay where GitHub shows them; the site
includes them as pages, with their links rewritten. MathML needs no script and no font, so pages work offline.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from docs import reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "README.md": "index.md",
    "README.ko.md": "ko/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "THIRD_PARTY_NOTICES.md": "third-party-notices.md",
}
FILES = {"LICENSE": "LICENSE.txt", "web/public/icon.svg": "icon.svg"}
LINK = re.compile(r"""(?P<before>\]\(|(?:src|href)=")(?P<target>[^)"\s#]+)""")
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?:span|div)>', re.S
)


@cache
def external_pages() -> dict[str, str]:
    """Return the pages from outside docs/: path in the repository -> path in the site."""
    cards = {
        path.relative_to(ROOT).as_posix(): f"models/{path.parent.name}.md"
        for path in sorted(ROOT.glob("glassformer/pretrained/*/CARD.md"))
    }
    return PAGES | cards


@cache
def external_files() -> dict[str, str]:
    """Return all files from outside docs/: the pages, and every file that a page links to."""
    files = external_pages() | FILES
    pages = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")]
    for source in [*external_pages(), *pages]:
        for link in LINK.finditer((ROOT / source).read_text(encoding="utf-8")):
            path = resolve_link(link["target"], source)
            if path not in files and not path.startswith("docs/") and (ROOT / path).is_file():
                files[path] = f"files/{path}"
    return files


@cache
def reference_pages() -> dict[str, str]:
    return reference.pages()


def resolve_link(target: str, source: str) -> str:
    """Return the path in the repository that a link of the page `source` points to."""
    return normpath((PurePosixPath(source).parent / target).as_posix())


def rewrite_links(text: str, source: str, page: str) -> str:
    """Return the text of `source` with its links rewritten to work from `page` of the site."""

    def rewrite(link: re.Match[str]) -> str:
        if "://" in link["target"]:
            return link.group()
        path = resolve_link(link["target"], source)
        target = external_files().get(path, path.removeprefix("docs/"))
        return link["before"] + relpath(target, PurePosixPath(page).parent.as_posix() or ".")

    return LINK.sub(rewrite, text)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Use GitHub's anchors for headings, and add reference pages and model cards to the navigation."""
    for cached in (external_pages, external_files, reference_pages):  # `mkdocs serve` builds again and again
        cached.cache_clear()
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    cards = [page for page in external_pages().values() if page.startswith("models/")]
    assert config.nav is not None
    for section in config.nav:
        if "Reference" in section:
            section["Reference"] = [*reference.nav(), *section["Reference"], {"Model cards": cards}]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/ and the reference."""
    for source, page in external_files().items():
        path = ROOT / source
        if source in external_pages():
            text = rewrite_links(path.read_text(encoding="utf-8"), source, page)
            files.append(File.generated(config, page, content=text))
        else:
            files.append(File.generated(config, page, abs_src_path=str(path)))
    for page, text in reference_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/."""
    path = page.file.src_uri
    generated = path in external_pages().values() or path in reference_pages()
    return markdown if generated else rewrite_links(markdown, f"docs/{path}", path)


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert formulas to MathML."""

    def to_mathml(formula: re.Match[str]) -> str:
        display = "block" if formula["tag"] == "div" else "inline"
        return convert(html.unescape(formula["latex"]).strip(), display=display)

    return FORMULA.sub(to_mathml, content)
