"""Requests generated from the OpenAPI document, valid and invalid: never a 5xx."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import product

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from tests.server.harness import KINDS, part

WHOLE = 5000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_generated_requests_never_cause_a_server_error(server, report):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    takes = [one for one in operations if len(one.body) or len(one.query) or len(one.path_parameters)]
    each = math.ceil(1.2 * part(WHOLE) / (len(takes) * len(modes)))  # some operations have fewer cases
    with server.client() as client:
        traced = client.post("/trace", json={"model": "writer", "text": "the cat"}).json()["id"]
    failures: list[str] = []
    tried = 0
    with requests.Session() as session:

        def ask(case: schemathesis.Case) -> None:
            nonlocal tried
            if tried % 2:  # half of them with a known name, so that they get further
                if isinstance(case.body, dict):
                    case.body["model"] = KINDS[tried // 2 % len(KINDS)]
                if isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
                    case.path_parameters["id"] = traced
            try:
                answer = case.call(base_url=server.url, session=session, timeout=60)
            except (requests.exceptions.InvalidHeader, ValueError):
                return  # the client refuses to send it
            tried += 1
            if answer.status_code >= 500 or (answer.status_code >= 400 and not _has_message(answer)):
                failures.append(f"{case.as_curl_command()[:600]} -> {answer.status_code} {answer.text[:200]}")

        for operation, mode in product(operations, modes):
            run = given(operation.as_strategy(generation_mode=mode))(ask)
            run = settings(
                max_examples=each,
                phases=[Phase.generate],
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )(run)
            with suppress(Unsatisfiable):  # a request without parameters cannot be invalid
                seed(3)(run)()
    report("requests from the schema", tried, failures)
    assert tried >= part(WHOLE)
    assert server.alive()


def _has_message(answer: schemathesis.Response) -> bool:
    try:
        return bool(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False
