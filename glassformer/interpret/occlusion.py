"""Occlusion: how much the score of an image drops if a part of the image is covered.

C channels, H x W pixels, L labels, N covered copies of the image.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from glassformer.core.inputs import tensor_of
from glassformer.errors import UnsupportedError
from glassformer.interpret.readout import head_readout
from glassformer.interpret.trace import Trace

MAX_SIDE: Final = 14  # rows and columns of covered squares; those of finer grids have several patches
BATCH: Final = 16


@torch.inference_mode()
def occlude_patches(trace: Trace) -> Tensor:
    """Cover each patch of the image in turn; return the drops of the scores, (L, rows, columns).

    Covered pixels have the mean color. The scores are the probabilities of the labels, or the logit (L = 1)
    of an image and a text.
    """
    patches = next((one for one in trace.sequences if one.kind == "patches"), None)
    if patches is None or patches.grid is None or trace.interventions:
        raise UnsupportedError("this trace", "occlusion", hint="it needs an image and no interventions")
    image = tensor_of(next(iter(trace.prepared.inputs.values())))
    step = -(-max(patches.grid) // MAX_SIDE)
    box = patches.tokens[patches.prefix].box
    assert box is not None
    high, wide = box[3] * step, box[2] * step
    rows, columns = (-(-side // step) for side in patches.grid)
    places = [(row * high, column * wide) for row in range(rows) for column in range(columns)]
    drops = []
    before = _scores(trace, image)
    for start in range(0, len(places), BATCH):
        part = places[start : start + BATCH]
        batch = image.repeat(len(part), 1, 1, 1)
        for covered, (top, left) in zip(batch, part, strict=True):
            covered[:, top : top + high, left : left + wide] = 0  # the mean, after normalization
        drops.append(before - _scores(trace, batch))
    return torch.cat(drops).T.reshape(-1, rows, columns).cpu()


def _scores(trace: Trace, images: Tensor) -> Tensor:
    """Return the scores (N, L) of images (N, C, H, W)."""
    model: Any = trace.bundle.model
    if model.spec.children():
        scores: Tensor = model.head(model.embed_images(images), trace.record.output.text_embeds)
        return scores.float()
    readout = head_readout(trace.bundle)
    output = model(images)
    return readout.probabilities((output if isinstance(output, Tensor) else output.logits).float())
