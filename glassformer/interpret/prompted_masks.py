"""Segment an image by a prompt, with the two-way attention between prompt tokens and image.

The image is encoded once; its embedding is kept in the bundle, so that another prompt only runs the decoder.
H heads, M masks, S cells of the image, T tokens, h and w rows and columns of a mask.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Observer
from glassformer.data.image_files import decode_base64
from glassformer.errors import MissingValueError
from glassformer.interpret import schema
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.tokens import prompt_sequences
from glassformer.tasks.segmentation import PromptSegmenter, SegmentationPrompt

_KINDS: dict[str, Any] = {
    "self_attn": "tokens",
    "cross_attn": "tokens_to_image",
    "image_attn": "image_to_tokens",
    "final_attn": "tokens_to_image",
}


@torch.inference_mode()
def segment_by_prompt(
    bundle: Bundle, input: schema.TraceInput
) -> tuple[PreparedInput, schema.SegmentOutcome, dict[str, Tensor]]:
    """Return the prepared input, its masks, and the tensors of masks and attention weights by name.

    Without points and box, the prompt is the center of the image. Weights are (H, T, T), (H, T, S) or
    (H, S, T); masks are (M, h, w). Cells and masks are those of the image without its padding.
    """
    if input.image is None:
        raise MissingValueError("image", f"by {bundle.display_name}")
    spec: Any = bundle.spec
    task = PromptSegmenter(bundle, prompts=[SegmentationPrompt(points=[(0, 0)])], multimask_output=True)
    image = task.encode(decode_base64(input.image))
    if not (input.points or input.background_points or input.box):
        height, width = image.size
        input = replace(input, points=((width / 2, height / 2),))
    prompt = SegmentationPrompt(
        points=input.points or (), background_points=input.background_points or (), box=input.box
    )
    observer = Observer(("decoder.*.q", "decoder.*.k"))
    output = task.decode(image, prompt, observer)
    record, padded_grid = observer.record, image.embedding.shape[-2:]
    grid = task.unpadded(padded_grid, image)
    tensors: dict[str, Tensor] = {}
    attentions = []
    for name in record.attentions():
        path, _, last = name.rpartition(".")
        kind = _KINDS[last]
        weights = record.weights(name)[0].float()  # (H, T, S)
        if kind == "tokens_to_image":
            weights = weights.unflatten(-1, padded_grid)[..., : grid[0], : grid[1]].flatten(-2)
        if kind == "image_to_tokens":
            weights = weights.unflatten(1, padded_grid)[:, : grid[0], : grid[1]].flatten(1, 2)
        tensors[f"{name}.weights"] = weights
        layer = int(path.rpartition(".")[2]) if ".blocks." in name else spec.decoder.num_layers
        attentions.append(
            schema.TwoWayAttention(weights=f"{name}.weights", layer=layer, kind=kind, heads=weights.shape[0])
        )
    masks, iou = output.masks[0, 0].float(), output.iou[0, 0].float()
    order = task.rank(output, image, prompt)
    rows, columns = task.unpadded(masks.shape[-2:], image)
    tensors["segment.masks"] = masks[order, :rows, :columns]
    labels = [1] * len(prompt.points) + [0] * len(prompt.background_points)
    prepared = PreparedInput(
        kind="segment",
        input=input,
        sequences=prompt_sequences(spec.head.num_masks, labels, prompt.box is not None, grid),
        inputs={},
        size=image.size,
    )
    outcome = schema.SegmentOutcome(
        iou=tuple(iou[order].tolist()), masks="segment.masks", size=image.size, attentions=tuple(attentions)
    )
    return prepared, outcome, tensors
