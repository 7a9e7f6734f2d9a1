"""The OpenAPI document, and /docs: all routes with their parameters on one static page."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from fastapi import FastAPI

from glassformer.interpret import schema

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"></head>
<body style="font: 16px/1.5 sans-serif; max-width: 60rem; margin: 1rem auto"><h1>{title}</h1>
<p>For programs: <a href="openapi.json">openapi.json</a>. Every error is <code>{{"error": {{"message": ...,
"type": ..., "code": ..., "param": ..., "fields": ...}}}}</code>.</p>{operations}</body></html>
"""


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the explorer's dataclasses as they are sent.

    All fields are present, except those that are left out if they are None.
    """
    if app.openapi_schema is None:
        for name, component in FastAPI.openapi(app)["components"]["schemas"].items():
            kind, properties = getattr(schema, name, None), component.get("properties", {})
            if is_dataclass(kind):
                optional = {field.name for field in fields(kind) if field.metadata == schema.OMIT}
                component["required"] = [name for name in properties if name not in optional]
                for name in optional:
                    kinds = [one for one in properties[name]["anyOf"] if one != {"type": "null"}]
                    properties[name] = kinds[0] if len(kinds) == 1 else {**properties[name], "anyOf": kinds}
    assert app.openapi_schema is not None
    return app.openapi_schema


def render(document: dict[str, Any]) -> str:
    operations = [
        _operation(document, method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    return PAGE.format(title=title, operations="".join(operations))


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    rows = {one["name"]: (one["schema"], one["required"]) for one in operation.get("parameters", ())}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        rows |= {name: (one, name in body.get("required", ())) for name, one in body["properties"].items()}
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if required else ' (optional)'}<td>{escape(_describe(one))}"
        for name, (one, required) in rows.items()
    )
    about = escape(operation.get("description", ""))
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p><table>{cells}</table>"


def _describe(one: dict[str, Any]) -> str:
    """A JSON schema in short: its type, or its alternatives, and its limits."""
    kinds = [kind for kind in one.get("anyOf", [one]) if kind.get("type") != "null"]
    parts = [{key: value for key, value in kind.items() if key not in ("title", "default")} for kind in kinds]
    return " or ".join(json.dumps(part).replace("#/components/schemas/", "") for part in parts)
