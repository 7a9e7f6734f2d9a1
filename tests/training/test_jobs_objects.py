"""Jobs `detect` and `segment`: learning, metrics, exact resumption, fine-tuning and errors."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from experiments.scenes import LANGUAGES, CutOuts, SceneComposer, SceneOptions, write_scenes
from glassformer.bundle import Bundle, load, save
from glassformer.core.vision.convolution.pixel_head import PixelOutput
from glassformer.data.annotated_examples import NO_OBJECT, AnnotatedExamples, fractional_boxes
from glassformer.data.annotations import AnnotationSet, find_annotations, read_coco
from glassformer.data.augmentation import (
    ObjectAugment,
    move_boxes,
    move_images,
    paste_boxes,
    paste_segments,
)
from glassformer.data.examples import IGNORE_INDEX
from glassformer.errors import (
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.families.registry import preset_spec
from glassformer.tasks.pixel_postprocessing import pixel_classes, pixel_instances
from glassformer.training import object_job
from glassformer.training.data_cache import DataChangedError
from glassformer.training.evaluation import evaluate_files
from glassformer.training.job import create_job
from glassformer.training.model_setup import build_initialized, count_queries
from glassformer.training.object_learner import center_offsets, segment_masks
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import train

TINY = {"patch_size": 8, "d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 2}
QUIET = {"report_to": [], "batch_size": 4, "eval_steps": 6, "logging_steps": 6}
MODELS: dict[str, dict[str, Any]] = {
    "detect-yolos": {"preset": "yolos-tiny", **TINY, "num_queries": 8},
    "detect-detr": {"preset": "detr-tiny", "d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 2},
    "segment-pixels": {"preset": "vit", **TINY},
    "segment-queries": {"preset": "eomt-tiny", "d_model": 32, "num_heads": 2, "num_layers": 3},
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    """24 scenes of red squares and blue bars."""
    images = np.zeros((2, 64, 64, 4), np.uint8)
    images[0] = (255, 0, 0, 255)
    images[1, 16:48] = (0, 0, 255, 255)
    names = tuple(dict.fromkeys(LANGUAGES, name) for name in ("square", "bar"))
    cutouts = CutOuts(images=images, labels=np.arange(2), names=names)
    options = SceneOptions(size=32, max_objects=3, min_scale=0.3, max_scale=0.5)
    return write_scenes(SceneComposer(cutouts, options, seed=1), range(24), tmp_path_factory.mktemp("scenes"))


def recipe(scenes: Path, case: str, *, steps: int = 12, data: Any = None, **training: Any) -> dict[str, Any]:
    return {
        "job": case.split("-")[0],
        "data": {"train": [str(scenes)], "valid": 0.25, **(data or {})},
        "model": MODELS[case],
        "training": {**QUIET, "max_steps": steps, **training},
    }


@pytest.mark.parametrize("case", MODELS)
def test_training_learns_and_evaluation_agrees(scenes, tmp_path, case):
    losses = []
    train(recipe(scenes, case, lr=2e-3), tmp_path / "run", log=losses.append)
    model = load(tmp_path / "run/model")
    assert model.job.classes == ("square", "bar") and model.job.name == case.split("-")[0]
    evaluation = evaluate_files(tmp_path / "run/model", [str(scenes)], log=losses.append)
    metrics = evaluation.validation.metrics
    assert {"loss", "ap", "ap50", "ap75"} <= set(metrics)
    assert ("pq" in metrics) == case.startswith("segment")
    request = recipe(scenes, case, steps=2, lr=1e-9, eval_steps=1, logging_steps=1)
    fresh = train(request, tmp_path / "fresh", log=losses.append)
    untrained = evaluate_files(tmp_path / "fresh/model", [str(scenes)], log=losses.append)
    assert fresh.job.name == model.job.name
    assert metrics["loss"] < 0.97 * untrained.validation.metrics["loss"]


@pytest.mark.parametrize("case", ["detect-yolos", "segment-pixels"])
def test_a_truncated_image_does_not_count_in_an_evaluation(scenes, tmp_path, case):
    train(recipe(scenes, case, steps=2), tmp_path / "run", log=lambda _: None)
    folder = tmp_path / "data"
    shutil.copytree(scenes.parent, folder)
    content = json.loads(scenes.read_text("utf-8"))
    first = content["images"].pop(0)
    content["annotations"] = [note for note in content["annotations"] if note["image_id"] != first["id"]]
    (folder / "without.json").write_text(json.dumps(content), "utf-8")
    image = next(folder.rglob(first["file_name"]))
    image.write_bytes(image.read_bytes()[:-40])
    metrics = [
        evaluate_files(tmp_path / "run/model", [str(folder / name)], log=lambda _: None).validation.metrics
        for name in (scenes.name, "without.json")
    ]
    losses = [found.pop("loss") for found in metrics]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)  # of masks, sampled points are compared
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4)


@pytest.mark.parametrize("case", list(MODELS)[1:])
def test_resume_within_an_epoch_is_bit_identical(scenes, tmp_path, case):
    training = {"lr_scheduler": "constant", "warmup_steps": 2, "eval_steps": 3, "logging_steps": 3}
    long = recipe(scenes, case, data={"copy_paste_prob": 0.5}, ema=0.9, **training)
    short = {**long, "training": {**long["training"], "max_steps": 6}}
    train(short, tmp_path / "resumed", log=lambda _: None)
    resumed = train(long, tmp_path / "resumed", log=lambda _: None)
    straight = train(long, tmp_path / "straight", log=lambda _: None)
    pairs = zip(resumed.model.state_dict().items(), straight.model.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("layout", ["coco", "yolo", "voc"])
def test_resume_with_other_images_or_annotations_is_an_error(scenes, tmp_path, layout):
    data = tmp_path / "data"
    if layout == "coco":
        shutil.copytree(scenes.parent, data)
        data /= scenes.name
    else:
        write_splits(scenes, data, layout)
    request = recipe(data, "detect-yolos", steps=1)
    train(request, tmp_path / "run", log=lambda _: None)
    longer = recipe(data, "detect-yolos", steps=2)
    notes = {"coco": data, "yolo": data / "labels/train/3.txt", "voc": data / "Annotations/3.xml"}[layout]
    text = notes.read_text("utf-8")
    notes.write_text(f"{text}\n", "utf-8")
    with pytest.raises(DataChangedError):
        train(longer, tmp_path / "run", log=lambda _: None)
    notes.write_text(text, "utf-8")  # a new modification time alone does not matter
    image = next(data.parent.rglob("*3.png"))
    pixels = image.read_bytes()
    Image.new("RGB", (32, 32), "red").save(image)
    with pytest.raises(DataChangedError) as caught:
        train(longer, tmp_path / "run", log=lambda _: None)
    assert "images" in caught.value.what
    image.write_bytes(pixels)
    train(longer, tmp_path / "run", log=lambda _: None)


def test_an_image_encoder_becomes_a_detector_with_new_classes(scenes, tmp_path):
    spec = preset_spec("vit-base-patch16-224", image_size=(32, 32), num_labels=5, **TINY)
    save(Bundle(model=build_initialized(spec)), tmp_path / "encoder")
    request = recipe(scenes, "detect-yolos", steps=2, lr_factors={"encoder": 0.0}, freeze=["embed.patch"])
    request["model"] = {"folder": str(tmp_path / "encoder")}
    trained = train(request, tmp_path / "run", log=lambda _: None)
    before, after = load(tmp_path / "encoder").model, trained.model
    assert torch.equal(before.embed.patch.weight, after.embed.patch.weight)  # frozen
    name = "encoder.blocks.0.self_attn.q_proj.weight"
    assert torch.equal(before.state_dict()[name], after.state_dict()[name])  # learning rate 0
    assert after.spec.head.num_labels == 2 and after.spec.input.suffix == after.spec.head.num_queries
    request["training"] |= {"lr_factors": {"backbone": 0.1}, "freeze": []}
    with pytest.raises(UnknownNameError):
        train(request, tmp_path / "other", log=lambda _: None)


@pytest.mark.parametrize("family", ["yolos", "detr"])
def test_a_detector_gets_more_queries_if_images_have_more_objects(scenes, tmp_path, family, monkeypatch):
    monkeypatch.setattr(object_job, "SAMPLED_IMAGES", 1)  # all images count, not only sampled ones
    torch.manual_seed(0)
    base = Bundle(model=glassformer.tiny(family, num_queries=2))
    save(base, tmp_path / "base")
    options = recipe(scenes, "detect-yolos") | {"model": {"folder": str(tmp_path / "base")}}
    job = create_job(parse_recipe(options), tmp_path / "run", lambda _: None)
    job.prepare_data()
    assert job.most_objects == 3
    detector = job.build()
    assert count_queries(detector.spec) == 5
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        boxes = detector.model.eval()(images).boxes
    assert boxes.shape == (1, 5, 4)
    old, new = (dict(model.named_parameters()) for model in (base.model, detector.model))
    name = "embed.suffix" if family == "yolos" else "tgt_embed.position"
    assert torch.equal(new[name][..., :2, :], old[name])
    assert not torch.equal(new[name][..., 2:4, :], old[name])
    assert (new[name][..., 2:4, :] - old[name]).abs().max() < old[name].abs().max()


@pytest.mark.parametrize("family", ["yolos", "detr"])
def test_the_number_of_queries_is_set_by_the_recipe(scenes, tmp_path, family):
    save(Bundle(model=glassformer.tiny(family, num_queries=4)), tmp_path / "base")
    folder = str(tmp_path / "base")
    model, messages = {"folder": folder, "num_queries": 9, "d_model": 64}, []
    options = recipe(scenes, "detect-yolos") | {"model": model}
    job = create_job(parse_recipe(options), tmp_path / "run", messages.append)
    job.check_model()
    assert "model.d_model" in messages[0] and "num_queries" not in messages[0]  # the folder has its own width
    job.prepare_data()
    assert count_queries(job.build().spec) == 9
    for wrong in (3, 0, "many", 4.5, True):
        options["model"] = {"folder": folder, "num_queries": wrong}
        with pytest.raises(InvalidValueError) as caught:
            train(options, tmp_path / "wrong", log=lambda _: None)
        assert caught.value.name == "model.num_queries"


def test_the_queries_of_a_new_detection_head_are_set_by_the_recipe(scenes, tmp_path):
    spec = preset_spec("vit-base-patch16-224", image_size=(32, 32), num_labels=5, **TINY)
    save(Bundle(model=build_initialized(spec)), tmp_path / "encoder")
    options = recipe(scenes, "detect-yolos")
    options["model"] = {"folder": str(tmp_path / "encoder"), "num_queries": 7}
    job = create_job(parse_recipe(options), tmp_path / "run", lambda _: None)
    job.check_model()
    job.prepare_data()
    assert count_queries(job.build().spec) == 7


def test_evaluation_does_not_add_queries(scenes, tmp_path):
    train(recipe(scenes, "detect-yolos", steps=1), tmp_path / "run", log=lambda _: None)
    options = recipe(scenes, "detect-yolos") | {"model": {"folder": str(tmp_path / "run/model")}}
    job = create_job(parse_recipe(options), tmp_path / "evaluation", lambda _: None)
    job.adopt_base_settings()
    job.prepare_data()
    job.most_objects = 100
    assert count_queries(job.build().spec) == 8


def test_semantic_segmentation_is_measured_by_mean_iou(scenes, tmp_path):
    request = recipe(scenes, "segment-pixels", data={"segmentation": "semantic"}, lr=2e-3)
    train(request, tmp_path / "run", log=lambda _: None)
    metrics = evaluate_files(tmp_path / "run/model", [str(scenes)], log=lambda _: None).validation.metrics
    assert set(metrics) == {"loss", "miou", "pixel_accuracy"} and metrics["miou"] > 0.5


def test_a_wrong_model_or_data_without_masks_is_an_error(scenes, tmp_path):
    request = recipe(scenes, "detect-yolos")
    request["model"] = {"preset": "bert"}
    with pytest.raises(UnsupportedError):
        train(request, tmp_path / "bert", log=lambda _: None)
    boxes = tmp_path / "boxes.json"
    boxes.write_text(scenes.read_text("utf-8").replace('"segmentation"', '"unused"'), "utf-8")
    request = recipe(boxes, "segment-pixels", data={"images": str(scenes.parent / "images")})
    with pytest.raises(MissingValueError):
        train(request, tmp_path / "boxes", log=lambda _: None)
    request = recipe(scenes, "segment-pixels", data={"mask_loss": "focal"})  # it has no object queries
    with pytest.raises(UnsupportedError):
        train(request, tmp_path / "focal", log=lambda _: None)
    data = {"segmentation": "semantic", "copy_paste_prob": 0.5}  # which has no objects
    with pytest.raises(UnsupportedError):
        train(recipe(scenes, "segment-pixels", data=data), tmp_path / "paste", log=lambda _: None)


def rename_classes(scenes: Path, out: Path, **names: str) -> Path:
    """Write the scenes with other names of classes."""
    text = scenes.read_text("utf-8")
    for old, new in names.items():
        text = text.replace(f'"name": "{old}"', f'"name": "{new}"').replace(
            f'"name":"{old}"', f'"name":"{new}"'
        )
    out.write_text(text, "utf-8")
    return out


@pytest.mark.parametrize("segmentation", [None, "semantic"])
def test_evaluation_reports_classes_that_the_model_does_not_know(scenes, tmp_path, segmentation):
    case = "segment-pixels" if segmentation else "detect-yolos"
    data = {"segmentation": segmentation} if segmentation else {}
    train(recipe(scenes, case, steps=1, data=data), tmp_path / "run", log=lambda _: None)
    images = [f"data.images={scenes.parent / 'images'}"]
    some = rename_classes(scenes, tmp_path / "some.json", bar="pole")
    lines: list[str] = []
    evaluation = evaluate_files(tmp_path / "run/model", [str(some)], overrides=images, log=lines.append)
    poles = sum(
        note.label == "pole"
        for image in read_coco(some, scenes.parent / "images")
        for note in image.annotations
    )
    (line,) = lines
    assert "pole" in line and "square" not in line and f" {poles} " in line
    assert evaluation.validation.metrics["miou" if segmentation == "semantic" else "ap"] >= 0
    none = rename_classes(scenes, tmp_path / "none.json", bar="pole", square="sign")
    with pytest.raises(UnknownNameError) as caught:
        evaluate_files(tmp_path / "run/model", [str(none)], overrides=images, log=lines.append)
    assert {"pole", "sign"} == set(caught.value.name.split(", ")) and "square" in caught.value.hint
    # the file lists a known class, but has no object of it
    content = json.loads(some.read_text("utf-8"))
    (pole,) = (entry["id"] for entry in content["categories"] if entry["name"] == "pole")
    content["annotations"] = [note for note in content["annotations"] if note["category_id"] == pole]
    some.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UnknownNameError):
        evaluate_files(tmp_path / "run/model", [str(some)], overrides=images, log=lines.append)
    if segmentation:
        boxes = tmp_path / "boxes.json"
        boxes.write_text(scenes.read_text("utf-8").replace('"segmentation"', '"unused"'), "utf-8")
        with pytest.raises(MissingValueError) as missing:
            evaluate_files(tmp_path / "run/model", [str(boxes)], overrides=images, log=lines.append)
        assert "evaluate" in missing.value.needed_for


def write_splits(scenes: Path, folder: Path, layout: str) -> Path:
    """Write 16 scenes for training and 8 for validation as YOLO or Pascal VOC."""
    images = read_coco(scenes)
    for n, image in enumerate(images):
        split = "train" if n < 16 else "val"
        home = folder / ("JPEGImages" if layout == "voc" else f"images/{split}")
        notes = folder / ("Annotations" if layout == "voc" else f"labels/{split}")
        lists = folder / "ImageSets/Main"
        for parent in (home, notes, lists):
            parent.mkdir(parents=True, exist_ok=True)
        image.load().save(home / f"{n}.png")
        if layout == "voc":
            objects = ""
            for note in image.annotations:
                left, top, right, bottom = note.box
                sides = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
                box = "".join(f"<{name}>{side}</{name}>" for name, side in sides.items())
                objects += f"<object><name>{note.label}</name><bndbox>{box}</bndbox></object>"
            text = f"<annotation><filename>{n}.png</filename>{objects}</annotation>"
            (notes / f"{n}.xml").write_text(text)
            with (lists / f"{split}.txt").open("a") as file:
                file.write(f"{n}\n")
        else:
            rows = []
            for note in image.annotations:
                x, y, wide, high = fractional_boxes([note], image.width, image.height)[0].tolist()
                rows.append(f"{images.classes.index(note.label)} {x} {y} {wide} {high}")
            (notes / f"{n}.txt").write_text("\n".join(rows))
    if layout == "yolo":
        names = ", ".join(images.classes)
        (folder / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: [{names}]\n")
    return folder


@pytest.mark.parametrize("layout", ["yolo", "voc"])
def test_evaluation_without_a_test_split_reads_the_validation_split(scenes, tmp_path, layout):
    data = write_splits(scenes, tmp_path / "data", layout)
    train(recipe(data, "detect-yolos", steps=1), tmp_path / "run", log=lambda _: None)
    lines: list[str] = []
    evaluation = evaluate_files(tmp_path / "run/model", [str(data)], log=lines.append)
    assert "val" in lines[0] and "8" in lines[0] and evaluation.validation.metrics["loss"] > 0
    image = next(data.rglob("20.png"))
    image.write_bytes(image.read_bytes()[:-40])  # its header is valid
    evaluate_files(tmp_path / "run/model", [str(data)], log=lines.append)
    assert "7" in lines[1] and "8" not in lines[1]


@pytest.mark.parametrize("layout", ["yolo", "voc"])
def test_training_uses_the_validation_split_of_the_data(scenes, tmp_path, layout):
    data = write_splits(scenes, tmp_path / "data", layout)
    assert count_images(data) == (16, 8)
    assert count_images(data, valid=0.25)[0] < 16  # a fraction is held out of the training images
    if layout == "yolo":  # validation images that are also for training
        config = data / "data.yaml"
        config.write_text(config.read_text().replace("images/val", "images/train"))
    else:
        (data / "ImageSets/Main/val.txt").unlink()
    assert sum(count_images(data)) == 16
    assert sum(count_images(scenes)) == 24


@pytest.mark.parametrize("layout", ["yolo", "voc"])
def test_each_split_is_read_once_and_its_bad_images_are_counted(scenes, tmp_path, monkeypatch, layout):
    data = write_splits(scenes, tmp_path / "data", layout)
    for folder, number in (("train", 3), ("val", 20)):
        home = data / ("JPEGImages" if layout == "voc" else f"images/{folder}")
        (home / f"{number}.png").write_bytes(b"no image")
    splits = []

    def read(path: Path, split: str, **options: Any) -> AnnotationSet:
        splits.append(split)
        return find_annotations(path, split, **options)

    monkeypatch.setattr(object_job, "find_annotations", read)
    request = parse_recipe({"job": "detect", "data": {"train": [str(data)]}})
    job = create_job(request, tmp_path, lambda _: None)
    job.prepare_data()
    assert splits == ["train", "val"]
    assert (job.facts["training images"], job.facts["validation images"]) == (15, 7)
    assert all(name in job.facts["skipped"] for name in ("3.", "20."))


def count_images(data: Path, job: str = "detect", **section: Any) -> tuple[int, int]:
    """Return the number of images for training and for validation; the filled-in recipe gives the same."""
    request = parse_recipe({"job": job, "data": {"train": [str(data)], **section}})
    counts = []
    for _ in range(2):
        with TemporaryDirectory() as folder:
            prepared = create_job(request, Path(folder), lambda _: None)
            prepared.prepare_data()
        counts.append((prepared.facts["training images"], prepared.facts["validation images"]))
        request = prepared.recipe
    assert counts[0] == counts[1]
    return counts[0]


def test_masks_of_classes_do_not_train_a_detector(scenes, tmp_path):
    for split, rows in (("train", range(6)), ("val", range(6, 9))):
        for bits, dtype in ((8, np.uint8), (16, np.uint16)):
            folder = tmp_path / f"bits{bits}"
            (folder / split).mkdir(parents=True)
            (folder / f"{split}_mask").mkdir()
            (folder / "classes.txt").write_text("background\nshape\n")
            for n in rows:
                image = read_coco(scenes)[n]
                image.load().save(folder / split / f"{n}.png")
                numbers = np.zeros((image.height, image.width), dtype)
                for number, note in enumerate(image.annotations, 1):
                    numbers[note.mask] = number if bits == 16 else 1
                Image.fromarray(numbers).save(folder / f"{split}_mask" / f"{n}.png")
    with pytest.raises(UnsupportedError):
        count_images(tmp_path / "bits8")
    assert count_images(tmp_path / "bits8", "segment") == (6, 3)
    assert count_images(tmp_path / "bits16") == (6, 3)


def write_class_masks(scenes: Path, folder: Path, classes: str, number: int) -> Path:
    """Write scenes with 8-bit masks; pixels outside of objects are ignored, objects have the number."""
    for split, rows in (("train", range(6)), ("val", range(6, 9))):
        (folder / split).mkdir(parents=True)
        (folder / f"{split}_mask").mkdir()
        for n in rows:
            image = read_coco(scenes)[n]
            image.load().save(folder / split / f"{n}.png")
            numbers = np.full((image.height, image.width), 255, np.uint8)
            for note in image.annotations:
                numbers[note.mask] = number
            Image.fromarray(numbers).save(folder / f"{split}_mask" / f"{n}.png")
    (folder / "classes.txt").write_text(classes)
    return folder


def test_semantic_segmentation_needs_two_classes(scenes, tmp_path):
    data = write_class_masks(scenes, tmp_path / "data", "shape\n", 0)
    for section in ({}, {"segmentation": "semantic"}):
        with pytest.raises(UnsupportedError):
            count_images(data, "segment", **section)
    assert count_images(data, "segment", segmentation="instance") == (6, 3)


def test_a_wrong_class_in_a_validation_mask_is_an_error_before_training(scenes, tmp_path):
    data = write_class_masks(scenes, tmp_path / "data", "sky\nshape\n", 1)
    assert count_images(data, "segment") == (6, 3)
    Image.fromarray(np.full((32, 32), 7, np.uint8)).save(data / "val_mask/8.png")
    with pytest.raises(InvalidValueError) as caught:
        count_images(data, "segment")
    assert caught.value.value == 7


def test_focal_loss_of_masks_trains(scenes, tmp_path):
    """The first step has another loss than with cross-entropy, and the loss falls."""
    rows = {}
    for mask_loss, steps in (("cross_entropy", 1), ("focal", 12)):
        training = {"steps": steps, "lr": 2e-3, "logging_steps": 1}
        request = recipe(scenes, "segment-queries", data={"mask_loss": mask_loss}, **training)
        train(request, tmp_path / mask_loss, log=lambda _: None)
        lines = (tmp_path / mask_loss / "metrics.jsonl").read_text("utf-8").splitlines()
        rows[mask_loss] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    assert rows["focal"][0] != rows["cross_entropy"][0]
    assert rows["focal"][-1] < rows["focal"][0]


def test_pasted_boxes_surround_pasted_pixels():
    """Each image has its own color, so a pasted object of the other image can be found by its color."""
    colors = torch.tensor([0.2, 0.8])
    images = colors[:, None, None, None].expand(2, 3, 64, 96).clone()
    labels = torch.tensor([[1, NO_OBJECT], [2, 0]])
    boxes = torch.tensor([[[0.5, 0.5, 0.1, 0.1], [0, 0, 0, 0]], [[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.2, 0.1]]])
    chosen = torch.tensor([[False, False], [True, False]])
    pasted, new_labels, new_boxes = paste_boxes(images, labels, boxes, chosen)
    assert new_labels.tolist() == [[NO_OBJECT, NO_OBJECT, 2, NO_OBJECT], [2, 0, NO_OBJECT, NO_OBJECT]]
    assert torch.equal(new_boxes[0, 2], boxes[1, 0]) and torch.equal(pasted[1], images[1])
    y, x = (pasted[0, 0] > 0.5).nonzero().unbind(1)
    corners = torch.stack((x.min() / 96, y.min() / 64, (x.max() + 1) / 96, (y.max() + 1) / 64))
    torch.testing.assert_close(corners, torch.tensor([0.25, 0.25, 0.75, 0.75]), rtol=0, atol=0.03)
    area = (pasted[0, 0] > 0.5).float().mean()
    assert float(area) == pytest.approx(0.25 * np.pi / 4, rel=0.1)  # an ellipse


def test_pasted_segments_take_their_pixels_along():
    images = torch.rand(2, 3, 8, 8)
    segments = torch.full((2, 8, 8), NO_OBJECT, dtype=torch.int16)
    segments[0, 2:4, 2:4], segments[1, 1:6, 1:6], segments[1, 7, 7] = 0, 0, 1
    labels = torch.tensor([[3, NO_OBJECT], [4, 5]])
    chosen = torch.tensor([[False, False], [True, False]])
    pasted, new_labels, new_segments = paste_segments(images, labels, segments, chosen)
    assert new_labels.tolist() == [[3, NO_OBJECT, 4, NO_OBJECT], [4, 5, NO_OBJECT, NO_OBJECT]]
    mask = segments[1] == 0
    assert torch.equal(pasted[0], torch.where(mask, images[1], images[0])) and torch.equal(
        pasted[1], images[1]
    )
    assert torch.equal(new_segments[0] == 2, mask) and torch.equal(new_segments[1], segments[1])
    assert not (new_segments[0] == 0).any()  # the object of the first image is covered


def test_examples_are_resized_exactly(scenes):
    images = read_coco(scenes)
    examples = AnnotatedExamples(images, images.classes, size=(64, 32), targets="instances")
    batch = examples.batch(np.array([0, 5]), epoch=0)
    for n, row in enumerate((0, 5)):
        for number, note in enumerate(images[row].annotations):
            assert batch["labels"][n, number] == images.classes.index(note.label)
            left, top, right, bottom = np.array(note.box) / 32
            expected = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
            assert batch["boxes"][n, number].tolist() == pytest.approx(expected)
            assert (batch["segments"][n] == number).sum() == 2 * note.mask.sum()  # twice as high
    assert batch["images"].shape == (2, 3, 64, 32)
    classes = AnnotatedExamples(images, ["bar"], size=(32, 32), targets="classes").batch(
        np.array([0]), epoch=0
    )
    assert set(np.unique(classes["segments"])) <= {IGNORE_INDEX, 0} and set(classes) == {"images", "segments"}


def test_augmented_boxes_enclose_the_augmented_objects():
    torch.manual_seed(1)
    segments = torch.full((64, 48, 64), NO_OBJECT)
    segments[:, 10:20, 30:50] = 0
    boxes = torch.tensor([40 / 64, 15 / 48, 20 / 64, 10 / 48]).expand(64, 1, 4)
    augment = ObjectAugment(flip_prob=0.5, vertical_flip_prob=0.5, scale_jitter=0.5)
    factor, shift = augment.transform(64, torch.device("cpu"))
    moved = move_images((segments[:, None] + 1).float(), factor, shift, "nearest")[:, 0] - 1
    labels, new = move_boxes(torch.zeros(64, 1, dtype=torch.long), boxes, factor, shift)
    visible, masks = segment_masks(moved.long(), torch.zeros(64, 1, dtype=torch.long), 1)
    present = labels[:, 0] != NO_OBJECT
    assert int(present.sum()) > 40 and (visible[present] == 0).all()
    for (x, y, width, height), mask in zip(new[present][:, 0].tolist(), masks[present][:, 0], strict=True):
        rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        found = [columns[0], columns[-1] + 1, rows[0], rows[-1] + 1]
        expected = [(x - width / 2) * 64, (x + width / 2) * 64, (y - height / 2) * 48, (y + height / 2) * 48]
        assert [float(side) for side in found] == pytest.approx(expected, abs=1.01)
    unchanged = replace(augment, flip_prob=0.0, vertical_flip_prob=0.0, scale_jitter=0.0).transform(
        2, torch.device("cpu")
    )
    assert torch.equal(unchanged[0], torch.ones(2, 2)) and not unchanged[1].any()


def test_offsets_lead_back_to_the_objects():
    segments = torch.full((1, 64, 64), NO_OBJECT)
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    discs = [(12, 12, 7), (12, 27, 7), (40, 40, 14), (50, 10, 4)]  # the first two touch
    for n, (row, column, radius) in enumerate(discs):
        segments[0][(y - row) ** 2 + (x - column) ** 2 <= radius**2] = n
    offsets, centers = center_offsets(segments, len(discs))
    assert centers[0].tolist() == [[column, row] for row, column, _ in discs]
    inside = segments[0] != NO_OBJECT
    logits = torch.stack((inside * 6.0 - 3, 3 - inside * 6.0))[None]
    torch.manual_seed(1)
    output = PixelOutput(logits, offsets + torch.randn_like(offsets))
    (found,) = pixel_instances(output, [(128, 128)])  # twice as large
    assert len(found) == len(discs) and all(segment.score > 0.9 for segment in found)
    for segment in found:
        small = segment.mask[::2, ::2]
        overlaps = [((segments[0] == n) & small).sum() / ((segments[0] == n) | small).sum() for n in range(4)]
        assert max(overlaps) > 0.95
    (classes,) = pixel_classes(PixelOutput(logits), [(64, 64)])
    assert ((classes == 0) == inside).all()
    # of an untrained model, every pixel votes for itself: equal votes do not make each pixel an object
    untrained = PixelOutput(torch.tensor([3.0, -3.0])[None, :, None, None].expand(1, 2, 64, 64), 0 * offsets)
    (found,) = pixel_instances(untrained, [(64, 64)])
    assert len(found) < 64
