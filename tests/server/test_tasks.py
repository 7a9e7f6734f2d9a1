"""The task routes give the library's results; health, metrics, docs and the page's files."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import asdict, fields

import numpy as np
from PIL import Image

from glassformer.data.mask_encoding import encode_rle
from glassformer.generation import GenerationConfig
from glassformer.server.explorer import GenerationParameters
from glassformer.server.models import load_models
from tests.server.harness import KINDS, LINES


def test_unknown_keys_get_a_suggestion(server):
    with server.client() as client:
        for route, name, expected in (
            ("/trace", "tag", "to"),
            ("/trace", "targt", "target"),
            ("/translate", "target_lang", "to"),
            ("/v1/completions", "language", "to"),
        ):
            options = {"model": "translator", "text": "a cat", "prompt": "a cat"}
            options.pop("text" if route.startswith("/v1") else "prompt")
            answer = client.post(route, json={**options, name: "de"})
            assert answer.status_code == 422
            assert f"did you mean {expected}?" in answer.json()["error"]["fields"]["problems"][0]


def test_classify_matches_the_library(server, bundles):
    with server.client() as client:
        found = client.post("/classify", json={"texts": LINES[:3], "top": 2}).json()
        expected = bundles["classifier"].classify(LINES[:3], top=2)
        labels = [[(one["label"], one["score"]) for one in row] for row in found["results"]]
        assert labels == [[(one.label, one.score) for one in row] for row in expected]
        buffer = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 255, (30, 20, 3), np.uint8)
        Image.fromarray(noise).save(buffer, "PNG")
        plain = base64.b64encode(buffer.getvalue()).decode()
        for image in (plain, f"data:image/png;base64,{plain}"):
            found = client.post("/classify", json={"images": [image]}).json()
            expected = bundles["pictures"].classify([buffer.getvalue()])
            assert found["model"] == "pictures"
            assert [one["score"] for one in found["results"][0]] == [one.score for one in expected[0]]
        for body in ({"images": ["!"]}, {"images": ["AAAA"]}, {"texts": ["a"], "images": [plain]}, {}):
            assert client.post("/classify", json=body).status_code == 422
        assert client.post("/classify", json={"texts": ["a"], "model": "pictures"}).status_code == 422


def test_pairs_and_entities_match_the_library(server, bundles):
    with server.client() as client:
        body = {"texts": LINES[:2], "text_pairs": LINES[2:4]}
        found = client.post("/classify", json=body).json()["results"]
        expected = bundles["classifier"].classify(LINES[:2], LINES[2:4])
        assert [[one["score"] for one in row] for row in found] == [
            [one.score for one in row] for row in expected
        ]
        assert client.post("/classify", json={**body, "text_pairs": ["a"]}).status_code == 422
        found = client.post("/ner", json={"texts": LINES[:3]}).json()
        assert found["model"] == "tagger"
        expected = [[asdict(one) for one in row] for row in bundles["tagger"].ner(LINES[:3])]
        assert found["results"] == expected and any(expected)
        assert client.post("/ner", json={"texts": ["a"], "model": "classifier"}).status_code == 422


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


def test_segments_match_the_library(server, bundles):
    image = png(30, 20)
    body = {"image": base64.b64encode(image).decode(), "threshold": 0.0}
    with server.client() as client:
        for mode in ("semantic", "instance", "panoptic"):
            found = client.post("/segment", json={**body, "mode": mode}).json()
            expected = bundles["segmenter"].segment(image, mode=mode, threshold=0.0)
            assert found["model"] == "segmenter" and len(found["results"]) == len(expected) > 0
            for row, other in zip(found["results"], expected, strict=True):
                assert (row["label"], row["score"], row["box"]) == (other.label, other.score, list(other.box))
                assert row["mask"]["size"] == [30, 20]
        for wrong in (
            {"mode": "depth"},
            {"threshold": 2},
            {"points": [[1, 2]], "model": "segmenter"},
            {"stuff_classes": ["sky"]},
        ):
            assert client.post("/segment", json={**body, **wrong}).status_code == 422


def test_prompted_masks_match_the_library(server, bundles):
    image = png(30, 20)
    body = {"image": base64.b64encode(image).decode()}
    with server.client() as client:
        for prompt in ({"points": [[5, 9]], "background_points": [[1, 1]]}, {"boxes": [[1, 2, 9, 9]] * 2}):
            found = client.post("/segment", json={**body, **prompt}).json()
            expected = bundles["prompted"].segment(image, **prompt)
            assert found["model"] == "prompted" and len(found["results"]) == len(expected)
            for row, other in zip(found["results"], expected, strict=True):
                assert row["mask"] == encode_rle(other.mask) and row["score"] == other.score
        point = {"points": [[5, 9]]}
        for wrong in (
            {"points": [[99, 2]]},
            {"boxes": [[9, 9, 1, 1]]},
            {"points": [[1, 2, 3]]},
            {**point, "threshold": 0.5},
            {**point, "points_per_side": 4},
        ):
            assert client.post("/segment", json={**body, **wrong}).status_code == 422


def test_forecast_matches_the_library(server, bundles):
    columns = {"a": [math.sin(t) for t in range(40)], "b": [t * 0.5 for t in range(40)]}
    days = [str(np.datetime64("2024-01-30") + t) for t in range(40)]
    expected = bundles["series"].forecast({"ds": days, **columns}, columns=["a", "b"])
    with server.client() as client:
        found = client.post("/forecast", json={"series": {"columns": columns, "timestamps": days}}).json()
        assert found["timestamps"][0] == "2024-03-10"
        for n, name in enumerate("ab"):
            assert found["values"][name] == expected.values[0, :, n].tolist()
        counted = client.post("/forecast", json={"series": {"columns": columns}}).json()
        assert counted["values"] == found["values"] and counted["timestamps"][0] == "40"
        short = client.post("/forecast", json={"series": {"columns": {"a": [1.0], "b": [2.0]}}})
        uneven = client.post("/forecast", json={"series": {"columns": {"a": [1.0] * 40, "b": [2.0]}}})
        assert short.status_code == uneven.status_code == 422


def test_health_metrics_and_docs(server):
    with server.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == list(KINDS)
        assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}
        page, schema = client.get("/docs"), client.get("/openapi.json").json()
        assert all(path in page.text for path in schema["paths"])
        assert not re.findall(r"https?://", page.text) and "<script" not in page.text
        before = server.gauge("tokens_generated_total")
        usage = client.post("/v1/completions", json={"prompt": "a cat", "model": "writer"}).json()["usage"]
        assert server.gauge("tokens_generated_total") - before == usage["completion_tokens"]
        lines = client.get("/metrics").text
        for name in (
            "requests_total",
            "request_seconds_bucket",
            "queue_length",
            "slots_used",
            "memory_bytes",
        ):
            assert f"glassformer_{name}{{" in lines
        assert 'route="/v1/completions"' in lines


def test_errors_carry_code_and_fields(server):
    with server.client() as client:

        def error(path: str, status: int, **body: object) -> dict[str, object]:
            response = client.post(path, json=body)
            assert response.status_code == status, response.text
            return response.json()["error"]

        wrong = client.get("/translate")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["fields"] == {"method": "GET", "allowed": "POST"}
        missing = client.get("/assets/nothing.js")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "route_not_found"
        found = error("/translate", 404, text="a", model="other")
        assert (found["code"], found["param"]) == ("model_not_found", "model")
        assert found["fields"] == {"name": "other", "known": list(KINDS)}
        found = error("/translate", 422, text="a", num_beams=0)
        assert (found["code"], found["param"]) == ("invalid_request", "num_beams")
        found = error("/v1/completions", 422, prompt=[[1, 99999]], model="writer")
        assert (found["code"], found["fields"]["value"]) == ("invalid_value", 99999)
        found = error("/v1/completions", 400, prompt=[1] * 500, model="writer")
        assert (found["code"], found["fields"]) == (
            "context_length_exceeded",
            {"length": 500, "limit": 128, "unit": "tokens", "max_tokens": 0},
        )
        found = error("/embed", 422, texts=["a " * 500], model="encoder")
        assert (found["code"], found["fields"]["unit"]) == ("input_too_long", "tokens")


def test_the_pages_files_have_cache_headers(server):
    with server.client() as client:
        index = client.get("/")
        assert index.status_code == 200 and index.headers["cache-control"] == "no-cache"
        again = client.get("/", headers={"If-None-Match": index.headers["etag"]})
        assert again.status_code == 304 and not again.content
        for name in re.findall(r'(?:src|href)="\.?/?(assets/[^"]+)"', index.text):
            assert "immutable" in client.get(f"/{name}").headers["cache-control"]


def test_models_get_unique_names(tmp_path):
    run, other = tmp_path / "run one", tmp_path / "run two"
    folders = [tmp_path / "a/writer", tmp_path / "b/writer", run / "model", other / "model"]
    for folder in folders:
        folder.mkdir(parents=True)
    for folder in (run, other):
        (folder / "recipe.yaml").write_text("job: lm\n")
    names = [str(folders[0]), str(folders[1]), str(run), str(other / "model")]
    bundles, runs = load_models(names, lambda folder: folder)
    assert list(bundles) == ["writer", "writer-2", "run-one", "run-two"]
    assert bundles["run-one"] == str(run / "model") and runs == {"run-one": run}


def test_generation_parameters_match_the_library():
    known = {field.name for field in fields(GenerationConfig)}
    internal = {"num_return_sequences", "max_length", "min_length", "forced_bos_token_id"}
    internal |= {"forced_eos_token_id", "suppress_tokens", "renormalize_logits", "guidance_scale"}
    assert set(GenerationParameters.model_fields) == known - internal
