"""Occlusion: how much the scores of an input drop if a part of the image is covered, or a word is masked.

C channels, H x W pixels, L scores, N covered copies of the image, T words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from glassformer.core.inputs import ImageTextInputs
from glassformer.errors import UnsupportedError
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of

MAX_SIDE: Final = 14  # rows and columns of covered squares; those of finer grids have several patches
BATCH: Final = 16


@torch.inference_mode()
def occlude_patches(trace: Trace, size: int = 1) -> Tensor:
    """Cover each patch of the image in turn; return the drops of the scores, (L, rows, columns).

    size: rows and columns of patches around each that are covered with it: 3 x 3, 5 x 5, ... Covered pixels
    have the mean color. The scores are those of the view: the probabilities of the labels, the
    logit (L = 1) of an image and a text, or the log-probabilities of the tokens of a caption.
    """
    patches = next((one for one in trace.sequences if one.kind == "patches"), None)
    if patches is None or patches.grid is None or trace.interventions:
        raise UnsupportedError("this trace", "occlusion", hint="it needs an image and no interventions")
    view = view_of(trace.bundle)
    image, scores = view.image(trace.prepared), partial(view.scores, trace.prepared, trace.record)
    step = -(-max(patches.grid) // MAX_SIDE)
    box = patches.tokens[patches.prefix].box
    assert box is not None
    high, wide = box[3] * step, box[2] * step
    rows, columns = (-(-side // step) for side in patches.grid)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    drops = []
    before = scores(image)
    for start in range(0, len(places), BATCH):
        part = places[start : start + BATCH]
        batch = image.repeat(len(part), 1, 1, 1)
        for covered, (row, column) in zip(batch, part, strict=True):
            top, left = (max(0, at - (size - 1) // 2) for at in (row, column))
            bottom, right = (at + size // 2 + 1 for at in (row, column))
            covered[:, top * high : bottom * high, left * wide : right * wide] = 0  # the mean, normalized
        drops.append(before - scores(batch))
    return torch.cat(drops).T.reshape(-1, rows, columns).cpu()


@torch.inference_mode()
def mask_words(trace: Trace) -> Tensor:
    """Mask each word of a question about an image in turn; return the drops of the scores, (L, T)."""
    view, text = view_of(trace.bundle), trace.prepared.inputs.get("inputs")
    if not isinstance(text, ImageTextInputs) or trace.interventions:
        raise UnsupportedError("this trace", "masked words", hint="it needs a question and no interventions")
    count = text.ids.shape[1]
    visible = ~torch.eye(count, dtype=torch.bool, device=text.ids.device)  # (T, T)
    positions = torch.arange(count, device=text.ids.device)[None]  # those of the other words stay
    masked = replace(trace.prepared, inputs={"inputs": replace(text, mask=visible, positions=positions)})
    image = view.image(trace.prepared)
    before = view.scores(trace.prepared, trace.record, image)
    after = view.scores(masked, trace.record, image.expand(count, -1, -1, -1))
    return (before - after).T.cpu()
