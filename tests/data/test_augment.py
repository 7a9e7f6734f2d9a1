"""Augmentation follows from seed, epoch and row alone, and does what it says; examples are scaled as told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from glassformer.data.images import Augment, ImageExamples, ImageSet, channel_statistics, prepare_images
from glassformer.data.randomness import uniform
from glassformer.data.row_errors import RowErrors

RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 256, (40, 9, 7, 3), np.uint8)
ROWS = np.arange(40)
ALL = Augment(flip_prob=0.5, max_shift=2, max_rotation=20, erase_prob=0.5)


def augmented(images: np.ndarray, rows: np.ndarray, **options: Any) -> np.ndarray:
    return Augment(**options).augment(images, rows, seed=0, epoch=0)


@pytest.fixture
def image_set(tmp_path: Path) -> ImageSet:
    for image, row in zip(IMAGES, ROWS, strict=True):
        path = tmp_path / "x" / str(row // 10) / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return prepare_images(tmp_path / "x", tmp_path / "set", errors=RowErrors())


def test_random_numbers_are_uniform_and_uncorrelated() -> None:
    draws = uniform(3, 1, np.arange(20_000), 4)
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws[:, 2], 20)[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 55  # chi-square, 19 degrees of freedom: p below 1e-4 beyond
    related = np.corrcoef(np.hstack([draws[1:], draws[:-1], uniform(3, 2, np.arange(1, 20_000), 4)]).T)
    assert np.abs(related - np.eye(12)).max() < 0.03


@given(order=st.permutations(range(12)), epoch=st.integers(0, 5))
def test_augmentation_depends_only_on_seed_epoch_and_row(order: list[int], epoch: int) -> None:
    together = ALL.augment(IMAGES[:12], ROWS[:12], seed=5, epoch=epoch)
    apart = ALL.augment(IMAGES[order], ROWS[order], seed=5, epoch=epoch)
    assert (apart == together[order]).all()


def test_epochs_seeds_and_rows_differ() -> None:
    first = ALL.augment(IMAGES, ROWS, seed=5, epoch=0)
    for seed, epoch in ((5, 1), (0, 0)):
        other = ALL.augment(IMAGES, ROWS, seed=seed, epoch=epoch)
        assert np.mean([(a != b).any() for a, b in zip(first, other, strict=True)]) > 0.9
    same = ALL.augment(np.repeat(IMAGES[:1], 40, 0), ROWS, seed=5, epoch=0)
    assert len({image.tobytes() for image in same}) > 30


def test_shift_is_a_crop_of_the_mirrored_image() -> None:
    moved = augmented(IMAGES, ROWS, max_shift=2)
    shifts = set()
    for image, got in zip(IMAGES, moved, strict=True):
        wide = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        matches = [(y, x) for y in range(5) for x in range(5) if (wide[y : y + 9, x : x + 7] == got).all()]
        assert len(matches) == 1
        shifts.add(matches[0])
    assert {y for y, _ in shifts} == {x for _, x in shifts} == set(range(5))


def test_flips_have_the_requested_probability() -> None:
    assert (augmented(IMAGES, ROWS, flip_prob=1.0) == IMAGES[:, :, ::-1]).all()
    rows = np.arange(2000)
    many = np.repeat(IMAGES[:1], 2000, 0)
    flipped = (augmented(many, rows, flip_prob=0.3) != many).any((1, 2, 3)).mean()
    assert 0.26 < flipped < 0.34


def test_rotation_keeps_the_center_and_stays_within_the_maximum() -> None:
    """A bright dot right of the centre lands on the circle, within the angle, and both ways occur."""
    dot = np.zeros((1, 41, 41, 1), np.uint8)
    dot[0, 19:22, 27:30] = 255
    turned = augmented(np.repeat(dot, 200, 0), np.arange(200), max_rotation=30.0).astype(float)
    weight = turned[..., 0] / turned.sum((1, 2, 3))[:, None, None]
    y = (weight * (np.arange(41)[:, None] - 20)).sum((1, 2))
    x = (weight * (np.arange(41)[None, :] - 20)).sum((1, 2))
    angles = np.degrees(np.arctan2(y, x))
    assert np.allclose(np.hypot(x, y), 8, atol=0.3)
    assert np.abs(angles).max() < 30.5 and angles.min() < -25 and angles.max() > 25
    assert (augmented(IMAGES, ROWS, max_rotation=1e-9) == IMAGES).all()


def test_random_erasing_fills_one_rectangle_with_the_mean_color() -> None:
    large = RNG.integers(0, 256, (50, 40, 30, 1), np.uint8)
    erased = augmented(large, np.arange(50), erase_prob=1.0)
    for before, after in zip(large, erased, strict=True):
        inside = (after == np.rint(before.mean())).all(-1)
        changed = (before != after).any(-1)
        down, across = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        assert inside[down[0] : down[-1] + 1, across[0] : across[-1] + 1].all()
        assert 4 <= np.ptp(down) + 1 <= 17 and 3 <= np.ptp(across) + 1 <= 13
        assert not changed[: down[0]].any()


def test_examples_are_standardized_and_not_augmented_in_evaluation(image_set: ImageSet) -> None:
    mean, std = channel_statistics(image_set)
    assert np.allclose(mean, IMAGES.mean((0, 1, 2)) / 255) and np.allclose(std, IMAGES.std((0, 1, 2)) / 255)
    plain = ImageExamples(image_set, mean=mean, std=std)
    batch = plain.batch(ROWS, epoch=0)
    assert batch["inputs"].shape == (40, 3, 9, 7) and batch["inputs"].dtype == np.float32
    assert np.allclose(batch["inputs"].mean((0, 2, 3)), 0, atol=1e-6)
    assert np.allclose(batch["inputs"].std((0, 2, 3)), 1, atol=1e-6)
    back = batch["inputs"] * np.array(std)[:, None, None] + np.array(mean)[:, None, None]
    assert (np.rint(back * 255) == IMAGES.transpose(0, 3, 1, 2)).all()
    assert (plain.batch(ROWS, epoch=7)["inputs"] == batch["inputs"]).all()


def test_augmentation_of_a_subset_equals_that_of_the_full_set(image_set: ImageSet) -> None:
    mean, std = channel_statistics(image_set, np.array([1, 2]))
    some = ImageExamples(image_set, rows=np.array([30, 4, 9]), mean=mean, std=std, augment=ALL, seed=5)
    all_examples = ImageExamples(image_set, mean=mean, std=std, augment=ALL, seed=5)
    assert len(some) == 3 and some.lengths(np.arange(2)).tolist() == [[1], [1]]
    one, other = some.batch(np.array([1]), epoch=2), all_examples.batch(np.array([4]), epoch=2)
    assert (one["inputs"] == other["inputs"]).all() and one["labels"].tolist() == [0]
