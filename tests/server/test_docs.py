"""docs/serving.md: its routes exist, and errors look as shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_routes_and_error_shape(server):
    with server.client() as client:
        routes = client.get("/openapi.json").json()["paths"]
        wrong = client.post("/translate", json={"text": "a", "temprature": 1})
    named = re.findall(r"`(?:GET|POST) (/[\w/]*)`", PAGE)
    assert len(named) > 5
    for path in named:
        assert path in routes or path == "/", path
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert wrong.json() == json.loads(shown)
