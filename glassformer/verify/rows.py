"""A row's numbers do not depend on its company: neither on padding nor on the other rows of the batch."""

from __future__ import annotations

import torch

from glassformer.bundle import Bundle
from glassformer.verify.claims import Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import Side, has_tokens, per_token, reads_first_column, sample_for


def padded_equals_unpadded(bundle: Bundle, name: str, side: Side) -> Claim:
    """Rows of unequal lengths, padded on `side`, against each row alone."""
    model, head = bundle.model, bundle.spec.head
    if not has_tokens(model):
        return skipped(name, "images, series and vectors are not padded")
    sample = sample_for(model, side)
    real = sample.real[-1]
    assert real is not None
    with torch.no_grad():
        together = sample.run(model)
        compared = [key for key in together if side == "right" or not reads_first_column(head, key)]
        if not compared:
            return skipped(name, "the head reads the first column, padding or not, as its reference does")
        gaps = []
        for row in range(len(sample)):
            alone = sample.alone(row).run(model)
            for key in compared:
                mine = together[key][row]
                gaps.append(gap(mine[real[row]] if per_token(head, key) else mine, alone[key][0]))
    return measured(name, gaps, tolerance_of(model), f"{len(sample)} rows of unequal length, each also alone")


def batched_equals_single(bundle: Bundle, name: str) -> Claim:
    """Full rows in one batch against each row by itself."""
    model = bundle.model
    sample = sample_for(model)
    with torch.no_grad():
        together = sample.run(model)
        gaps = [
            gap(together[key][row], single[0])
            for row in range(len(sample))
            for key, single in sample.alone(row).run(model).items()
        ]
    return measured(name, gaps, tolerance_of(model), f"{len(sample)} rows at once, each also alone")
