"""Detection and segmentation metrics against pycocotools, faster-coco-eval and torchmetrics."""

import contextlib
import importlib
import io

import numpy as np
import pytest
import torch

from glassformer.data.annotations import Annotation
from glassformer.metrics.detection import AveragePrecision, Objects, mask_iou, objects_of
from glassformer.metrics.segmentation import PanopticQuality, PixelConfusion

CLASSES, SIDE, IMAGES = 3, 160, 14
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


def draw_objects(rng: np.random.Generator, count: int, scored: bool) -> Objects:
    """Random rectangles of all COCO sizes, with equal scores and boxes among them, and crowds."""
    size = rng.choice([12, 50, 110], count)[:, None] * rng.uniform(0.6, 1.2, (count, 2))
    low = np.floor(rng.uniform(0, SIDE - size))
    boxes = np.concatenate((low, np.ceil(np.minimum(low + size, SIDE))), 1)
    boxes[count // 2 :: 5] = boxes[0] if count else 0
    masks = np.zeros((count, SIDE, SIDE), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
        mask[top:bottom, left:right] = True
        mask[top : top + 3] = False  # so that masks differ from boxes
    return Objects(
        labels=rng.integers(0, CLASSES, count),
        boxes=boxes,
        scores=rng.integers(1, 6, count) / 5 if scored else None,
        masks=masks,
        crowd=None if scored else rng.random(count) < 0.15,
    )


def predict(rng: np.random.Generator, true: Objects, num_wrong: int) -> Objects:
    """Shifted copies of the annotated objects, and some that are wrong."""
    boxes, masks = true.boxes.copy(), true.masks.copy()
    for n in range(len(boxes)):
        shift = rng.integers(-3, 4, 2)
        boxes[n] += np.tile(shift, 2)
        masks[n] = np.roll(masks[n], tuple(shift[::-1]), (0, 1))
    right = Objects(true.labels, boxes, rng.integers(1, 6, len(boxes)) / 5, masks)
    wrong = draw_objects(rng, num_wrong, scored=True)
    if num_wrong > 100:  # of one class, before the right ones
        wrong = wrong._replace(labels=np.zeros_like(wrong.labels), scores=np.ones_like(wrong.scores))
    parts = [np.concatenate(pair) for pair in zip(right[:4], wrong[:4], strict=True)]
    return Objects(*parts)


def draw_images() -> list[tuple[Objects, Objects]]:
    rng = np.random.default_rng(5)
    pairs = []
    for n in range(IMAGES):
        true = draw_objects(rng, 0 if n == 3 else int(rng.integers(1, 12)), scored=False)
        # one image has more predictions of a class than the 100 that COCO counts
        num_wrong = 120 if n == 8 else int(rng.integers(0, 4))
        predicted = predict(rng, true, num_wrong) if n != 6 else draw_objects(rng, 0, scored=True)
        pairs.append((predicted, true))
    return pairs


def coco_scores(pairs: list[tuple[Objects, Objects]], package: str, masks: bool) -> list[float]:
    """Scores of the library: AP, AP50, AP75, small, medium, large."""
    if package == "pycocotools":
        coco, evaluation = (importlib.import_module(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
        encoding, COCO, COCOeval = importlib.import_module("pycocotools.mask"), coco.COCO, evaluation.COCOeval
    else:
        faster = importlib.import_module("faster_coco_eval")
        encoding = importlib.import_module("faster_coco_eval.core.mask")
        COCO, COCOeval = faster.COCO, faster.COCOeval_faster
    annotations, results = [], []
    for image, (predicted, true) in enumerate(pairs, 1):
        for objects, target in ((true, annotations), (predicted, results)):
            for n, box in enumerate(objects.boxes):
                rle = encoding.encode(np.asfortranarray(objects.masks[n].astype(np.uint8)))
                width, height = box[2:] - box[:2]
                entry = {"image_id": image, "category_id": int(objects.labels[n]) + 1, "segmentation": rle}
                entry["bbox"] = [*box[:2].tolist(), float(width), float(height)]
                if objects is true:
                    area = objects.masks[n].sum() if masks else width * height
                    entry |= {"id": len(target) + 1, "area": float(area), "iscrowd": int(objects.crowd[n])}
                else:
                    entry["score"] = float(objects.scores[n])
                    del entry["bbox" if masks else "segmentation"]
                target.append(entry)
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": n + 1, "height": SIDE, "width": SIDE} for n in range(len(pairs))],
        "annotations": annotations,
        "categories": [{"id": n + 1, "name": str(n)} for n in range(CLASSES)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        run = COCOeval(truth, truth.loadRes(results), "segm" if masks else "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [float(value) for value in run.stats[:6]]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("package", ["pycocotools", "faster_coco_eval"])
def test_average_precision_equals_coco(package, masks):
    pytest.importorskip(package)
    pairs = draw_images()
    precision = AveragePrecision(CLASSES, masks=masks)
    for predicted, true in pairs:
        precision.add(predicted, true)
    scores = precision.scores()
    assert [scores[name] for name in NAMES] == pytest.approx(coco_scores(pairs, package, masks), abs=1e-6)
    assert 0.2 < scores["ap"] < 0.9 and scores["ap_small"] != scores["ap_large"]
    means = np.nanmean([row["ap"] for row in precision.per_class()])
    assert means == pytest.approx(scores["ap"])


def test_annotations_as_objects():
    mask = np.zeros((4, 4), bool)
    mask[1:3, 1:3] = True
    notes = [Annotation("b", (1, 1, 3, 3), mask, 0.5), Annotation("unknown", (0, 0, 1, 1), mask)]
    objects = objects_of(notes, ["a", "b"])
    assert objects.labels.tolist() == [1] and objects.boxes.tolist() == [[1, 1, 3, 3]]
    assert objects.masks.shape == (1, 4, 4) and objects.scores.tolist() == [0.5]
    assert len(objects_of([], ["a"]).labels) == 0
    assert mask_iou(objects.masks, objects.masks).tolist() == [[1.0]]


def test_mean_iou_and_accuracy_by_hand():
    confusion = PixelConfusion(4)
    confusion.add(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 255, 2]))
    assert confusion.iou()[:3].tolist() == [1 / 2, 2 / 3, 1.0] and np.isnan(confusion.iou()[3])
    assert confusion.scores() == {"miou": pytest.approx((1 / 2 + 2 / 3 + 1) / 3), "pixel_accuracy": 4 / 5}


def test_panoptic_quality_equals_torchmetrics():
    reference = pytest.importorskip("torchmetrics.detection").PanopticQuality
    rng = np.random.default_rng(3)
    things, stuff = {0, 1}, {2, 3}
    theirs = reference(things=things, stuffs=stuff)
    ours = PanopticQuality(4, things=things)
    for _ in range(6):
        blocks = rng.integers(0, 4, (6, 6)), rng.integers(0, 3, (6, 6))
        true = [np.kron(part, np.ones((4, 4), int)) for part in blocks]
        noise = rng.random((24, 24)) < 0.2
        predicted = [
            np.where(noise, rng.integers(0, most, (24, 24)), part)
            for part, most in zip(true, (4, 3), strict=True)
        ]
        ours.add(*predicted, *true)
        theirs.update(*(torch.from_numpy(np.stack(part, -1))[None] for part in (predicted, true)))
    assert ours.scores()["pq"] == pytest.approx(float(theirs.compute()), abs=1e-6)
    assert 0.1 < ours.scores()["pq"] < 0.9
