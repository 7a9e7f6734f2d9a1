"""The explorer's further routes give what the library gives, and a sentence for whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from glassformer.bundle import load, save
from glassformer.interpret.comparison import compare_traces, residual_change
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.logit_lens import logit_lens, unit_tokens
from glassformer.interpret.schema import to_json
from glassformer.interpret.search_view import next_step, search_tree
from glassformer.server.app import create_app
from glassformer.server.security import Address
from tests.interpret.models import TEXT, bundle, given, trace_of

MODELS = ("original", "gpt2", "bert", "vit", "patchtst", "sentence")
ADDRESS, BASE = Address(host="127.0.0.1", port=8000), "http://127.0.0.1:8000"
OFF = [{"kind": "head_off", "attention": "decoder.blocks.1.self_attn", "head": 0}]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    bundles = {name: bundle(name) for name in MODELS}
    with TestClient(create_app(bundles, address=ADDRESS), base_url=BASE) as client:
        yield client


def told(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(client: TestClient, model: str, **words: Any) -> str:
    return str(told(client.post("/trace", json={"model": model, **given(bundle(model)), **words}))["id"])


@pytest.mark.parametrize("model", MODELS)
def test_heads_lens_and_units_of_every_kind(client: TestClient, model: str) -> None:
    id, trace = asked(client, model), trace_of(bundle(model), given(bundle(model)), model=model)
    assert told(client.get(f"/trace/{id}/heads")) == to_json(describe_heads(trace))
    stack = "encoder" if model in ("bert", "vit", "patchtst", "sentence") else "decoder"
    ffn = f"{stack}.blocks.0.ffn"
    unit = told(client.get(f"/trace/{id}/unit", params={"ffn": ffn, "unit": 1, "top": 3}))
    assert unit == to_json(unit_tokens(trace, ffn, 1, 3))
    assert bool(unit["promotes"]) == (model in ("original", "gpt2", "bert"))
    lens = client.get(f"/trace/{id}/lens", params={"position": 1, "top": 2})
    if model in ("patchtst", "sentence"):
        assert lens.status_code == 422 and lens.json()["error"]["code"] == "unsupported"
    else:
        assert told(lens) == to_json(logit_lens(trace, 1, 2))


def test_a_difference_and_its_tensor(client: TestClient) -> None:
    made = bundle("gpt2")
    one, other = asked(client, "gpt2"), asked(client, "gpt2", changes=OFF)
    before, after = (
        trace_of(made, given(made), model="gpt2"),
        trace_of(made, given(made), OFF, model="gpt2"),
    )
    found = told(client.get(f"/trace/{one}/difference/{other}"))
    assert found == to_json(compare_traces(before, after))
    name = found["residual"][0]["name"]
    answer = client.get(f"/trace/{one}/tensor", params={"name": name, "minus": other})
    shape = [int(size) for size in answer.headers["X-Shape"].split(",")]
    table = np.frombuffer(answer.content, "<f4").reshape(shape)
    assert np.array_equal(table, residual_change(before, after, "decoder").numpy()) and table.any()


@pytest.mark.parametrize("model", ["original", "gpt2"])
def test_steps_and_searches(client: TestClient, model: str) -> None:
    made = bundle(model)
    step = told(client.post("/trace/step", json={"model": model, "text": TEXT, "written": [5, 6]}))
    assert step == to_json(next_step(made, text=TEXT, written=[5, 6]))
    asking: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 4, "length_penalty": 0.6}
    found = told(client.post("/trace/search", json={"model": model, "text": TEXT, **asking}))
    assert found == to_json(search_tree(made, text=TEXT, **asking))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/trace/none/heads", 404),
        ("/trace/none/lens", 404),
        ("/trace/{id}/difference/none", 404),
        ("/runs/none", 404),
        ("/runs/none/film", 404),
        ("/trace/{id}/lens?position=10000", 422),
        ("/trace/{id}/lens?position=-1", 422),
        ("/trace/{id}/lens?top=0", 422),
        ("/trace/{id}/unit?ffn=decoder.blocks.0.ffn&unit=99999999", 422),
        ("/trace/{id}/unit?ffn=__class__&unit=0", 404),
        ("/trace/{id}/unit?ffn=&unit=0", 404),
        ("/trace/{id}/unit?unit=0", 422),
    ],
)
def test_what_is_wrong_is_a_sentence(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path.format(id=asked(client, "gpt2")))
    assert answer.status_code == status and len(answer.json()["error"]["message"]) > 10


@pytest.mark.parametrize(
    "body",
    [
        {"text": TEXT},
        {"model": "none", "text": TEXT},
        {"model": "vit", "text": TEXT},
        {"model": "bert", "text": TEXT},
        {"model": "gpt2", "text": TEXT, "written": [-1]},
        {"model": "gpt2", "text": TEXT, "written": [10**8]},
        {"model": "gpt2", "text": TEXT, "writen": []},
        {"model": "gpt2", "text": TEXT, "num_beams": 10**6},
        {"model": "original", "text": ""},
        {"model": "original", "text": TEXT, "to": "xx"},
    ],
)
def test_bodies_that_cannot_be_are_sentences(client: TestClient, body: dict[str, Any]) -> None:
    for path in ("/trace/step", "/trace/search"):
        answer = client.post(path, json=body)
        assert answer.status_code in (404, 422), answer.text
        assert len(answer.json()["error"]["message"]) > 10


def test_numbers_that_are_none_are_null_and_no_failure() -> None:
    made = bundle("gpt2")
    with torch.no_grad():
        made.model.head.weight[3] = torch.nan
    with TestClient(create_app({"gpt2": made}, address=ADDRESS), base_url=BASE) as client:
        id = asked(client, "gpt2")
        told(client.get(f"/trace/{id}/heads"))
        assert None in [word["logit"] for word in told(client.get(f"/trace/{id}/next"))["words"]]
        assert told(client.get(f"/trace/{id}/lens"))["layers"][0]["entropy"] is None
        assert told(client.get(f"/trace/{id}/difference/{id}"))["kl"] is None
        told(client.get(f"/trace/{id}/unit", params={"ffn": "decoder.blocks.0.ffn", "unit": 1}))
        assert told(client.post("/trace/step", json={"model": "gpt2", "text": "a"}))["logsumexp"] is None


def test_no_sentence_tells_where_a_model_lies(tmp_path: Path) -> None:
    place = save(bundle("gpt2"), tmp_path / "mine")
    with TestClient(create_app({"mine": load(place)}, address=ADDRESS), base_url=BASE) as client:
        asked = (("/trace", {}), ("/trace", {"text": "a" * 9000}), ("/classify", {"texts": ["a"]}))
        for route, words in asked:
            answer = client.post(route, json={"model": "mine", **words})
            message = answer.json()["error"]["message"]
            assert answer.status_code == 422 and str(tmp_path) not in message
