"""Object detection: equal to transformers' processors and models, for all kinds of inputs; errors."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import glassformer
from glassformer.core.vision.heads import BoxOutput
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError, UnsupportedError
from glassformer.tasks import Detector, RejectedInputError
from glassformer.tasks.base import Callbacks
from glassformer.tasks.detection import select_boxes
from tests.families import harness
from tests.families.cases import DETR, YOLOS

SIZES = ((60, 90), (90, 60), (64, 96), (50, 50))  # height, width


def picture(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height * width)
    small = rng.integers(0, 255, (7, 9, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def detector(case: Any, folder: Path) -> tuple[Any, Any, Any]:
    """The reference model, its PIL image processor, and our pipeline loaded from their folder."""
    name, settings = case
    reference = harness.reference(name, settings)
    kind = "Detr" if name.startswith("Detr") else "Yolos"
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"shortest_edge": 48, "longest_edge": 80}
    )
    harness.save_reference(reference, folder)
    processor.save_pretrained(folder)
    return reference, processor, glassformer.load(folder)


def expected(reference: Any, processor: Any, images: list[Image.Image], threshold: float) -> list[Any]:
    inputs = processor(images, return_tensors="pt")
    if not isinstance(reference, transformers.DetrForObjectDetection):
        inputs.pop("pixel_mask", None)
    with torch.no_grad():
        output = reference(**inputs)
    sizes = [(image.height, image.width) for image in images]
    return processor.post_process_object_detection(output, threshold=threshold, target_sizes=sizes)


def check_equal(
    found: list[Any], theirs: dict[str, torch.Tensor], names: dict[int, str], size: tuple[int, int]
) -> None:
    """Compare with transformers, whose boxes may leave the image. size: width and height."""
    order = theirs["scores"].argsort(descending=True, stable=True)
    assert [a.label for a in found] == [names[int(n)] for n in theirs["labels"][order]]
    assert np.allclose([a.score for a in found], theirs["scores"][order], atol=1e-5)
    width, height = size
    boxes = theirs["boxes"][order].clamp(min=0).minimum(torch.tensor([width, height, width, height]))
    assert np.allclose(np.array([a.box for a in found]).reshape(-1, 4), boxes, atol=1e-3)


@pytest.mark.parametrize("case", [DETR[0], YOLOS[0], YOLOS[1]], ids=["detr", "yolos", "yolos-fast"])
def test_detection_matches_transformers(case: Any, tmp_path: Path) -> None:
    reference, processor, pipeline = detector(case, tmp_path)
    images, names = [picture(*size) for size in SIZES], reference.config.id2label
    landscape = [n for n, (height, width) in enumerate(SIZES) if height <= width]  # padded to one batch
    padded = isinstance(reference, transformers.DetrForObjectDetection)
    groups = [landscape, [1]] if padded else [[n] for n in range(len(SIZES))]
    for threshold in (0.0, 0.35):
        results = pipeline.detect(images, threshold=threshold)
        for group in groups:
            theirs = expected(reference, processor, [images[n] for n in group], threshold)
            for n, result in zip(group, theirs, strict=True):
                check_equal(results[n], result, names, images[n].size)
        alone = pipeline.detect(images[0], threshold=threshold)
        check_equal(alone, expected(reference, processor, images[:1], threshold)[0], names, images[0].size)


def test_inputs_are_equivalent(tmp_path: Path) -> None:
    """Paths, bytes, PIL images, arrays and a folder give the same objects."""
    _, _, pipeline = detector(YOLOS[1], tmp_path / "model")
    image, folder = picture(60, 90), tmp_path / "images"
    folder.mkdir()
    image.save(folder / "a.png")
    picture(50, 50).save(folder / "b.png")
    content = io.BytesIO()
    image.save(content, "PNG")
    array = np.asarray(image)
    inputs = [image, folder / "a.png", str(folder / "a.png"), content.getvalue(), array, array / 255.0]
    first = [vars(a) for a in pipeline.detect(image, threshold=0.0)]
    assert len(first) == 5 and first == sorted(first, key=lambda a: -a["score"])
    for source in inputs:
        assert [vars(a) for a in pipeline.detect(source, threshold=0.0)] == first
    both = pipeline.detect(folder, threshold=0.0)
    assert len(both) == 2 and [vars(a) for a in both[0]] == first


def test_boxes_follow_the_definition() -> None:
    """Hand-made outputs: center and size to corners, in pixels; "no object" is never a label."""
    logits = torch.tensor([[[0.0, 5.0, 0.0], [0.0, 0.0, 9.0], [3.0, 0.0, 0.0]]])
    boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.5, 0.5, 1.0, 1.0], [0.25, 0.75, 0.5, 0.5]]])
    ((scores, labels, found),) = select_boxes(BoxOutput(logits, boxes), [(100, 200)], threshold=0.5)
    assert labels.tolist() == [1, 0] and scores[0] > scores[1] > 0.5
    assert torch.allclose(found, torch.tensor([[80.0, 30.0, 120.0, 70.0], [0.0, 50.0, 100.0, 100.0]]))


def test_boxes_are_clipped_to_the_image() -> None:
    logits = torch.tensor([[[9.0, 0.0]]])
    boxes = torch.tensor([[[0.1, 0.9, 0.4, 0.6]]])
    ((_, _, found),) = select_boxes(BoxOutput(logits, boxes), [(100, 200)])
    assert found.tolist() == [[0.0, pytest.approx(60.0), pytest.approx(60.0), 100.0]]


def test_bad_images_are_reported(tmp_path: Path) -> None:
    _, _, pipeline = detector(YOLOS[1], tmp_path / "model")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    with pytest.raises(FileProblemError):
        pipeline.detect(broken)
    with pytest.raises(FileMissingError):
        pipeline.detect(tmp_path / "absent.jpg")
    with pytest.raises(RejectedInputError) as caught:
        pipeline.detect([picture(50, 50), broken])
    assert caught.value.number == 2 and isinstance(caught.value.reason, FileProblemError)
    rejected, done = [], []
    callbacks = Callbacks(on_reject=lambda n, error: rejected.append(n), on_done=done.append)
    results = list(Detector(pipeline, threshold=0.0).run([broken, picture(50, 50)], callbacks))
    assert rejected == [1] and sum(done) == 2 and [len(r) for r in results] == [0, 5]


def test_invalid_options_and_models(tmp_path: Path) -> None:
    _, _, pipeline = detector(YOLOS[1], tmp_path)
    with pytest.raises(InvalidValueError) as caught:
        pipeline.detect(picture(50, 50), threshold=1.5)
    assert caught.value.name == "threshold"
    with pytest.raises(UnsupportedError):
        glassformer.load("pocket-digits").detect(picture(28, 28))
    with pytest.raises(UnsupportedError):
        pipeline.classify(picture(50, 50))
