"""A static site of the explorer: a page for each story, from any web server and also from disk.

index.html                 all stories
page.js, page.css          the explorer, shared by all pages
STORY/index.html           one story, or one model without a story
STORY/trace-*.js           its trace, in chunks that are loaded when a figure needs them
.glassformer-site          the names of these files, so that the next site replaces only them
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from glassformer.bundle import Bundle
from glassformer.errors import FileExistsAlreadyError
from glassformer.explorer import PAGE, SAFE, single_page, trace_to_store
from glassformer.explorer.stored_trace import StoredTrace, store_run
from glassformer.explorer.stories import stories_of
from glassformer.interpret.schema import StoryInfo, TraceInput

# Scripts only from the site; a page on disk has the scheme file:.
POLICY = f"default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; {SAFE}"

MARKER = ".glassformer-site"
RESERVED = ("index.html", "page.js", "page.css")  # files next to the folders of the pages


def write_site(
    folder: Path, bundles: Mapping[str, Bundle], *, log: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Write a site with the stories of these models; return its files.

    A model without a story gets a page with the trace of its example. The folder is empty, or contains an
    earlier site, which is replaced.
    """
    stories = stories_of(bundles)
    pages: dict[str, tuple[str, StoryInfo | None]] = {story.id: (story.model, story) for story in stories}
    told = {story.model for story in stories}
    for id in (id for id in bundles if id not in told):
        pages[_folder_name(id, (*pages, *RESERVED))] = (id, None)
    script, style = single_page()
    files = {"page.js": script, "page.css": style}
    for name, (id, story) in pages.items():
        page = _page_files(bundles[id], id, story, stories)
        sizes = [sum(map(len, page.values())) / 1e6, len(page["trace-.js"]) / 1e6]
        log("{}: {:.1f} MB, of which {:.2f} MB when it opens".format(name, *sizes))
        files |= {f"{name}/{file}": text for file, text in page.items()}
    links = [replace(story, address=f"{story.id}/index.html") for story in stories]
    links += [_link(name, id) for name, (id, story) in pages.items() if story is None]
    index = StoredTrace({"model": None, "stories": links, "start": ""})
    files |= _site_page(index, title="Glassformer", description="The Transformer you can see through", up="")
    check_site_folder(folder)
    _remove_stale(folder, files)
    files = {MARKER: "".join(f"{name}\n" for name in files), **files}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def check_site_folder(folder: Path) -> None:
    """Raise if a folder contains files but no earlier site."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        hint = f"a site replaces only an earlier one, which contains {MARKER}; use an empty folder"
        raise FileExistsAlreadyError(folder, hint=hint)


def _remove_stale(folder: Path, files: Mapping[str, str]) -> None:
    """Remove the pages and traces of an earlier site that are not part of the new one."""
    marker = folder / MARKER
    for name in marker.read_text("utf-8").splitlines() if marker.is_file() else ():
        path = folder / name
        is_page = re.fullmatch(r"([\w-][\w.-]*/)?(index\.html|trace-[\w.-]*\.js)", name) is not None
        inside = path.resolve().is_relative_to(folder.resolve())
        if is_page and inside and name not in files and path.is_file():
            path.unlink()


def _page_files(bundle: Bundle, id: str, story: StoryInfo | None, stories: list[StoryInfo]) -> dict[str, str]:
    input = story.input if story is not None and story.input != TraceInput() else None
    links = [one if one is story else replace(one, address=f"../{one.id}/index.html") for one in stories]
    start = "" if story is None else story.address
    stored = trace_to_store(bundle, input, name=id, start=start, stories=links)
    if story is not None and "/learning?" in story.address:
        store_run(stored)
    title = f"Glassformer: {id if story is None else story.title['en']}"
    return _site_page(stored, title=title, description="" if story is None else story.text["en"], up="../")


def _site_page(stored: StoredTrace, *, title: str, description: str, up: str) -> dict[str, str]:
    page = PAGE.format(
        policy=html.escape(POLICY),
        title=html.escape(title),
        description=html.escape(description),
        style=f'<link rel="stylesheet" href="{up}page.css">',
        data='<div id="trace-" data-folder="./"></div>',
        script=f'<script src="{up}page.js"></script>',
    )
    chunks = {
        f"trace-{name}.js": f'(globalThis.glassformerChunks ??= {{}})["{name}"] = "{text}";\n'
        for name, text in stored.texts().items()
    }
    return {"index.html": page, **chunks}


def _link(name: str, model: str) -> StoryInfo:
    """Return a card without a figure, for a model without a story."""
    text = {"en": "Its example, layer by layer.", "ko": "예시를 층마다 살펴봅니다."}
    title = dict.fromkeys(text, model)
    return StoryInfo(id=name, model=model, title=title, text=text, address=f"{name}/index.html")


def _folder_name(id: str, existing: Iterable[str] = ()) -> str:
    """Return the name of a model's page, in letters that need no escaping, with a number if it is in use.

    >>> _folder_name("runs/my model"), _folder_name("boxes", ["boxes"])
    ('runs-my-model', 'boxes-2')
    """
    stem = re.sub(r"[^\w.-]+", "-", id, flags=re.ASCII).strip("-.") or "model"
    used = {name.casefold() for name in existing}  # folders may ignore case
    names = (stem if n == 1 else f"{stem}-{n}" for n in count(1))
    return next(name for name in names if name.casefold() not in used)
