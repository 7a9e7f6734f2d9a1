"""Writers of annotations, read back by pycocotools and our readers."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glassformer.data.annotation_writers import (
    annotation_to_dict,
    class_map,
    coco_results,
    to_coco,
)
from glassformer.data.annotations import AnnotatedImage, Annotation, find_annotations, read_coco
from glassformer.data.mask_encoding import counts_to_mask, rle_counts
from glassformer.errors import InvalidValueError, UnknownNameError

LEFT, RIGHT = np.zeros((20, 30), bool), np.zeros((20, 30), bool)
LEFT[2:12, 3:18], RIGHT[5:15, 10:25] = True, True
THINGS = (Annotation("cat", (3, 2, 18, 12), LEFT), Annotation("dog", (10, 5, 25, 15), RIGHT, iscrowd=True))
GUESSES = (Annotation("cat", (3, 2, 18, 12), LEFT, 0.9), Annotation("dog", (10, 5, 25, 15), RIGHT, 0.4))


def test_coco_data_set_is_read_back(tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    item = AnnotatedImage(tmp_path / "a.png", 30, 20, THINGS, ("a cat",))
    (tmp_path / "a.json").write_text(json.dumps(to_coco([item], ["dog", "cat"])))
    data = read_coco(tmp_path / "a.json")
    assert data.classes == ("dog", "cat") and data[0].captions == ("a cat",)
    for ours, theirs in zip(data[0].annotations, THINGS, strict=True):
        assert (ours.label, ours.box, ours.iscrowd) == (theirs.label, theirs.box, theirs.iscrowd)
        assert (ours.mask == theirs.mask).all()


def test_results_are_read_by_pycocotools(tmp_path):
    reference = pytest.importorskip("pycocotools.coco")
    item = AnnotatedImage(Path("a.png"), 30, 20, THINGS[:1])
    (tmp_path / "truth.json").write_text(json.dumps(to_coco([item], ["dog", "cat"])))
    (tmp_path / "results.json").write_text(json.dumps(coco_results([(1, GUESSES)], {"dog": 1, "cat": 2})))
    loaded = reference.COCO(tmp_path / "truth.json").loadRes(str(tmp_path / "results.json"))
    for row, thing in zip(loaded.dataset["annotations"], GUESSES, strict=True):
        assert (loaded.annToMask(row) == thing.mask).all() and row["score"] == thing.score
        x, y, width, height = row["bbox"]
        assert (x, y, x + width, y + height) == thing.box
    with pytest.raises(UnknownNameError):
        coco_results([(1, GUESSES)], {"dog": 1})


def test_empty_masks_are_not_written():
    """A row without a box would make pycocotools fail."""
    empty = Annotation("cat", None, np.zeros((20, 30), bool), 0.1)
    assert len(coco_results([(1, (empty, *GUESSES))], {"dog": 1, "cat": 2})) == len(GUESSES)


def test_predictions_are_a_valid_ground_truth_for_pycocotools(tmp_path):
    """Annotation tools and evaluations expect area and iscrowd also of predicted objects."""
    reference = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    boxes = tuple(Annotation(thing.label, thing.box, score=thing.score) for thing in GUESSES)
    for things, kind in ((GUESSES, "segm"), (boxes, "bbox")):
        content = to_coco([AnnotatedImage(Path("a.png"), 30, 20, things)], ["dog", "cat"])
        (tmp_path / "found.json").write_text(json.dumps(content))
        truth = reference.COCO(tmp_path / "found.json")
        scores = evaluation.COCOeval(truth, truth.loadRes(content["annotations"]), kind)
        scores.evaluate()
        scores.accumulate()
        scores.summarize()
        assert scores.stats[0] == pytest.approx(1)


def test_json_has_box_score_and_mask():
    values = json.loads(json.dumps(annotation_to_dict(GUESSES[0])))
    assert (values["label"], values["score"], values["box"]) == ("cat", 0.9, [3, 2, 18, 12])
    assert (counts_to_mask(rle_counts(values["mask"], 20, 30), 20, 30) == LEFT).all()


def test_png_masks_are_read_back(tmp_path):
    """The object with the higher score is in front."""
    numbers = class_map(GUESSES, ["dog", "cat"], 20, 30)
    for name in ("images", "masks"):
        (tmp_path / "class" / name).mkdir(parents=True)
    Image.new("RGB", (30, 20)).save(tmp_path / "class" / "images" / "a.png")
    Image.fromarray(numbers).save(tmp_path / "class" / "masks" / "a.png")
    (tmp_path / "class" / "classes.txt").write_text("dog\ncat\n")
    dog, cat = find_annotations(tmp_path / "class")[0].annotations
    assert (dog.label, cat.label) == ("dog", "cat")
    assert (cat.mask == LEFT).all() and (dog.mask == RIGHT & ~LEFT).all()
    with pytest.raises(InvalidValueError):
        class_map([Annotation("cat", (0, 0, 1, 1))], ["cat"], 20, 30)
