"""The explorer's routes: the library's own numbers as raw bytes, and a sentence for whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassformer.interpret.schema import to_json
from glassformer.interpret.tensors import read_tensor
from glassformer.server.app import create_app
from glassformer.server.security import Address
from tests.interpret.models import TEXT, bundle, columns, given, picture, trace_of, url

CHANGES = [
    {"kind": "head_off", "attention": "decoder.blocks.1.cross_attn", "head": 2},
    {"kind": "layer_off", "block": "encoder.blocks.0"},
    {"kind": "mask_token", "sequence": "source", "position": 1},
    {"kind": "swap", "sequence": "source", "positions": [0, 2]},
    {"kind": "residual", "name": "encoder.blocks.1.resid_out", "position": 0, "scale": 0.5},
    {"kind": "positions", "stack": "encoder", "stretch": 2.0},
]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    bundles = {name: bundle(name) for name in ("original", "gpt2", "bert", "vit", "patchtst", "sentence")}
    made = create_app(bundles, address=Address(host="127.0.0.1", port=8000))
    with TestClient(made, base_url="http://127.0.0.1:8000") as client:  # type: ignore[arg-type]
        yield client


def asked(client: TestClient, model: str, **words: Any) -> dict[str, Any]:
    answer = client.post("/trace", json={"model": model, **words})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def numbers(client: TestClient, id: str, name: str, **query: Any) -> np.ndarray:
    answer = client.get(f"/trace/{id}/tensor", params={"name": name, **query})
    assert answer.status_code == 200, answer.text
    shape = [int(size) for size in answer.headers["X-Shape"].split(",") if size]
    return np.frombuffer(answer.content, np.dtype(answer.headers["X-Dtype"]).newbyteorder("<")).reshape(shape)


@pytest.mark.parametrize("model", ["original", "gpt2", "bert", "vit", "patchtst", "sentence"])
def test_every_kind_is_traced_and_its_tensors_are_the_librarys(client: TestClient, model: str) -> None:
    made = bundle(model)
    info = asked(client, model, **given(made))
    trace = trace_of(made, given(made), model=model)
    mine = to_json(trace.info())
    assert {**info, "seconds": 0} == {**mine, "seconds": 0}
    assert client.get(f"/trace/{info['id']}").json() == info
    for station in info["stations"]:
        for name in station["tensors"].values():
            assert np.array_equal(numbers(client, info["id"], name), read_tensor(trace, name).values.numpy())
    attention = info["attentions"][0]["name"]
    found = numbers(client, info["id"], f"{attention}.weights", slice="0,1")
    assert np.array_equal(found, read_tensor(trace, f"{attention}.weights", "0,1").values.numpy())
    assert np.allclose(found.sum(-1), 1, atol=1e-5)


def test_models_are_listed_with_inputs_that_can_be_sent(client: TestClient) -> None:
    told = client.get("/models").json()
    assert [one["id"] for one in told["models"]] == [
        "original",
        "gpt2",
        "bert",
        "vit",
        "patchtst",
        "sentence",
    ]
    assert told["runs"] == []
    for one in told["models"]:
        assert asked(client, one["id"], **one["example"])["kind"] == one["kind"]


def test_changed_traces_are_compared(client: TestClient) -> None:
    before = asked(client, "original", text=TEXT, target=[5, 6, 7])
    for change in CHANGES:
        after = asked(client, "original", text=TEXT, target=[5, 6, 7], changes=[change])
        assert after["changes"] == [change] and after["id"] != before["id"]
        found = numbers(client, after["id"], "head.logits", minus=before["id"])
        mine, theirs = (numbers(client, one["id"], "head.logits") for one in (after, before))
        assert found.any() and np.array_equal(found, mine - theirs)
    assert asked(client, "original", text=TEXT, target=[5, 6, 7], changes=CHANGES)["changes"] == CHANGES


def test_what_is_wrong_is_told_with_the_right_status(client: TestClient) -> None:
    id = asked(client, "gpt2", text="the sea")["id"]
    other = asked(client, "gpt2", text="the sea and more")["id"]
    tensor = f"/trace/{id}/tensor"
    cases = [
        (404, client.get("/trace/none")),
        (404, client.get("/trace/none/tensor?name=embed.out")),
        (404, client.get(tensor, params={"name": "embed.outer"})),
        (404, client.get(tensor, params={"name": "embed.out", "minus": "none"})),
        (422, client.get(tensor)),
        (422, client.get(tensor, params={"name": "embed.out", "slice": "0,99"})),
        (422, client.get(tensor, params={"name": "embed.out", "slice": "x"})),
        (422, client.get(tensor, params={"name": "embed.out", "pool": "0"})),
        (422, client.get(tensor, params={"name": "embed.out", "minus": other})),
        (404, client.post("/trace", json={"model": "none", "text": "a"})),
        (422, client.post("/trace", json={"model": "gpt2"})),
        (422, client.post("/trace", json={"model": "gpt2", "text": 5})),
        (422, client.post("/trace", json={"model": "gpt2", "text": "a", "target": [-1]})),
        (422, client.post("/trace", json={"model": "gpt2", "text": "a", "target": [10**6]})),
        (422, client.post("/trace", json={"model": "gpt2", "text": "a", "changes": [{"kind": "x"}]})),
        (422, client.post("/trace", json={"model": "gpt2", "text": "the sea " * 99})),
        (422, client.post("/trace", json={"model": "vit", "image": url(picture()[:60])})),
        (422, client.post("/trace", json={"model": "patchtst", "series": {"columns": {"load": [1]}}})),
        (
            422,
            client.post("/trace", json={"model": "patchtst", "series": {"columns": columns(), "truth": -1}}),
        ),
    ]
    for status, answer in cases:
        assert answer.status_code == status, (answer.url, answer.text)
        message = answer.json()["error"]["message"]
        assert len(message.split()) > 2 and "Traceback" not in message
