"""Segmentation of image files: the same answers as transformers' processor, model and postprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from glassformer.errors import (
    FileMissingError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.tasks.image_segmentation import ImageSegmenter
from tests.families import harness
from tests.families.cases import EOMT, MASK2FORMER, MASKFORMER

transformers = pytest.importorskip("transformers")

_PADDED = {"size": {"shortest_edge": 24, "longest_edge": 24}, "do_pad": True}
_SPLIT = {"size": {"shortest_edge": 24, "longest_edge": None}, "do_split_image": True}
_SHORT = {"size": {"shortest_edge": 40, "longest_edge": 200}}
# case, processor, its settings
MODELS = {
    "eomt": (EOMT[1], "EomtImageProcessorPil", _PADDED),
    "eomt-crops": (EOMT[1], "EomtImageProcessorPil", _SPLIT),
    "maskformer": (MASKFORMER[3], "MaskFormerImageProcessorPil", _SHORT),
    "mask2former": (MASK2FORMER[0], "Mask2FormerImageProcessorPil", {"size": {"height": 64, "width": 64}}),
}
SIZES = [(37, 61), (80, 45)]


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    generator = np.random.default_rng(0)
    small = [generator.integers(0, 255, (5, 6, 3), dtype=np.uint8) for _ in SIZES]
    return [Image.fromarray(a).resize(size[::-1]) for a, size in zip(small, SIZES, strict=True)]


@pytest.fixture(scope="module", params=MODELS)
def segmenter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The name of the model, the reference, its processor, and our bundle; classes are made certain."""
    case, name, settings = MODELS[request.param]
    reference = harness.reference(*case, seed=1)
    with torch.no_grad():
        reference.class_predictor.weight.mul_(4)
        reference.class_predictor.bias[-1] = -9.0  # few queries are "no object"
    processor = getattr(transformers, name)(**settings)
    folder = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    processor.save_pretrained(folder)
    return request.param, reference, processor, glassformer.load(folder)


def answer(segmenter: Any, picture: Image.Image, mode: str, **options: Any) -> Any:
    _, reference, processor, _ = segmenter
    inputs = processor(picture, return_tensors="pt")
    with torch.no_grad():
        output = reference(
            **{key: inputs[key] for key in ("pixel_values", "patch_offsets") if inputs.get(key) is not None}
        )
    function = getattr(processor, f"post_process_{mode}_segmentation")
    return function(output, target_sizes=[picture.size[::-1]], **options)[0]


def test_semantic_segmentation_matches_transformers(segmenter: Any, pictures: list[Image.Image]) -> None:
    if segmenter[0] == "eomt":
        pytest.skip("the reference does not cut off the padding of semantic maps")
    found = ImageSegmenter(segmenter[3], mode="semantic")(pictures)
    for picture, notes in zip(pictures, found, strict=True):
        theirs = answer(segmenter, picture, "semantic")
        painted = np.full(picture.size[::-1], -1)
        for one in notes:
            assert (painted[one.mask] == -1).all() and one.score is None
            painted[one.mask] = int(one.label.removeprefix("LABEL_"))
        assert (painted == theirs.numpy()).mean() > 0.999  # a tie may be broken by rounding


@pytest.mark.parametrize("mode", ["instance", "panoptic"])
def test_segments_match_transformers(segmenter: Any, pictures: list[Image.Image], mode: str) -> None:
    if segmenter[0] == "eomt-crops":
        pytest.skip("objects are not segmented in crops")
    found = ImageSegmenter(segmenter[3], mode=mode, threshold=0.3)(pictures)  # type: ignore[arg-type]
    total = 0
    for picture, notes in zip(pictures, found, strict=True):
        infos = answer(segmenter, picture, mode, threshold=0.3)["segments_info"]
        theirs = sorted((-round(info["score"], 4), f"LABEL_{info['label_id']}") for info in infos)
        mine = sorted((-round(one.score or 0.0, 4), one.label) for one in notes)
        assert len(mine) == len(theirs)
        for (score, label), (their_score, their_label) in zip(mine, theirs, strict=True):
            assert label == their_label and abs(score - their_score) < 2e-4
        assert all(one.mask is not None and one.mask.shape == picture.size[::-1] for one in notes)
        total += len(mine)
    assert total > 0


def test_default_mode_is_what_the_model_was_trained_for(segmenter: Any) -> None:
    from dataclasses import replace

    bundle = segmenter[3]
    assert ImageSegmenter(bundle).mode == "panoptic"
    trained = replace(bundle, job=replace(bundle.job, name="segment", segmentation="semantic"))
    assert ImageSegmenter(trained).mode == "semantic"


def test_invalid_options_and_images(segmenter: Any, pictures: list[Image.Image], tmp_path: Path) -> None:
    bundle = segmenter[3]
    with pytest.raises(UnknownNameError):
        ImageSegmenter(bundle, mode="depth")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError) as invalid:
        ImageSegmenter(bundle, threshold=1.5)
    assert invalid.value.name == "threshold"
    with pytest.raises(UnknownNameError) as unknown:
        ImageSegmenter(bundle, stuff_classes=["sky"])
    assert unknown.value.name == "sky"
    with pytest.raises(FileMissingError):
        ImageSegmenter(bundle)(tmp_path / "none.png")
    with pytest.raises(UnsupportedError):
        ImageSegmenter(glassformer.load("pocket-digits"))
    with pytest.raises(MissingValueError):
        ImageSegmenter(glassformer.Pipeline(model=glassformer.tiny("eomt")))
