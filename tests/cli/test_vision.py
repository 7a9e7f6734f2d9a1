"""detect and segment: output as lines, JSON and COCO, drawn images, and bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from glassformer.tasks import Detector
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
    out, drawings = tmp_path / "found.json", tmp_path / "drawn"
    done = run("detect", model, images, "--threshold", "0", "--out", out, "--draw", drawings)
    assert done.code == 0, done.err
    rows = json.loads(out.read_text())
    assert [(row["width"], row["height"], len(row["objects"])) for row in rows] == [(90, 60, 5), (50, 50, 5)]
    with Image.open(drawings / "a.png") as a, Image.open(drawings / "more" / "b.jpg") as b:
        assert a.size == (270, 180) and b.size == (300, 300)  # enlarged, to make the labels readable
    run("detect", model, images, "--out", out).error()  # exists
    run("detect", model, images, "--draw", drawings).error()
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
    image, out = images / "a.png", tmp_path / "found.json"
    for mode in ("semantic", "instance", "panoptic"):
        options = ("--mode", mode, "--threshold", "0")
        lines = [line.split("\t") for line in run("segment", segmenter, image, *options).out.splitlines()]
        expected = glassformer.load(segmenter).segment(image, mode=mode, threshold=0.0)
        assert [line[0] for line in lines] == [str(image)] * len(expected)
        assert [(line[1], int(line[7])) for line in lines] == [(o.label, int(o.mask.sum())) for o in expected]
        assert [tuple(map(float, line[3:7])) for line in lines] == [o.box for o in expected]
        done = run("segment", segmenter, image, *options, "--out", out, "--overwrite")
        assert done.code == 0 and not done.out, done.err
        assert len(json.loads(out.read_text())[0]["objects"]) == len(expected) > 0


def test_segment_writes_the_masks_of_folders(run, segmenter, images, tmp_path) -> None:
    (images / "broken.png").write_bytes(b"no image")
    classes, masks, drawings, out = (tmp_path / name for name in ("classes", "masks", "drawn", "found.json"))
    paths = ("--class-map", classes, "--masks", masks, "--draw", drawings, "--out", out, "--format", "coco")
    done = run("segment", segmenter, images, "--mode", "semantic", *paths)
    assert done.code == 2 and "broken.png" in done.err
    expected = glassformer.load(segmenter).segment([images / "a.png", images / "more/b.jpg"], mode="semantic")
    content = json.loads(out.read_text())
    assert [image["file_name"] for image in content["images"]] == ["a.png", "more/b.jpg"]
    assert len(content["annotations"]) == sum(map(len, expected))
    for name, suffix, (first, *_) in zip(("a", "more/b"), (".png", ".jpg"), expected, strict=True):
        with Image.open(classes / f"{name}.png") as numbers, Image.open(masks / f"{name}-1.png") as mask:
            assert (np.asarray(mask) == first.mask).all()
            assert len(set(np.asarray(numbers)[first.mask])) == 1 and np.asarray(numbers).max() < 5
        assert (drawings / f"{name}{suffix}").is_file()
    for option, path in (("--class-map", classes), ("--masks", masks), ("--draw", drawings)):
        run("segment", segmenter, images, "--mode", "semantic", option, path).error()  # exists
    for option in ("--class-map", "--masks", "--draw"):
        run("segment", segmenter, images, option, tmp_path / "all.png").error()
    run("segment", segmenter, images / "a.png", "--class-map", tmp_path / "a.jpg").error()  # lossy
    one = tmp_path / "one.png"
    assert run("segment", segmenter, images / "a.png", "--mode", "semantic", "--class-map", one).code == 0
    assert one.read_bytes() == (classes / "a.png").read_bytes()


def test_images_with_the_same_name_are_written_to_different_files(run, segmenter, images, tmp_path) -> None:
    picture(20, 20).save(images / "a.bmp")
    options = ("--mode", "semantic", "--class-map", tmp_path / "classes", "--masks", tmp_path / "masks")
    assert run("segment", segmenter, images, *options).code == 0
    names = [
        path.relative_to(tmp_path / "classes").as_posix() for path in (tmp_path / "classes").rglob("*.png")
    ]
    assert sorted(names) == ["a.bmp.png", "a.png.png", "more/b.png"]
    assert (tmp_path / "masks/a.bmp-1.png").is_file() and (tmp_path / "masks/a.png-1.png").is_file()


def test_outputs_stay_in_their_folder(run, model, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(images / "more")
    out, drawings = tmp_path / "found.json", tmp_path / "drawn"
    options = ("--threshold", "0", "--format", "coco", "--out", out, "--draw", drawings)
    assert run("detect", model, "../a.png", "b.jpg", *options).code == 0
    assert [image["file_name"] for image in json.loads(out.read_text())["images"]] == ["a.png", "more/b.jpg"]
    assert sorted(path.name for path in drawings.rglob("*.*")) == ["a.png", "b.jpg"]


def test_ctrl_c_writes_what_was_found(run, model, images, tmp_path, monkeypatch) -> None:
    def interrupt(self: Detector, inputs: Any, callbacks: Any) -> Iterator[Any]:
        yield from detect(self, inputs[:1], callbacks)
        raise KeyboardInterrupt

    detect = Detector.run
    monkeypatch.setattr(Detector, "run", interrupt)
    out = tmp_path / "found.json"
    assert run("detect", model, images, "--threshold", "0", "--out", out).code == 130
    assert [len(row["objects"]) for row in json.loads(out.read_text())] == [5]


def test_segment_rejects_bad_options(run, segmenter, images) -> None:
    image = images / "a.png"
    for options in (["--mode", "depth"], ["--point", "3,4"], ["--stuff-class", "sky"], ["--threshold", "2"]):
        assert run("segment", segmenter, image, *options).code == 2
    run("segment", segmenter, images / "absent.png").error()
    run("segment", segmenter, image, "--draw", images / "drawn.txt").error()
    run("segment", segmenter, image, "--masks", image).error()
    run("segment", "pocket-digits", image).error()


@pytest.fixture(scope="module")
def promptable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("promptable")
    torch.manual_seed(0)
    glassformer.save(glassformer.Pipeline(model=glassformer.tiny("sam", image_size=40)), folder)
    settings = {"image_processor_type": "SamImageProcessor", "size": {"longest_edge": 40}}
    settings["pad_size"] = {"height": 40, "width": 40}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_segment_names_the_image_and_the_option_of_a_prompt_that_does_not_fit(
    run, promptable, images
) -> None:
    done = run("segment", promptable, images, "--point", "70,20")
    assert done.code == 2 and len(done.out.splitlines()) == 3
    (warning,) = (line for line in done.err.splitlines() if line.startswith("warning"))
    assert all(text in warning for text in (str(images / "more/b.jpg"), "--point", "70,20", "50 x 50"))
    assert "--point" in run("segment", promptable, images / "more/b.jpg", "--point", "70,20").error()


def test_segment_rejects_options_without_effect_and_missing_prompts(run, promptable, images) -> None:
    image = images / "a.png"
    for options in (["--threshold", "0.9"], ["--mode", "semantic"], ["--stuff-class", "sky"]):
        for prompt in (["--point", "3,4"], ["--box", "1,1,9,9"], ["--everything"]):
            error = run("segment", promptable, image, *options, *prompt).error()
            assert options[0] in error and prompt[0] in error
    error = run("segment", promptable, image, "--point", "3,4", "--points-per-side", "4").error()
    assert "--everything" in error
    error = run("segment", promptable, image).error()
    assert all(flag in error for flag in ("--point", "--box", "--everything"))
    assert run("segment", promptable, image, "--everything", "--points-per-side", "2").code == 0


def test_classify_and_embed_skip_a_bad_image_of_a_folder(run, images, tmp_path) -> None:
    (images / "broken.png").write_bytes(b"no image")
    names = [str(images / name) for name in ("a.png", "broken.png", "more/b.jpg")]
    done = run("classify", "pocket-digits", images)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert done.code == 2 and "broken.png" in done.err
    assert [row[0] for row in rows] == names and [len(row) for row in rows] == [3, 2, 3]
    table = tmp_path / "labels.csv"
    assert run("classify", "pocket-digits", images, "--out", table).code == 2
    assert [line.split(",")[0] for line in table.read_text().splitlines()] == ["image", *names]
    lines = [json.loads(line) for line in run("embed", "pocket-digits", images, "--json").out.splitlines()]
    assert [line["image"] for line in lines] == names and "error" in lines[1]
    out = tmp_path / "vectors.npy"
    assert run("embed", "pocket-digits", images, "--out", out).code == 2
    assert np.isnan(np.load(out)).all(1).tolist() == [False, True, False]
    found = run("similar", "pocket-digits", images / "a.png", "--corpus", images, "--top", "1")
    assert found.code == 2 and found.out.startswith(f"{names[0]}\t1.0000")
    run("similar", "pocket-lm", "a text", "--corpus", images).error()
    run("similar", "pocket-digits", images / "a.png", "--corpus", images / "a.png").error()
