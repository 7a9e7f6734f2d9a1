"""Segmenting by prompts: masks match transformers' processor, images are encoded once, bad prompts fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import glassformer
from glassformer.core.vision.segmenter import PromptedMaskOutput
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.tasks.base import NO_CALLBACKS
from glassformer.tasks.declarations import segment
from glassformer.tasks.segmentation import (
    MaskGeneration,
    PromptSegmenter,
    SegmentationPrompt,
    make_prompts,
    stability_score,
    suppress_boxes,
)
from tests.families import harness
from tests.families.cases import SAM

SIZE = 40  # of the image that the model reads
PROCESSOR = {"size": {"longest_edge": SIZE}, "pad_size": {"height": SIZE, "width": SIZE}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference model, its processor, and the pipeline loaded from their folder."""
    folder = tmp_path_factory.mktemp("reference")
    reference = harness.reference(*SAM[0])
    with torch.no_grad():
        reference.mask_decoder.iou_prediction_head.proj_out.bias.fill_(0.5)  # scores on both sides of 0.5
    harness.save_reference(reference, folder)
    images = transformers.models.sam.image_processing_pil_sam.SamImageProcessorPil(**PROCESSOR)
    images.save_pretrained(folder)
    return reference, transformers.SamProcessor(image_processor=images), glassformer.load(folder)


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


PROMPTS = {
    "point": {"points": [(7.0, 5.0)]},
    "points": {"points": [(7.0, 5.0), (20.0, 11.5)], "background_points": [(3.0, 21.0)]},
    "box": {"boxes": [(2.0, 3.0, 24.0, 20.5)]},
    "point and box": {"points": [(9.0, 9.0)], "boxes": [(2.0, 3.0, 24.0, 20.5)]},
}


@pytest.mark.parametrize("size", [(37, 61), (64, 23), (40, 40)], ids=str)
@pytest.mark.parametrize("kind", PROMPTS)
def test_masks_and_scores_match_transformers(pair: Any, kind: str, size: tuple[int, int]) -> None:
    """The whole way: resize and pad, scale the prompts, decode, resize the masks, threshold."""
    reference, processor, pipeline = pair
    prompt, image = PROMPTS[kind], picture(*size)
    points = [*prompt.get("points", ()), *prompt.get("background_points", ())]
    labels = [1] * len(prompt.get("points", ())) + [0] * len(prompt.get("background_points", ()))
    prompts: dict[str, Any] = {"input_points": [[points]], "input_labels": [[labels]]} if points else {}
    if "boxes" in prompt:
        prompts["input_boxes"] = [[list(box) for box in prompt["boxes"]]]
    inputs = processor(image, **prompts, return_tensors="pt")
    sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
    with torch.no_grad():
        output = reference(**inputs, multimask_output=kind == "point")
    (masks,) = processor.image_processor.post_process_masks([output.pred_masks[0]], *sizes)
    scores = output.iou_scores[0, 0]
    order = scores.argsort(descending=True).tolist()
    if kind == "point":  # ambiguous: the largest of the masks that are rated almost as high as the best
        close = [n for n in order if scores[n] >= scores.max() - 0.05]
        largest = max(close, key=lambda n: int(masks[0, n].sum()))
        order = [largest, *(n for n in order if n != largest)]
    found = pipeline.segment(image, **prompt)
    assert len(found) == len(order) == (3 if kind == "point" else 1)
    for thing, n in zip(found, order, strict=True):
        assert thing.mask.shape == size[::-1]
        assert (thing.mask != masks[0, n].numpy()).mean() < 1e-3  # a logit of nearly 0 may round either way
        assert thing.score == pytest.approx(min(max(float(scores[n]), 0), 1), abs=1e-5)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (SegmentationPrompt(points=[(5, 5)]), [0.91, 0.95, 0.6]),
        (SegmentationPrompt(points=[(5, 5), (6, 6)]), [0.95, 0.91, 0.6]),
        (SegmentationPrompt(points=[(5, 5)], background_points=[(19, 1)]), [0.95, 0.91, 0.6]),
        (SegmentationPrompt(points=[(5, 5)], box=(0, 0, 20, 20)), [0.95, 0.91, 0.6]),
        (SegmentationPrompt(box=(0, 0, 20, 20)), [0.95, 0.91, 0.6]),
    ],
)
def test_one_click_prefers_the_whole_object(
    pair: Any, prompt: SegmentationPrompt, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is rated 0.95, the whole 0.91, the background 0.6; scores stay with their masks."""
    sides = {0.95: 4, 0.91: 12, 0.6: 40}  # of squares, in cells of the mask logits
    logits = torch.full((1, 1, 3, SIZE, SIZE), -5.0)
    for n, side in enumerate(sides.values()):
        logits[0, 0, n, :side, :side] = 5.0
    output = PromptedMaskOutput(logits, torch.tensor([[list(sides)]]))
    monkeypatch.setattr(PromptSegmenter, "decode", lambda *_: output)
    (found,) = PromptSegmenter(pair[2], prompts=[prompt], multimask_output=True)([picture(SIZE, SIZE)])
    assert [thing.score for thing in found] == pytest.approx(expected)
    assert [thing.mask.sum() for thing in found] == [sides[score] ** 2 for score in expected]


@pytest.mark.parametrize(("filled", "expected"), [((1, 2), [0.8, 0.6]), ((), [0.9])])
def test_empty_masks_are_left_out_but_every_prompt_has_a_mask(
    pair: Any, filled: tuple[int, ...], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mask of each box is kept, so that the masks of several boxes are in their order."""
    logits = torch.full((1, 1, 3, SIZE, SIZE), -5.0)
    logits[0, 0, list(filled), :9, :9] = 5.0
    output = PromptedMaskOutput(logits, torch.tensor([[[0.9, 0.8, 0.6]]]))
    monkeypatch.setattr(PromptSegmenter, "decode", lambda *_: output)
    image = picture(SIZE, SIZE)
    for name, rows in (("points", [(7, 5)]), ("boxes", [(0, 0, 9, 9), (5, 5, 20, 20)])):
        found = pair[2].segment(image, **{name: rows}, multimask_output=True)
        assert [thing.score for thing in found] == pytest.approx(expected * len(rows))


@pytest.mark.parametrize("pixels", [1 << 26, 50 * 31 * 2])
def test_everything_keeps_the_masks_that_transformers_keeps(
    pair: Any, pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid of points through transformers' model and filters, then a plain non-maximum suppression."""
    monkeypatch.setattr("glassformer.tasks.segmentation.FULL_SIZE_PIXELS", pixels)  # one or many parts
    reference, processor, pipeline = pair
    image, side = picture(50, 31), 5
    options = MaskGeneration(
        pred_iou_thresh=0.2,
        stability_score_thresh=0.2,
        stability_score_offset=0.02,
        box_nms_thresh=0.99,
    )
    grid = [[[(x + 0.5) / side * 50, (y + 0.5) / side * 31]] for y in range(side) for x in range(side)]
    inputs = processor(image, input_points=[grid], return_tensors="pt")
    original, reshaped = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
    with torch.no_grad():
        output = reference(**inputs)
    images = processor.image_processor
    (logits,) = images.post_process_masks([output.pred_masks[0]], original, reshaped, binarize=False)
    _, scores, boxes = images.filter_masks(
        logits, output.iou_scores[0], (31, 50), [0, 0, 50, 31], 0.2, 0.2, 0, 0.02
    )
    boxes = boxes.float() + torch.tensor([0, 0, 1, 1])  # their last row and column are inclusive
    indices: list[int] = []
    for n in scores.argsort(descending=True).tolist():
        if all(box_iou(boxes[n].tolist(), boxes[other].tolist()) <= 0.99 for other in indices):
            indices.append(n)
    found = pipeline.segment(image, everything=options, points_per_side=side)
    assert 1 < len(found) == len(indices) < len(scores)
    assert [thing.box for thing in found] == [tuple(boxes[n].tolist()) for n in indices]
    assert [thing.score for thing in found] == pytest.approx(scores[indices].clamp(0, 1).tolist(), abs=1e-5)


def box_iou(one: list[float], other: list[float]) -> float:
    wide = max(0, min(one[2], other[2]) - max(one[0], other[0]))
    high = max(0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return wide * high / (sum(areas) - wide * high)


def test_image_is_encoded_once(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second prompt reuses the embedding, in whatever form the image comes; new weights do not."""
    pipeline = glassformer.load(pair[2].folder, mmap=False)
    kind, calls = type(pipeline.model), []
    encode = kind.encode_image

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(kind, "encode_image", count)
    path = tmp_path / "picture.png"
    picture(30, 20).save(path)
    first = pipeline.segment(path, points=[(5, 5)])
    again = pipeline.segment(path.read_bytes(), points=[(5, 5)])
    pipeline.segment(str(path), boxes=[(1, 1, 9, 9), (3, 3, 20, 20)])
    assert len(calls) == 1
    assert all((a.mask == b.mask).all() for a, b in zip(first, again, strict=True))
    with torch.no_grad():
        pipeline.model.neck.norm2.weight.mul_(-1)
    changed = pipeline.segment(path, points=[(5, 5)])
    assert len(calls) == 2 and any((a.mask != b.mask).any() for a, b in zip(first, changed, strict=True))
    pixels = torch.rand(3, 30, 20, requires_grad=True)
    for form in (pixels, pixels, pixels.detach().numpy()):
        pipeline.segment(form, points=[(5, 5)])
    assert len(calls) == 3
    size = pipeline.cached_image(b"", lambda: torch.zeros(1)).nbytes  # type: ignore[attr-defined]
    monkeypatch.setattr("glassformer.bundle.CACHED_IMAGE_BYTES", size)  # old images are dropped
    for side in (20, 21, 20):
        pipeline.segment(picture(side, 20), points=[(5, 5)])
    assert len(calls) == 6


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"points": [(-1, 3)]}, "points"),
        ({"points": [(3, 3)], "background_points": [(3, 99)]}, "background_points"),
        ({"boxes": [(5, 5, 5, 9)]}, "boxes"),
        ({"boxes": [(35, 5, 99, 9)]}, "boxes"),
        ({"boxes": [(9, 5, 3, 9)]}, "boxes"),
        ({"boxes": (1, 1, 9, 9)}, "boxes"),
        ({"points": [(float("nan"), 3)]}, "points"),
        ({"points": (5, 5)}, "points"),
        ({"points": ["12"]}, "points"),
        ({"everything": True, "points_per_side": 0}, "points_per_side"),
    ],
)
def test_bad_prompts_are_rejected(pair: Any, options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        pair[2].segment(picture(30, 20), **options)
    assert caught.value.name == name


def test_prompts_may_be_arrays_or_texts(pair: Any) -> None:
    image = picture(30, 20)
    for name, rows in (("points", [[5, 9], [6, 8]]), ("boxes", [[1, 2, 9, 9], [3, 3, 12, 20]])):
        forms = (rows, np.array(rows), [",".join(map(str, row)) for row in rows])
        plain, *others = ([m.score for m in pair[2].segment(image, **{name: form})] for form in forms)
        assert others == [plain, plain]


def test_a_box_is_clipped_to_the_image(pair: Any) -> None:
    """Detectors predict boxes that leave the image."""
    image = picture(30, 20)
    beyond, clipped = (
        pair[2].segment(image, boxes=[box])[0].score for box in ((-5, -1, 12, 99), (0, 0, 12, image.height))
    )
    assert beyond == clipped


def test_missing_and_conflicting_prompts_are_rejected(pair: Any) -> None:
    for options in ({}, {"background_points": [(3, 3)]}):
        with pytest.raises(MissingValueError) as missing:
            pair[2].segment(picture(30, 20), **options)
        assert (missing.value.name, *missing.value.alternatives) == ("points", "boxes", "everything")
    with pytest.raises(MissingValueError) as missing:
        pair[2].segment(picture(30, 20), points=[(3, 3)], points_per_side=4)
    assert missing.value.name == "everything"
    with pytest.raises(ConflictError):
        make_prompts([(3, 3)], boxes=[(1, 1, 9, 9), (2, 2, 8, 8)])
    for option in ({"stuff_classes": ["sky"]}, {"threshold": 0.0}, {"mode": "semantic"}):
        for prompt in ({"points": [(3, 3)]}, {"boxes": [(1, 1, 9, 9)]}, {"everything": True}):
            with pytest.raises(ConflictError) as conflict:
                pair[2].segment(picture(30, 20), **option, **prompt)
            assert list(conflict.value.names) == [*option, *prompt]
    with pytest.raises(ConflictError):
        PromptSegmenter(pair[2], prompts=[SegmentationPrompt(points=[(3, 3)])], everything=MaskGeneration())
    for options in ({"points": [(3, 3)]}, {"points_per_side": 4}):
        with pytest.raises(UnsupportedError):
            glassformer.load("pocket-digits").segment(picture(30, 20), **options)


def test_stability_and_suppression() -> None:
    logits = torch.tensor([[[2.0, 0.5], [-0.5, -2.0]]])
    assert stability_score(logits, 1.0).tolist() == [pytest.approx(1 / 3)]
    assert suppress_boxes(torch.empty(0, 4), torch.empty(0), 0.5) == []


def test_masks_with_too_many_pixels_end_a_response(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image, prompts = picture(37, 61), make_prompts(boxes=[(2, 3, 24, 20), (5, 5, 30, 40)])
    task = PromptSegmenter(pair[2], prompts=prompts)
    assert len(list(segment.parts(task, image, NO_CALLBACKS))) == 2
    monkeypatch.setattr(segment, "MAX_MASK_PIXELS", 37 * 61)
    objects = segment.parts(task, image, NO_CALLBACKS)
    next(objects)
    with pytest.raises(segment.TooManyMasksError):
        next(objects)
