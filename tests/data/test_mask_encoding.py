"""Run-length encodings and polygons against pycocotools."""

import tracemalloc

import numpy as np
import pytest

from glassformer.data.mask_encoding import (
    counts_to_mask,
    decode_counts,
    encode_rle,
    mask_to_counts,
    polygons_to_mask,
    rle_counts,
)

reference = pytest.importorskip("pycocotools.mask")
RNG = np.random.default_rng(0)


def random_masks():
    for height, width in [(1, 1), (7, 5), (1, 40), (33, 20), (64, 80), (300, 200)]:
        for density in (0.0, 0.02, 0.5, 1.0):
            yield RNG.random((height, width)) < density
        blob = np.zeros((height, width), bool)
        blob[height // 4 : height // 2 + 1, width // 3 : width // 2 + 1] = True
        yield blob


def test_rle_matches_pycocotools():
    for mask in random_masks():
        height, width = mask.shape
        theirs = reference.encode(np.asfortranarray(mask.astype(np.uint8)))
        ours = encode_rle(mask)
        assert ours["counts"] == theirs["counts"].decode() and ours["size"] == list(theirs["size"])
        counts = rle_counts(ours, height, width)
        assert (counts == mask_to_counts(mask)).all()
        assert (counts_to_mask(counts, height, width) == mask).all()
        assert (
            rle_counts({"size": [height, width], "counts": counts.tolist()}, height, width) == counts
        ).all()


def test_polygons_match_pycocotools():
    height, width = 41, 57
    for number in range(300):
        corners = int(RNG.integers(3, 12))
        points = RNG.uniform(-8, 65, (corners, 2))
        if number % 3 == 0:
            points = np.round(points)  # coordinates on pixel borders
        if number % 7 == 0:
            points[1] = points[0]  # a point twice
        if number % 5 == 0:
            points = points * 0.05 + 20  # smaller than a few pixels
        if number % 11 == 0:
            points = (points - 28) * 40  # far outside of the image
        polygon = points.ravel().tolist()
        theirs = reference.decode(reference.frPyObjects([polygon], height, width))[..., 0].astype(bool)
        assert (polygons_to_mask([polygon], height, width) == theirs).all(), polygon


def test_polygons_far_outside_of_the_image_take_little_memory():
    triangle = [0, 0, 990_000, 1, 3, 990_000]
    tracemalloc.start()
    mask = polygons_to_mask([triangle] * 2000, 30, 40)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mask.all() and peak < 1 << 20  # every pixel lies between the two long sides
    zigzag = np.stack((np.arange(20_000) % 2 * 500.0, np.arange(20_000) * 1e-3), 1)  # 10 million crossings
    tracemalloc.start()
    polygons_to_mask([zigzag.ravel().tolist()], 30, 500)
    assert tracemalloc.get_traced_memory()[1] < 300 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("counts", ["0", "P", "\x00", "o" * 20, [1, 2], [-1, 13], None, ["a"]])
def test_damaged_rle_is_rejected(counts):
    with pytest.raises(ValueError):
        rle_counts({"size": [3, 4], "counts": counts}, 3, 4)


def test_rle_of_another_size_is_rejected():
    with pytest.raises(ValueError):
        rle_counts(encode_rle(np.ones((3, 4), bool)), 4, 3)
    assert decode_counts("").tolist() == []
