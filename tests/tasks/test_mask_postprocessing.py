"""Semantic, instance and panoptic segments match the processors of transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassformer.core.vision.heads import MaskOutput
from glassformer.tasks.mask_postprocessing import (
    MaskPostprocessor,
    MaskSegment,
    class_map_annotations,
    content_size,
    segment_annotations,
)

transformers = pytest.importorskip("transformers")

SIZES = [(37, 61), (80, 45)]
EOMT_SIZE = {"shortest_edge": 64, "longest_edge": 64}
# the image processor, and the postprocessor that matches it
STYLES = {
    "maskformer": ("MaskFormerImageProcessorPil", MaskPostprocessor()),
    "mask2former": ("Mask2FormerImageProcessorPil", MaskPostprocessor(mask_size=(384, 384))),
    "eomt": ("EomtImageProcessorPil", MaskPostprocessor(mask_size=(64, 64), resize="logits")),
}


def random_output(seed: int, queries: int = 7, labels: int = 4) -> MaskOutput:
    """Blobs with confident classes, so that thresholds keep some queries and drop others."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, queries, 4, 4, generator=generator) * 6
    masks = torch.nn.functional.interpolate(noise, (16, 16), mode="bicubic")
    return MaskOutput(torch.randn(2, queries, labels + 1, generator=generator) * 4, masks)


@pytest.fixture(params=STYLES)
def pair(request: pytest.FixtureRequest) -> Any:
    """Reference functions that take (mode, output, options), and our postprocessor."""
    name, ours = STYLES[request.param]
    processor = getattr(transformers, name)()
    eomt = request.param == "eomt"

    def reference(mode: str, output: MaskOutput, **options: Any) -> Any:
        outputs = SimpleNamespace(
            class_queries_logits=output.logits, masks_queries_logits=output.masks.clone(), patch_offsets=None
        )
        if eomt:
            options["size"] = EOMT_SIZE
            options.pop("return_binary_maps", None)
            if "label_ids_to_fuse" in options:
                options["stuff_classes"] = options.pop("label_ids_to_fuse")
        function = getattr(processor, f"post_process_{mode}_segmentation")
        return function(outputs, target_sizes=SIZES, **options)

    return reference, ours, eomt


def eomt_content() -> list[tuple[int, int]]:
    """The part of a 64 x 64 input that an image fills after its longest edge was resized to 64."""
    from transformers.models.eomt.image_processing_pil_eomt import get_size_with_aspect_ratio

    return [get_size_with_aspect_ratio(size, 64, 64) for size in SIZES]


@pytest.mark.parametrize("seed", range(4))
def test_semantic_maps_match_transformers(pair: Any, seed: int) -> None:
    reference, ours, _ = pair
    output = random_output(seed)
    for mine, theirs in zip(ours.semantic(output, SIZES), reference("semantic", output), strict=True):
        assert torch.equal(mine, theirs)
    assert seed == 3 or len(mine.unique()) > 1


@pytest.mark.parametrize("seed", range(4))
def test_instances_match_transformers(pair: Any, seed: int) -> None:
    reference, ours, eomt = pair
    output = random_output(seed)
    content = eomt_content() if eomt else None
    expected = reference("instance", output, threshold=ours.threshold, return_binary_maps=True)
    for mine, theirs in zip(ours.instance(output, SIZES, content), expected, strict=True):
        infos = theirs["segments_info"]
        assert infos and len(mine) == len(infos)
        if eomt:  # later instances cover earlier ones in its map
            painted = torch.full(mine[0].mask.shape, -1.0)
            for n, segment in enumerate(mine):
                painted[segment.mask] = n
            assert torch.equal(painted, theirs["segmentation"])
            masks = [segment.mask for segment in mine]
        else:
            masks = list(theirs["segmentation"].bool())
        key = lambda entry: (entry[0], entry[1])  # noqa: E731
        ranked = sorted(((s.label_id, round(s.score, 5), s.mask) for s in mine), key=key)
        wanted = sorted(
            ((i["label_id"], round(i["score"], 5), m) for i, m in zip(infos, masks, strict=True)), key=key
        )
        for (label, score, mask), (their_label, their_score, their_mask) in zip(ranked, wanted, strict=True):
            assert label == their_label and abs(score - their_score) < 2e-5
            assert torch.equal(mask, their_mask)


@pytest.mark.parametrize("fuse", [set(), {0, 1}])
@pytest.mark.parametrize("seed", range(4))
def test_panoptic_segments_match_transformers(pair: Any, seed: int, fuse: set[int]) -> None:
    reference, ours, eomt = pair
    output = random_output(seed)
    content = eomt_content() if eomt else None
    options = {"threshold": ours.threshold, "label_ids_to_fuse": fuse}
    mine = ours.panoptic(output, SIZES, content, label_ids_to_fuse=fuse)
    for segments, theirs in zip(mine, reference("panoptic", output, **options), strict=True):
        painted = torch.zeros_like(theirs["segmentation"]) - 1
        for n, segment in enumerate(segments):
            assert (painted[segment.mask] == -1).all()
            painted[segment.mask] = n
        ids: dict[int, list[dict[str, Any]]] = {}
        for info in theirs["segments_info"]:
            ids.setdefault(info["id"], []).append(info)
        if fuse and not eomt:
            # after a fused segment, the reference uses the id of a later segment again: compare classes
            for segment in segments:
                for number in theirs["segmentation"][segment.mask].unique().tolist():
                    assert segment.label_id in {info["label_id"] for info in ids[number]}
            assert len([s for s in segments if s.label_id in fuse]) <= len(fuse)
            continue
        assert [infos[0]["label_id"] for infos in ids.values()] == [s.label_id for s in segments]
        for (number, infos), segment in zip(ids.items(), segments, strict=True):
            assert torch.equal(theirs["segmentation"] == number, segment.mask)
            assert abs(infos[0]["score"] - segment.score) < 2e-6


def test_overlap_threshold_drops_covered_segments() -> None:
    """Two queries with one mask: the second, less certain one is covered and dropped."""
    logits = torch.tensor([[[8.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 9.0]]])
    masks = torch.full((1, 3, 4, 4), -9.0)
    masks[:, :, :2] = 9.0
    (segments,) = MaskPostprocessor(resize="logits").panoptic(MaskOutput(logits, masks), [(4, 4)])
    assert [segment.label_id for segment in segments] == [0]
    assert torch.equal(segments[0].mask, masks[0, 0] > 0)
    (instances,) = MaskPostprocessor().instance(MaskOutput(logits, masks), [(4, 4)])
    assert {segment.label_id for segment in instances} == {0, 1}


def test_annotations_have_labels_boxes_and_masks() -> None:
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[1:3, 2:5] = True
    found = segment_annotations([MaskSegment(1, 0.4, ~mask), MaskSegment(0, 0.9, mask)], ["cat", "sky"])
    assert [(a.label, a.score) for a in found] == [("cat", 0.9), ("sky", 0.4)]
    assert found[0].box == (2.0, 1.0, 5.0, 3.0) and found[0].mask.sum() == 6
    (cat, sky) = class_map_annotations(mask.long(), ["cat", "sky"])
    assert (cat.label, sky.label, sky.score) == ("cat", "sky", None) and sky.box == (2.0, 1.0, 5.0, 3.0)
    assert content_size((96, 96), (50, 96), (96, 96)) == (50, 96)
