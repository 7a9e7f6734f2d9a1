"""Boxes, masks and labels drawn on images."""

import numpy as np
import pytest
from PIL import Image

from glassformer.data.annotations import Annotation
from glassformer.plotting.annotated_image import draw_annotations
from glassformer.plotting.fonts import find_font

MASK = np.zeros((240, 320), bool)
MASK[80:160, 100:220] = True


@pytest.mark.parametrize("background", ["black", "white"])
def test_masks_boxes_and_labels_are_visible(background):
    image = Image.new("RGB", (320, 240), background)
    things = [
        Annotation("cat", (100, 80, 220, 160), MASK, 0.8),
        Annotation("dog", (4, 180, 60, 236), None, 0.5),
    ]
    before = np.asarray(image).astype(int)
    changed = np.abs(np.asarray(draw_annotations(image, things)).astype(int) - before).max(-1)
    assert (np.asarray(image) == before).all()  # a copy
    assert (changed[MASK] > 60).mean() > 0.9  # the mask is tinted
    edge = changed[184:232, 4:6].max(1)
    assert (edge > 60).all() and changed[200:220, 20:50].max() == 0  # a box has an edge and no filling
    assert (changed[66:80, 102:130] > 60).mean() > 0.5  # the label above its box
    assert changed[:40].max() == 0


def test_small_images_are_enlarged():
    image = Image.new("RGB", (80, 60))
    mask = np.zeros((60, 80), bool)
    mask[30:50, 20:60] = True
    picture = np.asarray(draw_annotations(image, [Annotation("cat", (20, 30, 60, 50), mask)]))
    assert picture.shape == (240, 320, 3)
    assert (picture[122:198, 82:238].max(-1) > 60).all()  # the mask, four times as large
    assert picture[204:].max() == 0 and picture[:, 244:].max() == 0


def test_objects_at_the_border_and_without_boxes():
    image = Image.new("RGB", (40, 30))
    full = np.ones((30, 40), bool)
    things = [
        Annotation("한글 $ 名", (0, 0, 40, 30), None, 1.0),
        Annotation("all", None, full),
        Annotation("none", None, ~full),
        Annotation("image", None, None, 0.3),
        Annotation("thin", (39.6, 29.7, 40, 30), None, 0.1),
    ]
    assert draw_annotations(image, things).size == (280, 210)
    large = Image.new("RGB", (400, 30))
    assert draw_annotations(large, []).tobytes() == large.tobytes()
    assert find_font("cat $5")[1] == "cat $5"
