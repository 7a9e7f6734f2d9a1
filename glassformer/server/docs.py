"""/docs: every operation on one page, with nothing fetched from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse

STYLE = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 0 auto; padding: 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0 }
section { border-top: 1px solid #8886; padding: .5rem 0 } h2 { font-size: 1.1rem; margin: .5rem 0 }
"""


def routes(app: FastAPI) -> APIRouter:
    """The page and its style."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def shown() -> Response:
        return HTMLResponse(page(app.openapi()))

    @router.get("/docs.css")
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    return router


def page(schema: dict[str, Any]) -> str:
    """What an OpenAPI document says, for people."""
    parts = [
        section(schema, path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    title = f"{escape(schema['info']['title'])} {escape(schema['info']['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/docs.css"></head>'
        f"<body><h1>{title}</h1>"
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>. Every error is '
        '<code>{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}</code>.</p>'
        f"{''.join(parts)}</body></html>"
    )


def section(schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    """One operation: what it does, and what it takes."""
    rows = [
        row(one["name"], one.get("schema", {}), one.get("required", False))
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    found = resolved(schema, body)
    rows += [
        row(name, one, name in found.get("required", ())) for name, one in found.get("properties", {}).items()
    ]
    table = f"<table><tr><th>name<th>kind<th>bounds</tr>{''.join(rows)}</table>" if rows else ""
    about = escape(operation.get("description") or operation.get("summary", ""))
    return f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p>{table}</section>"


def row(name: str, about: dict[str, Any], needed: bool) -> str:
    """One name, its kind and its bounds."""
    kind = escape(told(about)) + ("" if needed else " (may be left out)")
    bounds = ", ".join(
        f"{word} {number(one[key])}"
        for one in (about, *about.get("anyOf", ()))
        for key, word in BOUNDS.items()
        if key in one
    )
    return f"<tr><td><code>{escape(name)}</code><td>{kind}<td>{escape(bounds)}</tr>"


def number(bound: float) -> str:
    """A bound as people write it.

    >>> number(4096.0), number(0.001), number(2.0**63)
    ('4,096', '0.001', '9,223,372,036,854,775,808')
    """
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
    "maxLength": "letters up to",
    "maxItems": "items up to",
}


def resolved(schema: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for."""
    name = body.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema.get("components", {}).get("schemas", {}).get(name, body)
    return found


def told(about: dict[str, Any]) -> str:
    """A kind of value in words."""
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(told(one) for one in about["anyOf"] if one.get("type") != "null"))
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if "enum" in about or "const" in about:
        return ", ".join(map(str, about.get("enum", [about.get("const")])))
    if about.get("type") == "array":
        return f"list of {told(about.get('items', {}))}"
    return str(about.get("type", "anything"))
