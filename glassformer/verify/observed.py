"""Looking changes nothing, and what is seen is what happened."""

from __future__ import annotations

import torch

from glassformer.bundle import Bundle
from glassformer.core.observe import Observer, Record, observe
from glassformer.verify.claims import Claim, gap, measured, same_bits, skipped, tolerance_of
from glassformer.verify.inputs import has_tokens, sample_for


def observed_equals_unobserved(bundle: Bundle, name: str) -> Claim:
    """Every output with an observer, bit for bit that without."""
    model = bundle.model
    sample = sample_for(model)
    with torch.no_grad():
        plain = sample.run(model)
        watched = sample.run(model, obs=Observer())
    gaps = [same_bits(watched[key], plain[key]) for key in plain]
    return measured(name, gaps, 0.0, "outputs with and without an observer, bit for bit")


def _record(bundle: Bundle) -> Record:
    """All attentions of a batch padded on the left, so that some queries may attend to nothing."""
    model = bundle.model
    sample = sample_for(model, "left" if has_tokens(model) else "none")
    return observe(model, (*sample.inputs, *sample.real), want=("*.q", "*.k", "*.v", "*.heads"))


def rows_sum_to_one(bundle: Bundle, name: str) -> Claim:
    """Every row of every attention matrix: 1, or 0 where nothing may be attended to."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    gaps = []
    for attention in record.attentions():
        sums = record.weights(attention).sum(-1)
        gaps.append(float(torch.minimum((sums - 1).abs(), sums.abs()).nan_to_num(float("inf")).max()))
    return measured(name, gaps, 1e-5, f"{len(gaps)} attentions, every head; 0 where all is masked")


def weights_make_heads(bundle: Bundle, name: str) -> Claim:
    """The recomputed matrices times the values, against the head outputs the fast kernel gave."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    gaps = []
    for attention in record.attentions():
        weights, v = record.weights(attention), record[f"{attention}.v"]
        values = v.float().repeat_interleave(weights.shape[1] // v.shape[1], 1)  # (B, H, S, V)
        gaps.append(gap(record[f"{attention}.heads"], weights @ values))
    return measured(name, gaps, tolerance_of(bundle.model), f"{len(gaps)} attentions, recomputed afterwards")
