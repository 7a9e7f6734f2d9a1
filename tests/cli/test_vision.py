"""detect and segment: output as lines, JSON and COCO, drawn images, and bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from tests.families.cases import YOLOS
from tests.tasks.test_detection import detector, picture


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    detector(YOLOS[1], folder)
    return folder


@pytest.fixture
def images(tmp_path: Any) -> Any:
    (tmp_path / "images" / "more").mkdir(parents=True)
    picture(60, 90).save(tmp_path / "images" / "a.png")
    picture(50, 50).save(tmp_path / "images" / "more" / "b.jpg")
    return tmp_path / "images"


def test_detect_prints_the_objects_of_the_library(run, model, images) -> None:
    expected = glassformer.load(model).detect(images, threshold=0.3)
    lines = [line.split("\t") for line in run("detect", model, images, "--threshold", "0.3").out.splitlines()]
    flat = [(str(f), o) for f, row in zip(sorted(images.rglob("*.*")), expected, strict=True) for o in row]
    assert [(file, label) for file, label, *_ in lines] == [(file, o.label) for file, o in flat]
    assert [line[2] for line in lines] == [f"{o.score:.4f}" for _, o in flat]
    assert np.allclose([[float(n) for n in line[3:]] for line in lines], [o.box for _, o in flat], atol=0.06)


def test_detect_writes_json_coco_and_drawings(run, model, images, tmp_path) -> None:
    out, drawn = tmp_path / "found.json", tmp_path / "drawn"
    done = run("detect", model, images, "--threshold", "0", "--out", out, "--draw", drawn)
    assert done.code == 0, done.err
    rows = json.loads(out.read_text())
    assert [(row["width"], row["height"], len(row["objects"])) for row in rows] == [(90, 60, 5), (50, 50, 5)]
    with Image.open(drawn / "a.png") as a, Image.open(drawn / "more" / "b.jpg") as b:
        assert a.size == (90, 60) and b.size == (50, 50)
        assert np.abs(np.asarray(a).astype(int) - np.asarray(picture(60, 90))).max() > 50
    run("detect", model, images, "--out", out).error()  # exists
    run("detect", model, images, "--draw", drawn).error()
    one = tmp_path / "one.png"
    assert run("detect", model, images / "a.png", "--draw", one).code == 0 and one.is_file()
    run("detect", model, images, "--draw", tmp_path / "both.png").error()
    run("detect", model, images / "a.png", "--draw", tmp_path / "a.txt").error()
    coco = run("detect", model, images, "--threshold", "0", "--out", out, "--format", "coco", "--overwrite")
    assert coco.code == 0, coco.err
    content = json.loads(out.read_text())
    assert [image["id"] for image in content["images"]] == [1, 2] and len(content["annotations"]) == 10
    box, row = rows[0]["objects"][0]["box"], content["annotations"][0]
    assert np.allclose(row["bbox"], [box[0], box[1], box[2] - box[0], box[3] - box[1]], atol=0.02)
    assert json.loads(run("detect", model, images, "--format", "json", "--threshold", "0").out) == rows


def test_detect_continues_after_a_bad_image(run, model, images) -> None:
    (images / "broken.png").write_bytes(b"no image")
    done = run("detect", model, images, "--threshold", "0")
    assert done.code == 2 and "broken.png" in done.err and len(done.out.splitlines()) == 10
    run("detect", model, images / "broken.png").error()
    run("detect", model, images / "absent.png").error()
    run("detect", model, images / "a.png", "--threshold", "2").error()
    run("detect", "pocket-digits", images / "a.png").error()


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("segmenter")
    torch.manual_seed(0)
    glassformer.save(glassformer.Pipeline(model=glassformer.tiny("eomt")), folder)
    settings = {"image_processor_type": "EomtImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_segment_prints_the_segments_of_the_library(run, segmenter, images, tmp_path) -> None:
    image, out, classes = images / "a.png", tmp_path / "found.json", tmp_path / "classes.png"
    for mode in ("semantic", "instance", "panoptic"):
        done = run(
            "segment", segmenter, image, "--mode", mode, "--threshold", "0", "--out", out, "--overwrite"
        )
        assert done.code == 0, done.err
        expected = glassformer.load(segmenter).segment(image, mode=mode, threshold=0.0)
        lines = [line.split("\t") for line in done.out.splitlines()]
        assert [(line[0], int(line[2])) for line in lines] == [(o.label, int(o.mask.sum())) for o in expected]
        assert len(json.loads(out.read_text())["masks"]) == len(expected) > 0
    done = run("segment", segmenter, image, "--mode", "semantic", "--class-map", classes)
    assert done.code == 0, done.err
    with Image.open(classes) as shown:
        assert shown.size == (90, 60) and np.asarray(shown).max() < 5


def test_segment_rejects_bad_options(run, segmenter, images) -> None:
    image = images / "a.png"
    for options in (["--mode", "depth"], ["--point", "3,4"], ["--stuff-class", "sky"], ["--threshold", "2"]):
        run("segment", segmenter, image, *options).error()
    run("segment", segmenter, images / "absent.png").error()
    run("segment", segmenter, images).error()
    run("segment", segmenter, image, "--draw", images / "drawn").error()
    run("segment", segmenter, image, "--masks", image).error()
    run("segment", "pocket-digits", image).error()
