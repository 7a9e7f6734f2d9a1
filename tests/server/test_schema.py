"""Requests generated from the OpenAPI document, valid and invalid: never a 5xx."""

from __future__ import annotations

import json
import math
import re
import runpy
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from pydantic import TypeAdapter
from schemathesis.generation import GenerationMode

from glassformer.interpret import schema
from glassformer.server.explorer import ModelsResponse
from tests.faults.scale import trials
from tests.server.harness import KINDS

ALL_REQUESTS = 5000
WITHOUT_VIEWS = ("segmenter",)  # the explorer does not list it


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_generated_requests_never_cause_a_server_error(server, report):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    with_parameters = [o for o in operations if len(o.body) or len(o.query) or len(o.path_parameters)]
    total = 1.2 * trials(ALL_REQUESTS)  # some operations have fewer cases
    max_examples = math.ceil(total / (len(with_parameters) * len(modes)))
    with server.client() as client:
        trace_id = client.post("/trace", json={"model": "writer", "text": "the cat"}).json()["id"]
    failures: list[str] = []
    tried = 0
    with requests.Session() as session:

        def send(case: schemathesis.Case) -> None:
            nonlocal tried
            if tried % 2:  # half of them with a known name, so that they get further
                if isinstance(case.body, dict):
                    case.body["model"] = KINDS[tried // 2 % len(KINDS)]
                if isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
                    case.path_parameters["id"] = trace_id
            try:
                response = case.call(base_url=server.url, session=session, timeout=60)
            except (requests.exceptions.InvalidHeader, ValueError):
                return  # the client refuses to send it
            tried += 1
            if response.status_code >= 500 or (response.status_code >= 400 and not _has_message(response)):
                failures.append(
                    f"{case.as_curl_command()[:600]} -> {response.status_code} {response.text[:200]}"
                )

        for operation, mode in product(operations, modes):
            run = given(operation.as_strategy(generation_mode=mode))(send)
            run = settings(
                max_examples=max_examples,
                phases=[Phase.generate],
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )(run)
            with suppress(Unsatisfiable):  # a request without parameters cannot be invalid
                seed(3)(run)()
    report("requests from the schema", tried, failures)
    assert tried >= trials(ALL_REQUESTS)
    assert server.alive()


def _has_message(response: schemathesis.Response) -> bool:
    try:
        return bool(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False


PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")


def test_routes_and_error_shape(server):
    with server.client() as client:
        routes = client.get("/openapi.json").json()["paths"]
        wrong = client.post("/translate", json={"text": "a", "temprature": 1})
    named = re.findall(r"`(?:GET|POST) (/[\w/]*)`", PAGE)
    assert len(named) > 5
    for path in named:
        assert path in routes or path == "/", path
    blocks = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert wrong.json() in [json.loads(block) for block in blocks if '"error"' in block]


SCRIPT = Path(__file__).parents[2] / "web" / "scripts" / "generate_types.py"


def test_the_generated_types_are_current():
    script = runpy.run_path(str(SCRIPT))
    assert script["generate"]() == script["TARGET"].read_text(encoding="utf-8"), f"run python {SCRIPT}"


@pytest.mark.parametrize("model", [kind for kind in KINDS if kind not in WITHOUT_VIEWS])
def test_responses_match_their_schema(server, model):
    with server.client() as client:

        def check(kind: type, method: str, path: str, **options: object) -> dict[str, object]:
            response = client.request(method, path, **options)
            assert response.status_code == 200, response.text
            TypeAdapter(kind).validate_python(response.json(), extra="forbid")
            return response.json()

        models = check(ModelsResponse, "GET", "/models")["models"]
        assert [one["id"] for one in models] == [kind for kind in KINDS if kind not in WITHOUT_VIEWS]
        (info,) = [one for one in models if one["id"] == model]
        trace = check(schema.TraceInfo, "POST", "/trace", json={"model": model, **info["example"]})
        id = trace["id"]
        check(schema.TraceInfo, "GET", f"/trace/{id}")
        check(schema.HeadsInfo, "GET", f"/trace/{id}/heads")
        check(schema.DifferenceInfo, "GET", f"/trace/{id}/difference/{id}")
        if trace["kind"] in ("translate", "generate"):
            check(schema.LensInfo, "GET", f"/trace/{id}/logit_lens")
            check(schema.NextTokenInfo, "GET", f"/trace/{id}/next")
            body = {"model": model, "text": "a cat", "to": info["example"].get("to")}
            check(schema.StepInfo, "POST", "/trace/step", json=body)
            check(schema.SearchInfo, "POST", "/trace/search", json={**body, "num_beams": 2})
        elif trace["kind"] != "segment":  # whose traces have no interventions
            attention = trace["attentions"][0]["name"]
            change = {"kind": "ablate_head", "attention": attention, "head": 0}
            changed = {"model": model, **info["example"], "interventions": [change]}
            assert check(schema.TraceInfo, "POST", "/trace", json=changed)["interventions"] == [change]
