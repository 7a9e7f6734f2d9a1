"""Boxes, masks and labels drawn on images."""

import numpy as np
import pytest
from PIL import Image

from glassformer.data.annotations import Annotation
from glassformer.plotting.annotated_image import draw_annotations
from glassformer.plotting.fonts import find_font

MASK = np.zeros((120, 160), bool)
MASK[40:80, 50:110] = True


@pytest.mark.parametrize("background", ["black", "white"])
def test_masks_boxes_and_labels_are_visible(background):
    image = Image.new("RGB", (160, 120), background)
    things = [Annotation("cat", (50, 40, 110, 80), MASK, 0.8), Annotation("dog", (2, 90, 30, 118), None, 0.5)]
    before = np.asarray(image).astype(int)
    changed = np.abs(np.asarray(draw_annotations(image, things)).astype(int) - before).max(-1)
    assert (np.asarray(image) == before).all()  # a copy
    assert (changed[MASK] > 60).mean() > 0.9  # the mask is tinted
    edge = changed[92:116, 2:4].max(1)
    assert (edge > 60).all() and changed[100:110, 10:25].max() == 0  # a box has an edge and no filling
    assert (changed[26:40, 51:80] > 60).mean() > 0.5  # the label above its box
    assert changed[:20].max() == 0


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
    assert draw_annotations(image, things).size == (40, 30)
    assert draw_annotations(image, []).tobytes() == image.tobytes()
    assert find_font("cat $5")[1] == "cat $5"
