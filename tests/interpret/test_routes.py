"""The explorer's routes: the library's own numbers, and an error with the right status for bad requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from starlette.testclient import TestClient

from glassformer.bundle import Bundle, load, save
from glassformer.interpret.catalog import Catalog
from glassformer.interpret.comparison import compare_traces, residual_change
from glassformer.interpret.corpus import CorpusPatterns
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.head_patterns import describe_heads, rank_links
from glassformer.interpret.logit_attribution import attribute_logit
from glassformer.interpret.logit_lens import logit_lens, unit_tokens
from glassformer.interpret.occlusion import occlude
from glassformer.interpret.patching import compare_answers
from glassformer.interpret.schema import CorpusInfo, TraceInput, to_json
from glassformer.interpret.search_view import next_step, search_tree
from glassformer.interpret.similarity import compare_images_texts
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.token_flow import token_flow
from glassformer.interpret.trace import trace_model
from glassformer.server.app import create_app
from glassformer.server.explorer import trace_router
from tests.interpret.models import TEXT, columns, example_values, picture, tiny_bundle, trace_of, url

MODELS = ("original", "gpt2", "bert", "vit", "patchtst", "sentence")
CHANGES = [
    {"kind": "ablate_head", "attention": "decoder.blocks.1.cross_attn", "head": 2},
    {"kind": "skip_layer", "block": "encoder.blocks.0"},
    {"kind": "mask_token", "sequence": "source", "position": 1},
    {"kind": "swap_tokens", "sequence": "source", "positions": [0, 2]},
    {"kind": "scale_residual", "name": "encoder.blocks.1.resid_out", "position": 0, "scale": 0.5},
    {"kind": "scale_positions", "stack": "encoder", "scale": 2.0},
]


def client_of(bundles: dict[str, Bundle]) -> TestClient:
    return TestClient(create_app(bundles), base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of({name: tiny_bundle(name) for name in MODELS}) as client:
        yield client


def checked(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def posted(client: TestClient, model: str, **body: Any) -> dict[str, Any]:
    result: dict[str, Any] = checked(client.post("/trace", json={"model": model, **body}))
    return result


def numbers(client: TestClient, id: str, name: str, **query: Any) -> np.ndarray:
    response = client.get(f"/trace/{id}/tensor", params={"name": name, **query})
    assert response.status_code == 200, response.text
    shape = [int(size) for size in response.headers["X-Shape"].split(",") if size]
    dtype = np.dtype(response.headers["X-Dtype"]).newbyteorder("<")
    return np.frombuffer(response.content, dtype).reshape(shape)


@pytest.mark.parametrize("model", MODELS)
def test_routes_return_the_traces_of_the_library(client: TestClient, model: str) -> None:
    bundle = tiny_bundle(model)
    info, trace = (
        posted(client, model, **example_values(bundle)),
        trace_of(bundle, example_values(bundle), model=model),
    )
    id = info["id"]
    assert {**info, "forward_seconds": 0} == {**to_json(trace.info()), "forward_seconds": 0}
    assert checked(client.get(f"/trace/{id}")) == info
    for stage in info["stages"]:
        for name in stage["tensors"].values():
            assert np.array_equal(numbers(client, id, name), read_tensor(trace, name).values.numpy())
    attention = info["attentions"][0]["name"]
    result = numbers(client, id, f"{attention}.weights", slice="0,1")
    assert np.array_equal(result, read_tensor(trace, f"{attention}.weights", "0,1").values.numpy())
    assert checked(client.get(f"/trace/{id}/heads")) == to_json(describe_heads(trace))
    ffn = f"{'decoder' if model in ('original', 'gpt2') else 'encoder'}.blocks.0.ffn"
    unit = checked(client.get(f"/trace/{id}/unit", params={"ffn": ffn, "unit": 1, "top": 3}))
    assert unit == to_json(unit_tokens(trace, ffn, 1, 3))
    assert bool(unit["promotes"]) == (model in ("original", "gpt2", "bert"))
    assert checked(client.get(f"/trace/{id}/flow")) == to_json(token_flow(trace))
    asked = {"sequence": trace.sequences[0].name, "position": 2}
    assert checked(client.get(f"/trace/{id}/flow", params=asked)) == to_json(
        token_flow(trace, *asked.values())
    )
    lens = client.get(f"/trace/{id}/logit_lens", params={"position": 1, "top": 2})
    if model in ("patchtst", "sentence"):
        assert lens.status_code == 422 and lens.json()["error"]["code"] == "unsupported"
    else:
        assert checked(lens) == to_json(logit_lens(trace, 1, 2))


def test_models_are_listed_with_valid_examples(client: TestClient) -> None:
    result = checked(client.get("/models"))
    assert [one["id"] for one in result["models"]] == list(MODELS)
    assert [run["example"] for run in result["runs"]] == [True]
    for one in result["models"]:
        assert posted(client, one["id"], **one["example"])["kind"] == one["kind"]


def test_interventions_and_differences_over_http(client: TestClient) -> None:
    body, bundle = {"text": TEXT, "target": [5, 6, 7]}, tiny_bundle("original")
    before = posted(client, "original", **body)
    for change in CHANGES:
        after = posted(client, "original", **body, interventions=[change])
        assert after["interventions"] == [change] and after["id"] != before["id"]
        result = numbers(client, after["id"], "head.logits", minus=before["id"])
        mine, theirs = (numbers(client, one["id"], "head.logits") for one in (after, before))
        assert result.any() and np.array_equal(result, mine - theirs)
    all_changes = posted(client, "original", **body, interventions=CHANGES[1:2])
    difference = checked(client.get(f"/trace/{before['id']}/difference/{all_changes['id']}"))
    one, other = (trace_of(bundle, body, changes, model="original") for changes in ((), CHANGES[1:2]))
    assert difference == to_json(compare_traces(one, other))
    for residual in difference["residual"]:
        table = numbers(client, before["id"], residual["name"], minus=all_changes["id"])
        assert table.any() and np.array_equal(table, residual_change(one, other, residual["stack"]).numpy())


def test_explanations_over_http(client: TestClient) -> None:
    body, bundle = {"text": TEXT, "target": [5, 6, 7]}, tiny_bundle("original")
    id, trace = posted(client, "original", **body)["id"], trace_of(bundle, body, model="original")
    other = posted(client, "original", **{**body, "text": "where is the dog?"})["id"]
    name = "decoder.blocks.1.cross_attn"
    query = {"mode": "mean", "metric": "log_prob", "at": 1, "position": 2, "token": 5, "reference": other}
    ablation = checked(client.get(f"/trace/{id}/ablation", params={"attention": name, **query}))
    second = trace_of(bundle, {**body, "text": "where is the dog?"}, model="original")
    options: dict[str, Any] = {"mode": "mean", "metric": "log_prob", "at": 1, "position": 2, "id": 5}
    expected = to_json(
        ablate_heads(replace(trace), name, reference=replace(second, bundle=trace.bundle), **options)
    )
    assert ablation == expected
    params: dict[str, Any] = {"queries": "target", "query": 1, "keys": "source", "key": 2}
    assert checked(client.get(f"/trace/{id}/links", params=params)) == to_json(
        rank_links(trace, *params.values())
    )
    attribution = checked(client.get(f"/trace/{id}/logit_attribution", params={"position": 1, "against": 7}))
    assert attribution == to_json(attribute_logit(trace, 1, against=7))
    drops = numbers(client, id, "occlusion.target.mask")
    assert np.allclose(drops, occlude(trace, "target", hide="mask").numpy(), atol=1e-6)


def test_derived_tensors_count_towards_the_store() -> None:
    catalog, app = Catalog({"gpt2": tiny_bundle("gpt2")}), FastAPI()
    app.include_router(trace_router(catalog))
    client = TestClient(app)
    id = posted(client, "gpt2", text=TEXT)["id"]
    before = catalog.store.bytes
    assert numbers(client, id, "occlusion").nbytes <= catalog.store.bytes - before
    assert catalog.store.bytes == catalog.store.get(id).bytes


def test_patching_and_corpus_over_http() -> None:
    bundle = tiny_bundle("gpt2")
    with client_of({"gpt2": bundle}) as client:
        ids = {}
        for text in ("aaaa", "bbbb", "cccc", "dddd", "eeee"):
            info = posted(client, "gpt2", text=text)
            best = checked(client.get(f"/trace/{info['id']}/next", params={"top": 1}))
            ids[best["predictions"][0]["id"]] = info["id"]
        clean, corrupted = list(ids.values())[:2]
        setup = checked(client.get(f"/trace/{clean}/patching/{corrupted}"))
        inputs = [checked(client.get(f"/trace/{one}"))["input"] for one in (clean, corrupted)]
        patching = compare_answers(*(trace_model(bundle, TraceInput(**one)) for one in inputs))
        assert setup == {**to_json(patching.setup()), "clean": clean, "corrupted": corrupted}
        site = setup["sites"][1]
        patched = checked(client.get(f"/trace/{clean}/patching/{corrupted}/site", params={"name": site}))
        assert patched == to_json(patching.patch(site))
        assert client.get(f"/trace/{clean}/patching/{clean}").status_code == 422
        source = {"text": "aaaa"}
        change = {"kind": "patch", "name": site, "source": source, "head": None, "position": 1}
        assert (
            posted(client, "gpt2", text="bbbb", interventions=[change])["interventions"][0]["position"] == 1
        )
        corpus = checked(client.get("/models/gpt2/corpus", params={"count": 1}))
        assert corpus == to_json(CorpusPatterns(bundle).measure(1))


def test_a_second_corpus_request_does_not_wait_and_counts_as_work(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles, codes = {name: tiny_bundle(name) for name in ("gpt2", "bert")}, list[int]()
    with client_of(bundles) as client:
        state: Any = client.app.state.server  # type: ignore[attr-defined]

        def measure(patterns: CorpusPatterns, count: int) -> CorpusInfo:
            if patterns.bundle is bundles["gpt2"]:
                assert state.active == 1
                codes.extend(
                    client.get(path).status_code
                    for path in ("/models/gpt2/corpus?count=1", "/models/bert/corpus?count=1", "/models")
                )
            return CorpusInfo(count=count, total=1, attentions=())

        monkeypatch.setattr(CorpusPatterns, "measure", measure)
        checked(client.get("/models/gpt2/corpus?count=1"))
        assert codes == [503, 200, 200] and state.active == 0


@pytest.mark.parametrize("model", ["original", "gpt2"])
def test_steps_and_searches_over_http(client: TestClient, model: str) -> None:
    bundle = tiny_bundle(model)
    step = checked(client.post("/trace/step", json={"model": model, "text": TEXT, "generated_ids": [5, 6]}))
    assert step == to_json(next_step(bundle, text=TEXT, generated_ids=[5, 6]))
    options: dict[str, Any] = {"num_beams": 2, "max_new_tokens": 4, "length_penalty": 0.6}
    result = checked(client.post("/trace/search", json={"model": model, "text": TEXT, **options}))
    assert result == to_json(search_tree(bundle, text=TEXT, **options))
    sentences = checked(client.post("/trace/sentences", json={"model": model, "text": "a cat"}))
    assert sentences == {"sentences": ["a cat"]}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/trace/none", 404),
        ("/trace/none/tensor?name=embed.out", 404),
        ("/trace/none/logit_lens", 404),
        ("/trace/{id}/difference/none", 404),
        ("/runs/none/snapshots", 404),
        ("/trace/{id}/logit_lens?position=10000", 422),
        ("/trace/{id}/logit_lens?top=0", 422),
        ("/trace/{id}/unit?ffn=decoder.blocks.0.ffn&unit=99999999", 422),
        ("/trace/{id}/unit?ffn=__class__&unit=0", 404),
        ("/trace/{id}/unit?ffn=&unit=0", 404),
        ("/trace/{id}/tensor", 422),
        ("/trace/{id}/tensor?name=embed.outer", 404),
        ("/trace/{id}/tensor?name=embed.out&minus=none", 404),
        ("/trace/{id}/tensor?name=embed.out&minus={other}", 422),
        ("/trace/{id}/tensor?name=embed.out&slice=0,99", 422),
        ("/trace/{id}/tensor?name=embed.out&slice=x", 422),
        ("/trace/{id}/tensor?name=embed.out&pool=0", 422),
    ],
)
def test_invalid_queries_are_rejected(client: TestClient, path: str, status: int) -> None:
    id, other = (posted(client, "gpt2", text=text)["id"] for text in ("the sea", "the sea and more"))
    response = client.get(path.format(id=id, other=other))
    assert response.status_code == status and response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "status", "body"),
    [
        ("/trace", 404, {"model": "none", "text": "a"}),
        ("/trace", 422, {"model": "gpt2"}),
        ("/trace", 422, {"model": "gpt2", "text": 5}),
        ("/trace", 422, {"model": "gpt2", "text": "a", "target": [-1]}),
        ("/trace", 422, {"model": "gpt2", "text": "a", "target": [10**6]}),
        ("/trace", 422, {"model": "gpt2", "text": "a", "interventions": [{"kind": "x"}]}),
        ("/trace", 422, {"model": "gpt2", "text": "a", "interventions": [{**CHANGES[1], "more": 1}]}),
        ("/trace", 422, {"model": "gpt2", "text": "the sea " * 99}),
        ("/trace", 422, {"model": "vit", "image": url(picture()[:60])}),
        ("/trace", 422, {"model": "patchtst", "series": {"columns": {"load": [1]}}}),
        ("/trace", 422, {"model": "patchtst", "series": {"columns": columns(), "holdout": -1}}),
        ("/trace/step", 422, {"text": TEXT}),
        ("/trace/step", 404, {"model": "none", "text": TEXT}),
        ("/trace/step", 422, {"model": "vit", "text": TEXT}),
        ("/trace/step", 422, {"model": "gpt2", "text": TEXT, "generated_ids": [10**8]}),
        ("/trace/step", 422, {"model": "gpt2", "text": TEXT, "writen": []}),
        ("/trace/search", 422, {"model": "bert", "text": TEXT}),
        ("/trace/search", 422, {"model": "gpt2", "text": TEXT, "num_beams": 10**6}),
        ("/trace/search", 422, {"model": "original", "text": ""}),
        ("/trace/search", 422, {"model": "original", "text": TEXT, "to": "xx"}),
    ],
)
def test_invalid_bodies_are_rejected(
    client: TestClient, route: str, status: int, body: dict[str, Any]
) -> None:
    response = client.post(route, json=body)
    assert response.status_code == status and response.json()["error"]["message"]


def test_nan_is_sent_as_null() -> None:
    bundle = tiny_bundle("gpt2")
    with torch.no_grad():
        bundle.model.head.weight[3] = torch.nan
    with client_of({"gpt2": bundle}) as client:
        id = posted(client, "gpt2", text="a")["id"]
        checked(client.get(f"/trace/{id}/heads"))
        assert None in [word["logit"] for word in checked(client.get(f"/trace/{id}/next"))["predictions"]]
        assert checked(client.get(f"/trace/{id}/logit_lens"))["layers"][0]["entropy"] is None
        assert checked(client.get(f"/trace/{id}/difference/{id}"))["kl"] is None


def test_errors_do_not_reveal_paths(tmp_path: Path) -> None:
    with client_of({"mine": load(save(tiny_bundle("gpt2"), tmp_path / "mine"))}) as client:
        for route, body in (
            ("/trace", {}),
            ("/trace", {"text": "a" * 9000}),
            ("/classify", {"texts": ["a"]}),
        ):
            response = client.post(route, json={"model": "mine", **body})
            assert response.status_code == 422 and str(tmp_path) not in response.text


def test_images_are_compared_with_texts() -> None:
    bundle, images = tiny_bundle("clip"), [url(picture()), url(picture((9, 30)))]
    body = {"model": "clip", "images": images, "texts": ["the cat", "a dog ran", "the mat"]}
    with client_of({"clip": bundle, "gpt2": tiny_bundle("gpt2")}) as client:
        info = checked(client.post("/trace/similarity", json=body))
        assert info == to_json(compare_images_texts(bundle, images, body["texts"]))
        wrong: list[dict[str, Any]] = [{"model": "gpt2"}, {"texts": []}, {"images": ["no image"]}]
        for change in wrong:
            response = client.post("/trace/similarity", json=body | change)
            assert response.status_code == 422 and response.json()["error"]["message"], change
