"""The routes /classify, /embed and /similar with an image and a text tower give the library's results."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

import glassformer
from glassformer.server.app import create_app
from tests.tasks.test_image_text import save_clip

LABELS = ["cat", "dog"]
CANDIDATES = {"/similar": {"candidate_texts": LABELS}}


def pictures() -> list[bytes]:
    files, rng = [], np.random.default_rng(0)
    for size in ((30, 40), (16, 16)):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    return files


def test_routes_match_the_library(tmp_path: Path) -> None:
    save_clip(tmp_path / "clip")
    pipeline, files = glassformer.load(tmp_path / "clip"), pictures()
    app = create_app({"clip": pipeline})
    images = [base64.b64encode(file).decode() for file in files]
    texts = ["a cat", "the big red house.png"]  # a text is never opened as a file
    with TestClient(app, base_url="http://localhost") as client:
        for options in ({}, {"template": "the {}"}, {"template": ["a {}", "{}!"]}):
            body = {"images": images, "labels": LABELS, "top": 1, **options}
            found = client.post("/classify", json=body).json()
            expected = pipeline.classify(files, labels=LABELS, top=1, **options)
            assert [row[0]["label"] for row in found["results"]] == [row[0].label for row in expected]
            assert found["results"][0][0]["score"] == pytest.approx(expected[0][0].score, abs=1e-5)

        vectors = torch.tensor(client.post("/embed", json={"images": images}).json()["vectors"])
        assert (vectors - pipeline.embed(files)).abs().max() < 1e-5
        of_texts = torch.tensor(client.post("/embed", json={"texts": texts}).json()["vectors"])
        openai = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
        assert (of_texts - torch.tensor([row["embedding"] for row in openai])).abs().max() < 1e-5

        body = {"texts": texts, "candidate_images": images}
        ranked = client.post("/similar", json=body).json()["results"]
        assert [[m["index"] for m in row] for row in ranked] == (of_texts @ vectors.T).argsort(
            descending=True
        ).tolist()
        for bad in ({"images": images}, {"texts": texts, "labels": LABELS}):
            assert client.post("/classify", json=bad).status_code == 422
        assert client.post("/similar", json={"texts": texts}).status_code == 422
        blank = client.post("/classify", json={"images": images, "labels": ["cat", " "]})
        assert blank.status_code == 422 and blank.json()["error"]["param"] == "labels"
        second = client.post("/embed", json={"images": [images[0], "?"]}).json()["error"]
        assert second["message"].startswith("image 2: ") and second["fields"]["number"] == 2
        noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1800, 1800, 3), np.uint8))
        file = io.BytesIO()
        noise.save(file, "PNG")
        large = base64.b64encode(file.getvalue()).decode()  # more than a body of texts may have
        assert len(large) > 8 << 20
        for route in ("/embed", "/similar"):
            response = client.post(route, json={"images": [large], **CANDIDATES.get(route, {})})
            assert response.status_code == 200, response.text


def test_mixed_requests_choose_a_model_with_two_towers(tmp_path: Path) -> None:
    save_clip(tmp_path / "clip")
    image = base64.b64encode(pictures()[0]).decode()
    names = {"pocket-digits": "pocket-digits", "pocket-sam": "pocket-sam", "clip": tmp_path / "clip"}
    app = create_app({name: glassformer.load(path) for name, path in names.items()})
    with TestClient(app, base_url="http://localhost") as client:
        assert client.post("/embed", json={"images": [image]}).json()["model"] == "pocket-digits"
        for body in (
            {"images": [image], **CANDIDATES["/similar"]},
            {"texts": ["a"], "candidate_images": [image]},
        ):
            assert client.post("/similar", json=body).json()["model"] == "clip"
        for route in ("/embed", "/classify"):
            error = client.post(route, json={"images": [image], "model": "pocket-sam"}).json()["error"]
            assert error["code"] == "unsupported" and "images" not in error["message"]
        texts = client.post("/embed", json={"texts": ["a"], "model": "pocket-digits"})
        assert texts.status_code == 422 and "it reads images" in texts.json()["error"]["message"]
