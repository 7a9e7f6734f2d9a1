"""The page's TypeScript types are those of the server, and the explorer's responses match their schema."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from glassformer.interpret import schema
from glassformer.server.explorer import ModelsResponse
from tests.server.harness import KINDS

SCRIPT = Path(__file__).parents[2] / "web" / "scripts" / "generate_types.py"


def test_the_generated_types_are_current():
    script = runpy.run_path(str(SCRIPT))
    assert script["generate"]() == script["TARGET"].read_text(encoding="utf-8"), f"run python {SCRIPT}"


@pytest.mark.parametrize("model", KINDS)
def test_responses_match_their_schema(server, model):
    with server.client() as client:

        def check(kind: type, method: str, path: str, **options: object) -> dict[str, object]:
            response = client.request(method, path, **options)
            assert response.status_code == 200, response.text
            TypeAdapter(kind).validate_python(response.json(), extra="forbid")
            return response.json()

        models = check(ModelsResponse, "GET", "/models")["models"]
        (info,) = [one for one in models if one["id"] == model]
        trace = check(schema.TraceInfo, "POST", "/trace", json={"model": model, **info["example"]})
        id = trace["id"]
        check(schema.TraceInfo, "GET", f"/trace/{id}")
        check(schema.HeadsInfo, "GET", f"/trace/{id}/heads")
        check(schema.DifferenceInfo, "GET", f"/trace/{id}/difference/{id}")
        if trace["kind"] in ("translate", "generate"):
            check(schema.LensInfo, "GET", f"/trace/{id}/lens")
            check(schema.NextInfo, "GET", f"/trace/{id}/next")
            body = {"model": model, "text": "a cat", "to": info["example"].get("to")}
            check(schema.StepInfo, "POST", "/trace/step", json=body)
            check(schema.SearchInfo, "POST", "/trace/search", json={**body, "num_beams": 2})
        else:
            attention = trace["attentions"][0]["name"]
            change = {"kind": "head_off", "attention": attention, "head": 0}
            changed = {"model": model, **info["example"], "changes": [change]}
            assert check(schema.TraceInfo, "POST", "/trace", json=changed)["changes"] == [change]
