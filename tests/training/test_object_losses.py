"""Set losses equal those of transformers, in value and gradient, and can be summed over micro-batches."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers.loss import loss_for_object_detection as reference
from transformers.models.mask2former import modeling_mask2former as mask2former
from transformers.models.maskformer import modeling_maskformer as maskformer

from glassformer.core.vision.heads import BoxOutput, MaskOutput, box_corners
from glassformer.training.object_losses import (
    DETECTION,
    NO_OBJECT,
    SEGMENTATION,
    box_set_loss,
    count_objects,
    dice_loss,
    generalized_box_iou,
    mask_set_loss,
    sigmoid_focal_loss,
)

COUNTS, QUERIES, LABELS, MOST = (3, 0, 5, 1), 7, 4, 5


def box_case(layers: int = 3) -> tuple[BoxOutput, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)

    def prediction() -> BoxOutput:
        logits = torch.randn(len(COUNTS), QUERIES, LABELS + 1, requires_grad=True)
        boxes = (torch.rand(len(COUNTS), QUERIES, 4) * 0.5 + 0.1).requires_grad_()
        return BoxOutput(logits, boxes)

    output = prediction()._replace(layers=tuple(prediction() for _ in range(layers - 1)))
    labels = torch.full((len(COUNTS), MOST), NO_OBJECT)
    for row, count in zip(labels, COUNTS, strict=True):
        row[:count] = torch.randint(LABELS, (count,))
    return output, labels, torch.rand(len(COUNTS), MOST, 4) * 0.5 + 0.1


def leaves(output: BoxOutput) -> list[torch.Tensor]:
    return [part for layer in (*output.layers, output) for part in layer[:2]]


def reference_box_loss(output: BoxOutput, labels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """The sum that transformers averages: its class loss is divided by the sum of class weights."""
    w, counts = DETECTION, [int((row != NO_OBJECT).sum()) for row in labels]
    config = SimpleNamespace(
        class_cost=w.label,
        bbox_cost=w.l1,
        giou_cost=w.giou,
        num_labels=LABELS,
        eos_coefficient=w.no_object,
        bbox_loss_coefficient=w.l1,
        giou_loss_coefficient=w.giou,
        auxiliary_loss=True,
        decoder_layers=len(output.layers) + 1,
    )
    targets = [
        {"class_labels": labels[n, :count], "boxes": boxes[n, :count]} for n, count in enumerate(counts)
    ]
    layers = (*output.layers, output)
    _, parts, _ = reference.ForObjectDetectionLoss(
        output.logits,
        targets,
        "cpu",
        output.boxes,
        config,
        [layer.logits for layer in layers],
        [layer.boxes for layer in layers],
    )
    objects = sum(counts)
    class_weights = objects + w.no_object * (len(counts) * QUERIES - objects)
    factors = {"ce": w.label * class_weights, "bbox": w.l1 * objects, "giou": w.giou * objects}
    terms = {name: part for name, part in parts.items() if "cardinality" not in name}
    return sum(factors[name.split("_")[1]] * part for name, part in terms.items())


def test_box_loss_equals_transformers_in_value_and_gradient():
    output, labels, boxes = box_case()
    ours, theirs = box_set_loss(output, labels, boxes), reference_box_loss(output, labels, boxes)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for mine, other in zip(
        torch.autograd.grad(ours, leaves(output)), torch.autograd.grad(theirs, leaves(output)), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    wrong = reference_box_loss(output, labels, boxes.roll(1, 1))  # other targets give another loss
    assert abs(float((ours - wrong).detach())) > 0.01


def test_boxes_and_masks_equal_the_functions_of_transformers():
    torch.manual_seed(2)
    a, b = box_corners(torch.rand(6, 4)), box_corners(torch.rand(5, 4))
    expected = reference.generalized_box_iou(a, b)
    torch.testing.assert_close(generalized_box_iou(a[:, None], b), expected)
    logits, targets = torch.randn(3, 40), (torch.rand(3, 40) > 0.5).float()
    torch.testing.assert_close(dice_loss(logits, targets).sum(), reference.dice_loss(logits, targets, 1))
    focal = sigmoid_focal_loss(logits, targets).mean(1).sum()
    torch.testing.assert_close(focal, reference.sigmoid_focal_loss(logits, targets, 1))


@pytest.mark.parametrize("mask_loss", SEGMENTATION)
@pytest.mark.parametrize("objects", [1, 4, 9])  # also more objects than queries
def test_mask_loss_equals_mask2former(objects, mask_loss, monkeypatch):
    """The focal loss equals that of MaskFormer, at the points of Mask2Former."""
    if mask_loss == "focal":
        monkeypatch.setattr(mask2former, "sigmoid_cross_entropy_loss", maskformer.sigmoid_focal_loss)
        pair_wise = maskformer.pair_wise_sigmoid_focal_loss
        monkeypatch.setattr(mask2former, "pair_wise_sigmoid_cross_entropy_loss", pair_wise)
    torch.manual_seed(3)
    weights = replace(SEGMENTATION[mask_loss], num_points=64)
    logits = torch.randn(1, QUERIES, LABELS + 1, requires_grad=True)
    masks = (3 * torch.randn(1, QUERIES, 6, 8)).requires_grad_()
    labels, targets = torch.randint(LABELS, (1, objects)), torch.rand(1, objects, 24, 32) > 0.5
    torch.manual_seed(4)
    ours = mask_set_loss(MaskOutput(logits, masks), labels, targets, weights)
    loss = mask2former.Mask2FormerLoss.__new__(mask2former.Mask2FormerLoss)
    torch.nn.Module.__init__(loss)
    loss.num_labels, loss.num_points, loss.oversample_ratio, loss.importance_sample_ratio = (
        LABELS,
        64,
        3,
        0.75,
    )
    loss.empty_weight = torch.tensor([1.0] * LABELS + [weights.no_object])
    loss.matcher = mask2former.Mask2FormerHungarianMatcher(weights.label, weights.mask, weights.dice, 64)
    torch.manual_seed(4)
    parts = loss(masks, logits, [targets[0].float()], [labels[0]])
    matched = min(objects, QUERIES)
    class_weights = matched + weights.no_object * (QUERIES - matched)
    theirs = weights.label * class_weights * parts["loss_cross_entropy"] + objects * (
        weights.mask * parts["loss_mask"] + weights.dice * parts["loss_dice"]
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for mine, other in zip(
        torch.autograd.grad(ours, (logits, masks)), torch.autograd.grad(theirs, (logits, masks)), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_losses_of_micro_batches_add_up():
    output, labels, boxes = box_case()

    def rows(part: slice) -> BoxOutput:
        layers = tuple(BoxOutput(layer.logits[part], layer.boxes[part]) for layer in output.layers)
        return BoxOutput(output.logits[part], output.boxes[part], layers)

    parts = [slice(0, 1), slice(1, 2), slice(2, 4)]
    summed = sum(box_set_loss(rows(part), labels[part], boxes[part]) for part in parts)
    torch.testing.assert_close(box_set_loss(output, labels, boxes), summed)
    assert count_objects({"labels": labels.numpy()}) == 10  # nine objects and an image without any
    assert sum(count_objects({"labels": labels[part].numpy()}) for part in parts) == 10


def test_padding_and_missing_objects():
    output, labels, boxes = box_case(layers=1)
    changed = torch.where((labels == NO_OBJECT)[..., None], torch.nan, boxes)
    torch.testing.assert_close(box_set_loss(output, labels, changed), box_set_loss(output, labels, boxes))
    empty = torch.full_like(labels, NO_OBJECT)
    expected = -DETECTION.no_object * output.logits.log_softmax(-1)[..., -1].sum()
    torch.testing.assert_close(box_set_loss(output, empty, boxes), expected)
    masks = torch.zeros(len(COUNTS), MOST, 8, 8, dtype=torch.bool)
    masked = MaskOutput(output.logits, torch.randn(len(COUNTS), QUERIES, 4, 4))
    weights = SEGMENTATION["cross_entropy"]
    loss = mask_set_loss(masked, empty, masks, weights)
    torch.testing.assert_close(loss, weights.label * expected)
