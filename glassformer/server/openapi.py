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
    """Return FastAPI's document, with the explorer's dataclasses in the form in which they are sent.

    All fields are required, except those that are omitted if they are None.
    """
    if app.openapi_schema is None:
        for name, component in FastAPI.openapi(app)["components"]["schemas"].items():
            dataclass_type, properties = getattr(schema, name, None), component.get("properties", {})
            if is_dataclass(dataclass_type):
                optional = {field.name for field in fields(dataclass_type) if field.metadata == schema.OMIT}
                component["required"] = [name for name in properties if name not in optional]
                for name in optional:
                    kinds = [kind for kind in properties[name]["anyOf"] if kind != {"type": "null"}]
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
    parameters = operation.get("parameters", ())
    rows = {parameter["name"]: (parameter["schema"], parameter["required"]) for parameter in parameters}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        required_names = body.get("required", ())
        rows |= {name: (value, name in required_names) for name, value in body["properties"].items()}
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if required else ' (optional)'}"
        f"<td>{escape(_describe(value))}"
        for name, (value, required) in rows.items()
    )
    about = escape(operation.get("description", ""))
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p><table>{cells}</table>"


def _describe(value: dict[str, Any]) -> str:
    """Summarize a JSON schema: its type or alternatives, and its limits."""
    kinds = [kind for kind in value.get("anyOf", [value]) if kind.get("type") != "null"]
    parts = [{key: item for key, item in kind.items() if key not in ("title", "default")} for kind in kinds]
    return " or ".join(json.dumps(part).replace("#/components/schemas/", "") for part in parts)
