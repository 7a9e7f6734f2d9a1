"""The task `draw`: the same picture on every edge, settings in PNG files, bounds, and bad input."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

import glassformer
from glassformer.batch.plan import BatchRequest, open_plan
from glassformer.batch.storage import Location
from glassformer.batch.worker import BatchWorker
from glassformer.bundle import Bundle
from glassformer.cli import draw
from glassformer.cli.main import main
from glassformer.diffusion import SAMPLERS
from glassformer.diffusion.tiling import decode_in_tiles
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnsupportedError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.plotting.terminal import image_text
from glassformer.server.app import create_app
from glassformer.server.images import read_form
from glassformer.server.models import ModelRegistry
from glassformer.tasks import drawing
from glassformer.tasks.drawing import DiffusionImageGenerator, DrawingTooLargeError
from glassformer.tasks.png_settings import encode_png, read_png_settings
from glassformer.tasks.registry import find_task
from tests.tasks.drawing_models import CLASSES, PROMPTS, diffusion_bundle, save_drawing_model

PROMPT, STEPS = PROMPTS[0], 4
SETTINGS: dict[str, Any] = {"num_inference_steps": STEPS, "seed": 5, "negative_prompt": "a dog"}
FLAGS = ("--steps", STEPS, "--seed", 5, "--negative-prompt", "a dog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_drawing_model(tmp_path_factory.mktemp("draw") / "painter")


@pytest.fixture(scope="module")
def painter(folder: Path) -> Any:
    return glassformer.load(folder)


@pytest.fixture(scope="module")
def client(painter: Any) -> Any:
    other = glassformer.load("pocket-digits")
    with TestClient(create_app({"digits": other, "painter": painter}), base_url="http://localhost") as client:
        yield client


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["draw", *map(str, args)])
    return (stop.value.code, *capsys.readouterr())


def decoded(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def png_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def same(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


def test_every_edge_draws_the_same_picture(
    painter: Any, folder: Path, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = painter.draw(PROMPT, **SETTINGS)
    assert expected.size == (16, 16) and np.asarray(expected).std() > 5
    assert not same(expected, painter.draw(PROMPT, **SETTINGS | {"seed": 6}))
    code, out, errors = run(capsys, folder, PROMPT, *FLAGS)
    assert (code, out) == (0, "the-cat-sat-on-the-mat-5.png\n"), errors
    assert same(Image.open(out.strip()), expected)
    response = client.post("/draw", json={"prompt": PROMPT, **SETTINGS})
    assert response.status_code == 200, response.text
    assert response.json()["seeds"] == [5] and same(decoded(response.json()["images"][0]), expected)
    openai = {"prompt": PROMPT, "steps": STEPS, "seed": 5, "negative_prompt": "a dog", "size": "16x16"}
    response = client.post("/v1/images/generations", json={**openai, "n": 2}).json()
    assert [row["seed"] for row in response["data"]] == [5, 6] and response["model"] == "painter"
    assert same(decoded(response["data"][0]["b64_json"]), expected)
    Path("in.csv").write_text(f"id,text\n1,{PROMPTS[1]}\n2,\n3,{PROMPT}\n")
    request = BatchRequest(
        task="draw", model=str(folder), inputs=(Location("in.csv").uri,), format="csv", options=SETTINGS
    )
    target = Location("out")
    plan = open_plan(request, target, workers=1, batch_size=2, overwrite=False)
    worker = BatchWorker(plan, target.uri, device="cpu")
    assert worker({"number": [1]}) == {"rows": [1], "errors": [0]}
    resumed = open_plan(request, target, workers=1, batch_size=2, overwrite=False)
    assert [block.number for block in resumed.pending(target)] == [0]
    assert worker({"number": [0]}) == {"rows": [2], "errors": [0]}
    images = sorted(Path("out").glob("*.png"))
    assert [file.name for file in images] == ["part-000000-000001-image.png", "part-000001-000001-image.png"]
    assert Path("out/part-000000.csv").read_text().splitlines()[1:] == [
        f"1,{PROMPTS[1]},{images[0].name},",
        "2,,,",
    ]
    assert same(Image.open(images[1]), expected)
    Path("out/mine.png").write_bytes(b"")
    open_plan(request, target, workers=1, batch_size=2, overwrite=True)
    assert {file.name for file in Path("out").iterdir()} == {"mine.png", "_batch.json"}


def test_openai_client_draws_and_edits(client: Any, painter: Any) -> None:
    import openai

    service = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client)
    response = service.images.generate(
        model="painter",
        prompt=PROMPT,
        n=1,
        response_format="b64_json",
        extra_body={"seed": 5, "steps": STEPS},
    )
    assert response.data is not None and response.size is not None
    options = {"seed": 5, "num_inference_steps": STEPS}
    assert same(decoded(str(response.data[0].b64_json)), painter.draw(PROMPT, **options))
    start = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))
    left = Image.new("L", (16, 16), 0)
    left.paste(255, (0, 0, 8, 16))
    hole = start.convert("RGBA")
    hole.putalpha(left.point(lambda level: 255 - level))  # transparent where it is redrawn
    expected = painter.draw(PROMPT, image=start, mask=left, **options)
    edited = service.images.edit(
        image=png_of(start), mask=png_of(hole), prompt=PROMPT, extra_body={"seed": 5, "steps": STEPS}
    )
    assert edited.data is not None and same(decoded(str(edited.data[0].b64_json)), expected)
    assert not same(
        expected, painter.draw(PROMPT, image=start, mask=left.point(lambda n: 255 - n), **options)
    )
    assert {card.id for card in service.models.list()} == {"digits", "painter"}


def test_settings_in_a_png_file_draw_it_again(
    folder: Path, painter: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for sampler in SAMPLERS.keys() - {"flow_match_euler"}:
        code, _, errors = run(capsys, folder, PROMPT, *FLAGS, "--sampler", sampler, "--out", f"{sampler}.png")
        assert code == 0, errors
        code, _, errors = run(capsys, folder, "--like", f"{sampler}.png", "--out", "again.png", "--overwrite")
        assert code == 0 and not errors
        assert Path(f"{sampler}.png").read_bytes() == Path("again.png").read_bytes()
    settings = read_png_settings(Path("ddim.png"))
    assert settings["weights"] == painter.weights_digest() != diffusion_bundle(classes=True).weights_digest()
    assert settings["prompt"] == PROMPT and settings["negative_prompt"] == "a dog" and settings["versions"]
    code, _, _ = run(capsys, folder, PROMPTS[1], "--like", "ddim.png", "--seed", 8, "--out", "other.png")
    changed = read_png_settings(Path("other.png"))
    differing = {name for name in settings if settings[name] != changed[name]}
    assert code == 0 and differing == {"prompt", "seed"}
    # an image that it started from must be given again
    run(capsys, folder, PROMPT, *FLAGS, "--image", "ddim.png", "--strength", 0.5, "--out", "edit.png")
    code, _, errors = run(capsys, folder, "--like", "edit.png")
    assert code == 2 and "--image is required" in errors
    code, _, _ = run(capsys, folder, "--like", "edit.png", "--image", "ddim.png", "--out", "edit2.png")
    assert code == 0 and Path("edit.png").read_bytes() == Path("edit2.png").read_bytes()
    # other weights: a note; no settings, or damaged ones: an error
    classes = save_drawing_model(Path("classes"), classes=True)
    code, _, errors = run(capsys, classes, CLASSES[1], "--like", "ddim.png", "--negative-prompt", "")
    assert code == 0 and errors.count("\n") == 1 and "other weights" in errors
    plain = Image.new("RGB", (4, 4))
    plain.save("plain.png")
    Path("odd.png").write_bytes(encode_png(plain, {"prompt": "x", "seed": "many", "weights": ""}))
    Path("cut.png").write_bytes(Path("ddim.png").read_bytes()[:40])
    for name in ("plain", "odd", "cut", "missing"):
        code, _, errors = run(capsys, folder, "--like", f"{name}.png")
        assert code == 2 and errors.count("\n") == 1 and "error: " in errors


def test_files_are_never_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = (folder, PROMPT, "--steps", 1)
    names = [run(capsys, *args)[1].strip() for _ in range(2)]
    assert names == ["the-cat-sat-on-the-mat-0.png", "the-cat-sat-on-the-mat-0-2.png"]
    code, out, _ = run(
        capsys, *args, "a dog", "--num-images", 2, "--out", "x.png", "--grid", "grid.png", "--json"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["file"] for row in rows] == [f"x-{n}.png" for n in range(1, 5)]
    assert [(row["prompt"], row["seed"]) for row in rows] == [
        (prompt, seed) for prompt in (PROMPT, "a dog") for seed in (0, 1)
    ]
    assert Image.open("grid.png").size == (36, 36)
    for more in (("--out", "x-1.png"), ("--grid", "grid.png"), ("--preview", "grid.png"), ("--out", "y.jpg")):
        code, out, errors = run(capsys, *args, *more)
        assert (code, out, errors.count("\n")) == (2, "", 1)
    for _ in range(2):  # a preview replaces the one before
        code, _, errors = run(capsys, *args, "--preview", "preview.png")
        assert code == 0 and Image.open("preview.png").size == (16, 16), errors
    assert draw.slug("../../etc/passwd") == "etc-passwd" and draw.slug("🙂") == "drawing"
    assert len(image_text(Image.new("RGB", (8, 4)), 10).plain.splitlines()) == 2


def test_tables_are_read_where_the_captions_of_the_training_data_are(
    painter: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobInfo(data_columns={"image": "picture", "caption": "words"})
    trained = glassformer.save(replace(painter, job=job), tmp_path / "trained", layout="glassformer")
    Path("in.csv").write_text(f"picture,words\na.png,{PROMPT}\n")
    code, out, errors = run(capsys, trained, "--file", "in.csv", "--steps", 1)
    assert (code, out) == (0, "the-cat-sat-on-the-mat-0.png\n"), errors
    code, out, _ = run(capsys, trained, "--file", "in.csv", "--steps", 1, "--column", "picture")
    assert (code, out) == (0, "a-png-0.png\n")


def test_ctrl_c_keeps_what_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = 0

    def stop(self: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2 + 2 + 3 + 1:  # one image at a time: in the second step of the third image
            raise KeyboardInterrupt

    monkeypatch.setattr(draw.DrawingProgress, "on_step", stop)
    monkeypatch.setattr(DiffusionImageGenerator, "_max_batch_size", lambda self: 1)
    code, out, errors = run(capsys, folder, PROMPT, "--steps", 2, "--num-images", 4)
    assert code == 130 and len(out.splitlines()) == len(list(Path().glob("*.png"))) == 3
    assert errors == "stopped after 3 images; finished files are kept\n"


def test_drawing_ends_when_the_client_is_gone(painter: Any) -> None:
    registry = ModelRegistry({"painter": painter})
    task = find_task("draw").make(painter, find_task("draw").read_options({"num_inference_steps": 1000}))
    steps = 0

    def work(_: Any, callbacks: Any) -> Any:
        nonlocal steps
        for _ in task.stream([PROMPT], callbacks):
            steps = 1000

    async def disconnect() -> None:
        running = asyncio.ensure_future(registry["painter"].run_steps(work))
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:  # the browser of other tests has a loop in this one
        thread.submit(asyncio.run, disconnect()).result()
    registry.close()  # waits for the thread
    assert steps == 0


def test_memory_is_bounded_before_the_work(painter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch_size(free: int | None, **options: Any) -> int:
        monkeypatch.setattr(drawing, "available_memory", lambda device: free)
        return DiffusionImageGenerator(painter, batch_size=8, **options).batch_size

    assert batch_size(None) == batch_size(1 << 40) == 8
    needed = 4 * max(2 * painter.spec.denoising_size((64, 64)), painter.spec.decoding_size((64, 64)))
    assert batch_size(3 * needed, height=64, width=64) == 3
    with pytest.raises(DrawingTooLargeError):
        batch_size(needed - 1, height=64, width=64)


def test_the_checksum_follows_the_weights() -> None:
    """Also of weights that change in place, as in training."""
    bundle = diffusion_bundle(classes=True)
    before = bundle.weights_digest()
    with torch.no_grad():
        next(bundle.model.parameters()).mul_(2)
    assert bundle.weights_digest() != before


def test_only_images_above_a_megapixel_are_decoded_in_tiles(
    painter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"num_inference_steps": 1, "height": 48, "width": 64}
    exact = painter.draw(PROMPT, **options)
    monkeypatch.setattr(drawing, "MIN_TOKENS", 1 << 20)
    assert not DiffusionImageGenerator(painter, height=1024, width=1024).tiling
    assert DiffusionImageGenerator(painter, height=1024, width=1028).tiling
    monkeypatch.setattr(drawing, "TILE", 32)
    tiled = painter.draw(PROMPT, tiling=True, **options)
    monkeypatch.setattr(drawing, "DECODED_PIXELS", 48 * 64 - 1)
    assert tiled.size == exact.size == (64, 48) and not same(tiled, exact)
    assert same(tiled, painter.draw(PROMPT, **options))
    assert same(exact, painter.draw(PROMPT, tiling=False, **options))


def test_tiles_are_blended_without_seams() -> None:
    """Each tile has its own mean, as with group norms; hard borders would show as steps."""
    ramp = torch.linspace(0, 1, 40, dtype=torch.float64).expand(1, 1, 24, 40)
    tiled = decode_in_tiles(lambda part: part - part.mean(), ramp, tile=16, overlap=8)
    assert tiled.diff(dim=-1).abs().max() < 0.06
    same_everywhere = decode_in_tiles(lambda part: part, ramp, tile=16, overlap=8)
    torch.testing.assert_close(same_everywhere, ramp, atol=1e-12, rtol=0)


def bad_inputs() -> dict[str, tuple[Any, dict[str, Any], type[Exception]]]:
    image, small = Image.new("RGB", (16, 16)), Image.new("L", (8, 16), 255)
    bomb = Image.new("1", (16_000, 16_000))
    return {
        "steps": (PROMPT, {"num_inference_steps": 10_000}, InvalidValueError),
        "size": (PROMPT, {"width": 17}, InvalidValueError),
        "huge": (PROMPT, {"height": 1 << 20}, InvalidValueError),
        "images": (PROMPT, {"num_images_per_prompt": 0}, InvalidValueError),
        "empty": (" ", {}, EmptyInputError),
        "mask": (PROMPT, {"image": image, "mask": small}, ConflictError),
        "mask alone": (PROMPT, {"mask": small}, MissingValueError),
        "bomb": (PROMPT, {"image": png_of(bomb)}, FileProblemError),
        "no image": (PROMPT, {"image": b"GIF89a"}, FileProblemError),
        "other model": (PROMPT, {"temperature": 1.0}, UnsupportedError),
    }


@pytest.mark.parametrize("name", bad_inputs())
def test_bad_input_is_one_error(name: str, painter: Any, client: Any) -> None:
    prompt, options, error = bad_inputs()[name]
    with pytest.raises(error):
        painter.draw(prompt, **options)
    if name in ("mask", "mask alone"):
        return
    body = {"prompt": prompt, **options}
    if isinstance(options.get("image"), bytes):
        body["image"] = base64.b64encode(options["image"]).decode()
    response = client.post("/draw", json={**body, "model": "painter"})
    assert response.status_code == 422 and response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": "url"},
        {"n": 11},
        {"size": "99999x16"},
        {"size": "17x16"},
        {"size": "big"},
        {"steps": 10_000},
        {"prompt": ""},
        {"model": "digits"},
        {"quality": "best"},
        {"stream": True},
        {"style": "vivid"},
    ],
)
def test_bad_openai_requests_are_one_error(body: dict[str, Any], client: Any) -> None:
    response = client.post("/v1/images/generations", json={"prompt": PROMPT, **body})
    assert response.status_code == 422 and response.json()["error"]["message"], response.text


def test_fields_that_openai_clients_send_change_nothing(client: Any) -> None:
    body = {"prompt": PROMPT, "seed": 5, "steps": 1}
    plain, sent = (
        client.post("/v1/images/generations", json={**body, **fields}).json()["data"]
        for fields in ({}, {"quality": "hd", "stream": False, "user": "me"})
    )
    assert plain == sent
    refused = client.post("/v1/images/generations", json={**body, "stream": True}).json()["error"]
    assert refused["message"] == "stream is True; expected false: images are returned when all are finished"


@pytest.mark.parametrize("size", ["1x1", "16x17", "0x16", "1024x1024"])
def test_an_error_about_the_size_names_it(size: str, client: Any) -> None:
    response = client.post("/v1/images/generations", json={"prompt": PROMPT, "size": size})
    error = response.json()["error"]
    assert response.status_code == 422 and error["message"].startswith(f"size is '{size}'"), error


def test_bad_forms_are_one_error(client: Any) -> None:
    image = ("a.png", png_of(Image.new("RGB", (16, 16))))
    post = client.post
    assert post("/v1/images/edits", data={"prompt": PROMPT}, files={"image": image}).status_code == 200
    for data, files in (
        ({}, {"image": image}),
        ({"prompt": PROMPT}, {"mask": image}),
        ({"prompt": PROMPT, "n": "many"}, {"image": image}),
        ({"prompt": PROMPT}, {"image": ("a.png", b"x")}),
        ({"prompt": PROMPT}, {"image": image, "mask": ("m.png", b"x")}),
        ({"prompt": PROMPT, **{f"field{n}": "" for n in range(70)}}, {"image": image}),
    ):
        response = post("/v1/images/edits", data=data, files=files)
        assert response.status_code == 422 and response.json()["error"]["message"], response.text
    assert post("/v1/images/edits", json={"prompt": PROMPT}).status_code == 422
    with pytest.raises(InvalidValueError):
        read_form("multipart/form-data; boundary=x", b"--x\r\n\r\na\r\n--x")


def test_nan_and_broken_folders_are_errors(folder: Path, tmp_path: Path, capsys: Any) -> None:
    broken = glassformer.load(folder)
    with torch.no_grad():
        next(broken.model.denoiser.parameters()).fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(NonFiniteError):
        broken.draw(PROMPT, num_inference_steps=1)  # type: ignore[attr-defined]
    after = glassformer.load(folder)
    with torch.no_grad():
        next(after.model.autoencoder.parameters()).fill_(0)  # type: ignore[union-attr]
        for parameter in after.model.autoencoder.decoder.parameters():  # type: ignore[union-attr]
            parameter.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        after.draw(PROMPT, num_inference_steps=1)  # type: ignore[attr-defined]
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, errors = run(capsys, empty, PROMPT)
    assert code == 2 and errors.count("\n") == 1
    saved = glassformer.save(Bundle(model=broken.model, tokenizer=broken.tokenizer), tmp_path / "unscheduled")
    code, _, errors = run(capsys, saved, PROMPT)
    assert code == 2 and "scheduler_config.json is required" in errors
