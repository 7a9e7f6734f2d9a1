"""Captions of images, compared with transformers' processor, generation and tokenizer."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fastapi.testclient import TestClient
from PIL import Image

import glassformer
from glassformer.data.image_files import load_image
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.generation.continuous import Scheduler
from glassformer.server.app import create_app
from glassformer.tasks import Captioner, RejectedInputError
from tests.tasks.folders import blip, captioner

BEAMS = {"num_beams": 3, "num_return_sequences": 2}
LIMIT = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, our pipeline of its folder, and the folder."""
    model, folder = captioner(tmp_path_factory.mktemp("captioner"))
    return model, glassformer.load(folder), folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, size in (("a.png", (40, 30, 3)), ("b.png", (17, 51, 3)), ("c.png", (23, 9))):
        Image.fromarray(rng.integers(0, 255, size, np.uint8)).save(folder / name)
    return sorted(folder.iterdir())


def their_captions(pair: Any, image: Path, prompt: str = "", **options: Any) -> list[tuple[str, float]]:
    reference, _, folder = pair
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pixels = processor(Image.open(image).convert("RGB"), return_tensors="pt").pixel_values
    start = [2, *tokenizer(prompt, add_special_tokens=False).input_ids]
    options = {"output_scores": True, "return_dict_in_generate": True, **options}
    with torch.no_grad():
        out = reference.generate(pixels, decoder_input_ids=torch.tensor([start]), **options)
    scores = reference.compute_transition_scores(
        out.sequences, out.scores, getattr(out, "beam_indices", None), normalize_logits=True
    )
    totals = getattr(out, "sequences_scores", None)
    totals = scores.masked_fill(scores.isinf(), 0).sum(1) if totals is None else totals
    return list(
        zip(tokenizer.batch_decode(out.sequences, skip_special_tokens=True), totals.tolist(), strict=True)
    )


@pytest.mark.parametrize("options", [{}, BEAMS], ids=["greedy", "beams"])
@pytest.mark.parametrize("prompt", ["", "the cat"])
def test_captions_match_transformers(pair: Any, pictures: list[Path], prompt: str, options: Any) -> None:
    """Preprocessing, generation, decoding and scores, of a batch and of each image alone."""
    task = Captioner(pair[1], prompt=prompt, **LIMIT, **options)
    results = list(task.run(pictures))
    for picture, result in zip(pictures, results, strict=True):
        expected = their_captions(pair, picture, prompt, **LIMIT, **options)
        found = [(one.text, one.score) for one in (result, *result.alternatives)]
        assert [text for text, _ in found] == [text for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert result.text.startswith(prompt)
        alone = task(picture)
        assert (alone.text, alone.score) == (result.text, pytest.approx(result.score, abs=1e-5))


@pytest.mark.parametrize("options", [{}, BEAMS], ids=["greedy", "beams"])
@pytest.mark.parametrize("prompt", ["", "the cat"])
def test_blip_captions_match_transformers(
    tmp_path: Path, pictures: list[Path], prompt: str, options: Any
) -> None:
    """The reference puts the start token in place of the first token of a prompt, and drops its last one."""
    reference, folder = blip("BlipForConditionalGeneration", tmp_path)
    processor = transformers.BlipProcessor(
        transformers.BlipImageProcessorPil.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    task = Captioner(glassformer.load(folder), prompt=prompt, **LIMIT, **options)
    results = list(task.run(pictures))
    for picture, result in zip(pictures, results, strict=True):
        image = Image.open(picture).convert("RGB")
        inputs = processor(image, *([prompt] if prompt else []), return_tensors="pt")
        ids = reference.generate(**inputs, **LIMIT, **options)
        expected = processor.batch_decode(ids, skip_special_tokens=True)
        assert [one.text for one in (result, *result.alternatives)] == expected
        assert result.text.startswith(prompt)
        assert task(picture).text == result.text


def test_an_image_is_encoded_once(pair: Any, pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one batch with the others of a request, and for all requests."""
    pipeline = glassformer.load(pair[2])  # with an empty cache
    encoded, decoded, embed = [], [], type(pipeline.model.src_embed).forward

    def count(self: Any, images: Any, **options: Any) -> Any:
        encoded.append(len(images))
        return embed(self, images, **options)

    def load(image: Any) -> Any:
        decoded.append(image)
        return load_image(image)

    monkeypatch.setattr(type(pipeline.model.src_embed), "forward", count)
    monkeypatch.setattr("glassformer.processors.image.load_image", load)
    images = [base64.b64encode(picture.read_bytes()).decode() for picture in (*pictures, pictures[0])]
    with TestClient(create_app({"model": pipeline}), base_url="http://localhost") as client:
        first, again = (client.post("/caption", json={"images": images, **LIMIT}).json() for _ in range(2))
    assert first == again and first["captions"][0] == first["captions"][3]
    assert encoded == [3] and len(decoded) == 3
    captions = pipeline.caption(pictures, num_beams=4, num_return_sequences=4, **LIMIT)
    assert [len(one) for one in captions] == [4, 4, 4]
    assert encoded == [3] and len(decoded) == 3
    torch.nn.init.normal_(pipeline.model.src_embed.patch.weight)  # other weights, other vectors
    pipeline.caption(pictures, **LIMIT)
    assert encoded == [3, 3]


def test_samples_follow_the_seed(pair: Any, pictures: list[Path]) -> None:
    options = {"do_sample": True, "num_return_sequences": 3, **LIMIT}
    first, again, other = (pair[1].caption(pictures[0], seed=seed, **options) for seed in (1, 1, 2))
    assert first == again != other


def test_unusable_images_are_errors_of_their_own(pair: Any, pictures: list[Path], tmp_path: Path) -> None:
    _, pipeline, _ = pair
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(RejectedInputError, match="image 2"):
        pipeline.caption([pictures[0], tmp_path / "text.png"], **LIMIT)
    with pytest.raises(GlassformerError, match=r"text\.png"):
        pipeline.caption(tmp_path / "text.png", **LIMIT)
    with pytest.raises(GlassformerError, match="62 tokens"):
        pipeline.caption(pictures[0], prompt="the " * 61)


def test_tasks_refuse_models_of_the_other_kind(pair: Any) -> None:
    _, pipeline, _ = pair
    with pytest.raises(UnsupportedError, match="captioning"):
        glassformer.load("pocket").caption("a.png")
    with pytest.raises(UnsupportedError, match="images"):
        pipeline.translate("Good morning.")
    with pytest.raises(UnsupportedError, match="it describes images: use caption"):
        glassformer.load("pocket-captioner").generate("Good morning.")


def test_spaces_at_the_end_of_a_prompt_are_ignored(pair: Any, pictures: list[Path]) -> None:
    """A space is a part of the next word, and alone it may not be in the vocabulary."""
    first, second = (pair[1].caption(pictures[0], prompt=prompt, **LIMIT) for prompt in ("the", "the  "))
    assert first == second
    assert (
        glassformer.load("pocket-captioner").caption(pictures[0], to="en", prompt="Two ").startswith("Two ")
    )


def test_a_server_returns_several_captions(pair: Any, pictures: list[Path]) -> None:
    images = [base64.b64encode(pictures[0].read_bytes()).decode()]
    with TestClient(create_app({"model": pair[1]}), base_url="http://localhost") as client:
        body = client.post("/caption", json={"images": images, **BEAMS, **LIMIT}).json()
        (found,) = body["captions"]
        best, other = pair[1].caption(pictures[0], **BEAMS, **LIMIT)
        assert [found["text"], *(one["text"] for one in found["alternatives"])] == [best, other]
        for count in (4, 17):  # more than there are beams, and than a request may have
            options = {**BEAMS, **LIMIT, "num_return_sequences": count}
            response = client.post("/caption", json={"images": images, **options})
            assert response.status_code == 422, response.text


def test_captions_of_concurrent_requests_share_decode_steps(
    pair: Any, pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers: list[Scheduler] = []

    def create(*args: Any, **options: Any) -> Scheduler:
        schedulers.append(Scheduler(*args, **options))
        return schedulers[-1]

    monkeypatch.setattr("glassformer.server.models.Scheduler", create)
    app = create_app({"model": pair[1]})
    options: list[dict[str, Any]] = [{}, BEAMS, {"prompt": "the"}, {"do_sample": True, "seed": 1}]
    expected = [[pair[1].caption(one, **LIMIT, **each) for one in pictures] for each in options]
    images = [base64.b64encode(picture.read_bytes()).decode() for picture in pictures]

    def ask(each: dict[str, Any]) -> list[Any]:
        body = client.post("/caption", json={"images": images, **LIMIT, **each}).json()
        rows = [[one["text"], *(other["text"] for other in one["alternatives"])] for one in body["captions"]]
        return [row if len(row) > 1 else row[0] for row in rows]

    with TestClient(app, base_url="http://localhost") as client, ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(ask, options * 2)]
    stats = schedulers[0].stats()
    assert answers == expected * 2
    assert stats.requests == len(images) * 8 and stats.steps < stats.requests * LIMIT["max_new_tokens"]


def test_a_server_keeps_a_captioner_out_of_text_generation(pair: Any) -> None:
    with TestClient(create_app({"model": pair[1]}), base_url="http://localhost") as client:
        for path, body in (("completions", {"prompt": "the"}), ("chat/completions", {"messages": []})):
            response = client.post(f"/v1/{path}", json={"model": "model", **body})
            assert response.status_code in (400, 404, 422), response.text


def test_captions_are_columns_of_a_table(pair: Any, pictures: list[Path]) -> None:
    spec = glassformer.tasks.registry.find_task("caption")
    options = spec.read_options({**BEAMS, **LIMIT})
    (result,) = (spec.result.of(one) for one in spec.make(pair[1], options).run(pictures[:1]))
    types = spec.result.column_types(pair[1], options)
    assert [*types] == [*result.cells()] == ["caption", "score", "caption_2", "score_2"]
    assert all(isinstance(value, types[name]) for name, value in result.cells().items())
