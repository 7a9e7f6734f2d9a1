"""Annotated images for training: prepared folders, targets and augmentation."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from glassformer.data.annotations import mask_to_box, read_coco
from glassformer.data.detection_set import (
    NO_OBJECT,
    DetectionAugment,
    DetectionExamples,
    DetectionSet,
    prepare_detection,
)
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.mask_encoding import encode_rle
from glassformer.data.row_errors import RowErrors
from glassformer.errors import FileExistsAlreadyError, InvalidValueError, UnknownNameError

PADDED = ImageProcessor.from_dict(
    {"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 60, "longest_edge": 100}}
)
EXACT = ImageProcessor(size={"height": 64, "width": 48})
JITTER = DetectionAugment(scale=(0.4, 2.0), color=0.3, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fourteen images, two of them equal and one broken, with bright rectangles as objects."""
    root = tmp_path_factory.mktemp("set")
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(14):
        width, height = (int(side) for side in rng.integers(50, 120, 2))
        if number == 1:
            width, height = images[0]["width"], images[0]["height"]
        images.append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        picture = Image.new("RGB", (width, height), (0, 0, 0))
        for index in range(3 if number > 1 else 2):
            x, y = int(rng.integers(0, width - 30)), int(rng.integers(0, height - 30))
            x, y = (x, y) if number > 1 else (5, 7)
            ImageDraw.Draw(picture).rectangle((x, y, x + 19, y + 14), fill=(0, 0, 60 * index + 100))
            mask = np.zeros((height, width), bool)
            mask[y : y + 15, x : x + 20] = True
            thing = {
                "image_id": number,
                "category_id": index + 1,
                "bbox": [x, y, 20, 15],
                "iscrowd": index == 2,
            }
            annotations.append({**thing, "segmentation": encode_rle(mask)})
        picture.save(root / f"{number}.png")
    (root / "13.png").write_bytes(b"not an image")
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "coco.json").write_text(json.dumps(content))
    errors = RowErrors()
    prepare_detection(read_coco(root / "coco.json"), root / "ready", errors=errors)
    assert errors.count == 1 and errors.first[0].file == str(root / "13.png")
    return root


def test_prepared_folder_holds_the_annotations(folder):
    data, source = DetectionSet(folder / "ready"), read_coco(folder / "coco.json")
    assert len(data) == 13 and data.classes == ("a", "b", "c") and data.has_masks
    assert data.label_counts().tolist() == [13, 13, 11]
    for row in range(13):
        assert (data.pixels(row) == np.asarray(source[row].load())).all()
        for ours, theirs in zip(data.annotations(row), source[row].annotations, strict=True):
            assert (ours.label, ours.box, ours.iscrowd) == (theirs.label, theirs.box, theirs.iscrowd)
            assert (ours.mask == theirs.mask).all()
    with pytest.raises(FileExistsAlreadyError):
        prepare_detection(source, folder / "ready", errors=RowErrors())
    with pytest.raises(UnknownNameError):
        prepare_detection(source, folder / "other", errors=RowErrors(), classes=["a"])
    small = prepare_detection(source, folder / "small", errors=RowErrors(), longest_edge=40)
    assert small.sizes.max() == 40


def test_identical_images_are_in_one_split(folder):
    data = DetectionSet(folder / "ready")
    for seed in range(20):
        train, valid = data.split(0.3, seed=seed)
        assert len(train) and len(valid) and sorted([*train, *valid]) == list(range(13))
        assert (0 in train) == (1 in train)


def test_images_without_augmentation_are_those_of_inference(folder):
    data = DetectionSet(folder / "ready")
    rows = np.arange(5)
    for processor in (PADDED, EXACT):
        batch = DetectionExamples(data, processor).batch(rows, epoch=0)
        expected = processor([Image.fromarray(data.pixels(row)) for row in rows])
        assert (batch["inputs"] == expected.pixels.numpy()).all()
        assert ("pixel_mask" in batch) == (expected.pixel_mask is not None)
        for row in rows:
            real = [thing for thing in data.annotations(row) if not thing.iscrowd]
            height, width = data.sizes[row]
            corners = np.array([thing.box for thing in real]) / [width, height, width, height]
            boxes = np.hstack([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]])
            assert batch["labels"][row].tolist() == [0, 1]  # crowds are left out
            assert batch["boxes"][row] == pytest.approx(boxes, abs=1e-6)


@pytest.mark.parametrize("processor", [PADDED, EXACT], ids=["padded", "exact"])
def test_boxes_masks_and_pixels_move_together(folder, processor):
    data = DetectionSet(folder / "ready")
    examples = DetectionExamples(
        data, processor, augment=DetectionAugment(scale=(0.4, 2.0), seed=3), masks=True
    )
    seen = 0
    for epoch in range(8):
        batch = examples.batch(np.arange(13), epoch=epoch)
        blue = batch["inputs"][:, 2] * processor.image_std[2] + processor.image_mean[2]
        for row in range(13):
            height, width = 64, 48
            if "pixel_mask" in batch:
                height, width = (int(batch["pixel_mask"][row].any(axis).sum()) for axis in (1, 0))
            for label, box, mask in zip(
                batch["labels"][row], batch["boxes"][row], batch["masks"][row], strict=True
            ):
                if label == NO_OBJECT:
                    assert not mask.any() and not box.any()
                    continue
                center, half = box[:2], box[2:] / 2
                edges = np.concatenate([center - half, center + half]) * [width, height, width, height]
                assert np.abs(edges - mask_to_box(mask)).max() < 1.01
                inner = (blue[row] > 0.3)[mask].mean()  # the object's own pixels, up to overlaps and blur
                seen += inner > 0.8
    assert seen > 120


@pytest.mark.parametrize("augment", [None, JITTER])
def test_batches_depend_only_on_seed_epoch_and_row(folder, augment):
    examples = DetectionExamples(DetectionSet(folder / "ready"), EXACT, augment=augment, masks=True)
    whole = examples.batch(np.arange(13), epoch=2)
    again = DetectionExamples(DetectionSet(folder / "ready"), EXACT, augment=augment, masks=True)
    part = again.batch(np.array([7, 3]), epoch=2)
    assert (part["inputs"] == whole["inputs"][[7, 3]]).all()
    count = part["labels"].shape[1]
    for name in ("labels", "boxes", "masks"):
        assert (part[name] == whole[name][[7, 3], :count]).all()
    other = examples.batch(np.arange(13), epoch=3)["inputs"]
    assert (other == whole["inputs"]).all() == (augment is None)


def test_bad_augmentation_is_refused():
    for options in ({"flip": 2}, {"scale": (0.0, 1.0)}, {"scale": (2.0, 1.0)}, {"color": -1}):
        with pytest.raises(InvalidValueError):
            DetectionAugment(**options)
