"""The page's files, from a table that is made once: a path that is not in it is not there."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from glassformer.errors import GlassformerError
from glassformer.explorer import page as explorer

FOR_EVER = "public, max-age=31536000, immutable"
ASK = "no-cache"  # it may be kept, and is asked for each time whether it changed
KINDS = {
    ".js": "text/javascript",
    ".woff2": "font/woff2",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
ABSENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Glassformer</title>
<p>This copy of Glassformer was made without its page.
The <a href="docs">HTTP interface</a> is here.</p></html>
"""


@dataclass(frozen=True, kw_only=True)
class File:
    """One file: what it holds, what it is, and how long a browser may keep it."""

    content: bytes
    kind: str
    keep: str
    tag: str = field(init=False)  # changes when the file does

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", f'"{hashlib.sha256(self.content).hexdigest()[:32]}"')


def files() -> dict[str, File]:
    """Every file of the page by its path; where none was built, a page that says so."""
    try:
        places = explorer.files()
    except GlassformerError:
        return {"index.html": File(content=ABSENT.encode(), kind="text/html; charset=utf-8", keep=ASK)}
    found: dict[str, File] = {}
    for name, path in places.items():
        kind = KINDS.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind += "; charset=utf-8" if kind.startswith("text/") else ""
        keep = FOR_EVER if name.startswith("assets/") else ASK
        found[name] = File(content=path.read_bytes(), kind=kind, keep=keep)
    return found


def routes(table: dict[str, File]) -> APIRouter:
    """GET / and every file of the table, a route each: of a path for POST alone, GET is told so."""
    router = APIRouter(include_in_schema=False)

    for name, file in table.items():
        router.add_api_route(f"/{name}", _sending(file), methods=["GET"])
        if name == "index.html":
            router.add_api_route("/", _sending(file), methods=["GET"])
    return router


def _sending(file: File) -> Callable[[Request], Awaitable[Response]]:
    """What answers with a file, or with that a browser's own copy is still good."""

    async def sent(request: Request) -> Response:
        headers = {"cache-control": file.keep, "etag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    return sent
