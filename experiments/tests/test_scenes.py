"""Composed scenes: exact masks and boxes, repeatable by index, true captions."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.scenes import (
    LANGUAGES,
    NO_LABEL,
    CutOuts,
    SceneComposer,
    SceneLayout,
    SceneOptions,
    digit_cutouts,
    read_emoji,
    write_scenes,
)
from glassformer.data.annotations import read_coco
from glassformer.errors import FileMissingError, InvalidValueError


def shapes() -> CutOuts:
    """A red square, and a picture whose left half is opaque blue."""
    images = np.zeros((2, 64, 64, 4), np.uint8)
    images[0] = (255, 0, 0, 255)
    images[1, :, :32] = (0, 0, 255, 255)
    names = tuple({language: f"{name}-{language}" for language in LANGUAGES} for name in ("square", "half"))
    return CutOuts(images=images, labels=np.array([0, 1]), names=names)


def one_object(cutout: int, *, angle: float = 0.0, mirror: bool = False) -> SceneLayout:
    return SceneLayout(
        cutout=np.array([[cutout, NO_LABEL]]),
        center=np.array([[[0.25, 0.5], [0.5, 0.5]]], np.float32),
        scale=np.array([[0.25, 0.25]], np.float32),
        angle=np.array([[angle, 0.0]], np.float32),
        mirror=np.array([[mirror, False]]),
        color=np.zeros((1, 2), np.int64),
        background=np.zeros((1, 119), np.float32),
    )


@pytest.mark.parametrize(
    ("cutout", "angle", "mirror", "box"),
    [
        (0, 0.0, False, (8, 24, 24, 40)),
        (1, 0.0, False, (8, 24, 16, 40)),
        (1, 0.0, True, (16, 24, 24, 40)),
        (1, np.pi / 2, False, (8, 24, 24, 32)),  # clockwise, since y points down
    ],
)
def test_masks_and_boxes_are_exact(cutout, angle, mirror, box):
    composer = SceneComposer(shapes(), SceneOptions(size=64, max_objects=2))
    batch = composer.render(one_object(cutout, angle=angle, mirror=mirror))
    left, top, right, bottom = box
    expected = np.zeros((64, 64), bool)
    expected[top:bottom, left:right] = True
    assert (batch.masks[0, 0].numpy() == expected).all()
    center = [(left + right) / 128, (top + bottom) / 128, (right - left) / 64, (bottom - top) / 64]
    assert batch.boxes[0, 0].tolist() == pytest.approx(center)
    assert batch.labels.tolist() == [[cutout, NO_LABEL]]
    assert not batch.boxes[0, 1].any() and not batch.masks[0, 1].any()
    inside = batch.images[0][:, top + 2 : bottom - 2, left + 2 : right - 2]
    assert torch.allclose(inside[2 * cutout], torch.ones(()))  # red, or blue


def test_a_scene_depends_only_on_seed_and_index():
    options = SceneOptions(size=32)
    composer = SceneComposer(shapes(), options, seed=3)
    together = composer.batch([7, 100, 9])
    alone = SceneComposer(shapes(), options, seed=3).batch([100])
    assert all((a[1] == b[0]).all() for a, b in zip(together, alone, strict=True))
    assert not torch.equal(SceneComposer(shapes(), options, seed=4).batch([100]).images, alone.images)


def test_visible_masks_are_disjoint_and_overlap_is_limited():
    composer = SceneComposer(shapes(), SceneOptions(size=64, max_overlap=0.1, max_rotation=0), seed=1)
    layout = composer.layout(np.arange(64))
    batch = composer.render(layout)
    assert int(batch.masks.sum(1).max()) == 1
    assert set(batch.labels[batch.labels >= 0].tolist()) == {0, 1}
    square = layout.cutout == 0
    area = (layout.scale * 64) ** 2
    visible = batch.masks.flatten(2).sum(-1).numpy() / area
    assert visible[square].min() > 1 - 7 * 0.1  # at most seven others cover a tenth each
    free = SceneComposer(shapes(), SceneOptions(size=64, max_overlap=1.0, max_rotation=0), seed=1)
    fewer, more = (layout.cutout >= 0).sum(), (free.layout(np.arange(64)).cutout >= 0).sum()
    assert fewer < more  # the limit leaves objects out of full scenes


@pytest.mark.parametrize("language", LANGUAGES)
def test_captions_are_true(language):
    composer = SceneComposer(shapes(), SceneOptions(size=64), seed=5)
    for index in range(12):
        scene = composer.scene(index)
        labels = [note.label.removesuffix("-en") for note in scene.annotations]
        for name in ("square", "half"):
            caption = scene.captions[language].split(";")[0]
            listed = re.search(rf"{name}-{language}(?: ×)?(?: (\d+))?", caption)
            assert (int(listed[1] or 1) if listed else 0) == labels.count(name)


def test_digits_are_tinted():
    images = np.zeros((2, 28, 28), np.uint8)
    images[:, 4:24, 4:24] = 255
    cutouts = digit_cutouts(images, np.array([3, 7]))
    scenes = [
        SceneComposer(cutouts, SceneOptions(size=64, max_objects=2), seed=2).scene(index)
        for index in range(8)
    ]
    assert {note.label for scene in scenes for note in scene.annotations} == {"3", "7"}
    colors = {tuple(scene.image[note.mask].max(0)) for scene in scenes for note in scene.annotations}
    assert len(colors) > 1


def test_scenes_are_written_as_coco(tmp_path):
    composer = SceneComposer(shapes(), SceneOptions(size=32), seed=1)
    images = read_coco(write_scenes(composer, range(3), tmp_path))
    assert list(images.classes) == composer.cutouts.classes
    for index, image in enumerate(images):
        scene = composer.scene(index)
        assert (np.asarray(image.load()) == scene.image).all()
        assert list(image.captions) == [scene.captions["en"]]
        for note, expected in zip(image.annotations, scene.annotations, strict=True):
            assert (note.label, note.box) == (expected.label, expected.box)
            assert (note.mask == expected.mask).all()


def test_bad_options_are_errors(tmp_path):
    with pytest.raises(InvalidValueError):
        SceneOptions(min_objects=4, max_objects=2)
    with pytest.raises(InvalidValueError):
        replace(SceneOptions(), min_scale=0.5, max_scale=0.2)
    with pytest.raises(FileMissingError):
        read_emoji(tmp_path)
