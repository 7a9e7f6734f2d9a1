"""The explorer: the files of the built page, and pages that work without a server.

`export_page` returns one trace as a single HTML file, `site.write_site` writes a folder of pages that share
their script, and `notebook` puts one into a notebook.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.errors import FileMissingError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.explorer.stored_trace import StoredTrace
    from glassformer.interpret.schema import StoryInfo, TraceInput

FOLDER = Path(__file__).parent / "page"
SINGLE = "single"  # the page as one script and one style, for exports
MAX_BYTES = 24 * 2**20  # of compressed tensors in one page
SAFE = "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"  # of every page's policy

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="description" content="{description}">
<title>{title}</title>
{style}
</head>
<body>
<div id="app"></div>
{data}
{script}
</body>
</html>
"""
# Unpacks the script of the page; it may run because the policy has its hash.
UNPACK = """(async () => {
const text = atob(document.getElementById('page-script').textContent);
const data = Uint8Array.from({length: text.length}, (_, i) => text.charCodeAt(i));
const plain = new Blob([data]).stream().pipeThrough(new DecompressionStream('deflate'));
const script = document.createElement('script');
script.textContent = await new Response(plain).text();
document.body.append(script);
})();"""


def page_files() -> dict[str, Path]:
    """Return the served files by URL path (`index.html`, `assets/...`), without those for exports."""
    if not (FOLDER / "index.html").is_file():
        hint = "run 'make page' in a checkout, which needs npm, or install a wheel, which contains it"
        raise FileMissingError(FOLDER / "index.html", "the explorer's page", hint=hint)
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    hidden = (f"{SINGLE}/", "built-from.txt")
    return {name: path for name, path in files.items() if not name.startswith(hidden)}


def single_page() -> tuple[str, str]:
    """Return the page as one script and one style."""
    page_files()  # fails if the page is not built
    script, style = (FOLDER / SINGLE / name for name in ("page.js", "page.css"))
    return script.read_text("utf-8"), style.read_text("utf-8")


def export_page(
    bundle: Bundle,
    input: TraceInput | None = None,
    *,
    name: str = "model",
    max_bytes: int = MAX_BYTES,
    start: str = "",
    log: Callable[[str], None] = lambda text: None,
) -> str:
    """Return a page that contains a trace of the input, by default of the model's example.

    max_bytes: of compressed tensors. start: the view to open, such as `#/pocket/heads?role=next`. log:
    called with a note if large tensors are left out to limit the size of the page.
    """
    stored = trace_to_store(bundle, input, name=name, max_bytes=max_bytes, start=start)
    if stored.left_out:
        many = len(stored.left_out)
        log(f"tensors left out to limit the page's size: {many}; without --export, all are shown")
    return single_file(stored, title=f"Glassformer: {name}")


def trace_to_store(
    bundle: Bundle,
    input: TraceInput | None = None,
    *,
    name: str,
    max_bytes: int = MAX_BYTES,
    start: str = "",
    stories: Sequence[StoryInfo] = (),
) -> StoredTrace:
    """Trace the input, by default the model's example, and return what a page has to store."""
    from glassformer.explorer.stored_trace import store_trace
    from glassformer.interpret.catalog import describe_model
    from glassformer.interpret.trace import trace_model

    page_files()  # fails if the page is not built, before the model runs
    model = describe_model(bundle, name)
    trace = trace_model(bundle, input or model.example, model=name)
    model = replace(model, example=trace.prepared.input, examples=())  # what the page shows
    stored = store_trace(trace, model, max_bytes)
    stored.index |= {"start": start, "stories": stories}
    return stored


def single_file(stored: StoredTrace, *, title: str, description: str = "") -> str:
    """Return the page with a stored trace as one HTML file."""
    script, style = single_page()
    packed = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
    style = style.replace("</style", "<\\/style")
    texts = [_hidden(f"trace-{name}", text) for name, text in stored.texts().items()]
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (UNPACK, script))
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; {SAFE}"
    return PAGE.format(
        policy=html.escape(policy),
        title=html.escape(title),
        description=html.escape(description),
        style=f"<style>{style}</style>",
        data="\n".join(texts),
        script=f"{_hidden('page-script', packed)}\n<script>{UNPACK}</script>",
    )


def _hidden(id: str, base64_text: str) -> str:
    return f'<script type="text/plain" id="{id}">{base64_text}</script>'


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
