"""The OpenAPI document, and /docs: all routes with their parameters on one static page."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse

from glassformer.interpret import schema

LIMITS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "maxLength": "characters ≤",
    "maxItems": "items ≤",
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the explorer's dataclasses as they are sent.

    All fields are present, except those that are left out if they are None.
    """
    if app.openapi_schema is None:
        for name, component in FastAPI.openapi(app)["components"]["schemas"].items():
            kind = getattr(schema, name, None)
            if is_dataclass(kind):
                optional = {field.name for field in fields(kind) if field.metadata == schema.OMIT}
                component["required"] = [name for name in component["properties"] if name not in optional]
                for name in optional:
                    component["properties"][name] = _without_null(component["properties"][name])
    assert app.openapi_schema is not None
    return app.openapi_schema


def _without_null(property: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in property["anyOf"] if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {**property, "anyOf": kinds}


def docs_router(app: FastAPI) -> APIRouter:
    """GET /docs."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        return HTMLResponse(render(app.openapi()))

    return router


def render(document: dict[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    operations = [
        _operation(document, method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"></head>'
        f'<body style="font: 16px/1.5 sans-serif; max-width: 60rem; margin: 1rem auto"><h1>{title}</h1>'
        '<p>For programs: <a href="openapi.json">openapi.json</a>. Every error is <code>{"error": '
        '{"message": ..., "type": ..., "code": ..., "param": ..., "fields": ...}}</code>.</p>'
        f"{''.join(operations)}</body></html>"
    )


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    rows = [
        (parameter["name"], parameter["schema"], parameter["required"])
        for parameter in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        rows += [(name, one, name in body.get("required", ())) for name, one in body["properties"].items()]
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if required else ' (optional)'}<td>{escape(describe(one))}"
        for name, one, required in rows
    )
    about = escape(operation.get("description", ""))
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p><table>{cells}</table>"


def describe(schema: dict[str, Any]) -> str:
    """A JSON schema in short.

    >>> describe({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 4096}, {"type": "null"}]})
    'integer ≥ 1, ≤ 4,096'
    """
    if "anyOf" in schema:
        options = (describe(one) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(dict.fromkeys(options))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {describe(schema.get('items', {}))}"
    limits = ", ".join(f"{sign} {_number(schema[key])}" for key, sign in LIMITS.items() if key in schema)
    return f"{kind} {limits}".strip()


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
