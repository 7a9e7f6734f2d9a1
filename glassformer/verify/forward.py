"""Claims about the forward: rows do not depend on their batch, kernels agree, observing changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import KERNELS, Kernel
from glassformer.core.model import AnyModel
from glassformer.core.observe import Observer, Record, observe
from glassformer.errors import GlassformerError
from glassformer.verify.claims import (
    GRADIENT_FACTOR,
    Claim,
    gap,
    measured,
    same_bits,
    skipped,
    tolerance_of,
)
from glassformer.verify.inputs import (
    RandomInputs,
    Side,
    at_real,
    has_tokens,
    per_token,
    random_inputs,
    reads_first_column,
)

Run = Callable[[AnyModel, RandomInputs, Kernel], list[Tensor]]

# ---- rows and padding -----------------------------------------------------------------------------------


def batched_equals_single(bundle: Bundle, name: str, side: Side = "none") -> Claim:
    """Each row of a batch alone; with a side, rows of unequal lengths, padded there."""
    model, head = bundle.model, bundle.spec.head
    if side != "none" and not has_tokens(model):
        return skipped(name, "images, series and vectors are not padded")
    sample = random_inputs(model, side)
    real = sample.real[-1]
    with torch.no_grad():
        together = sample.run(model)
        compared = [key for key in together if side != "left" or not reads_first_column(head, key)]
        if not compared:
            return skipped(name, "the head reads the first column, padding or not, as its reference does")
        gaps = []
        for row in range(len(sample)):
            alone = sample.alone(row).run(model)
            for key in compared:
                mine = together[key][row]
                per_real = real is not None and per_token(head, key)
                gaps.append(gap(mine[real[row]] if per_real and real is not None else mine, alone[key][0]))
    lengths = "" if side == "none" else " of unequal length"
    return measured(name, gaps, tolerance_of(model), f"{len(sample)} rows{lengths}, each also alone")


# ---- kernels ---------------------------------------------------------------------------------------------


def kernels_agree(bundle: Bundle, name: str) -> Claim:
    """Outputs of each kernel against the explicit one's, with padding on the left (so with empty rows)."""
    with torch.no_grad():
        return _against_explicit(bundle, name, _outputs, 1.0, tolerance_of(bundle.model))


def gradients_agree(bundle: Bundle, name: str) -> Claim:
    """Gradients of the first attention's projections, through every layer above it."""
    tolerance = GRADIENT_FACTOR * tolerance_of(bundle.model)
    if not any(isinstance(m, MultiHeadAttention) for m in bundle.model.modules()):
        return skipped(name, "the model has no attention")
    with torch.enable_grad():
        return _against_explicit(bundle, name, _gradients, 0.0, tolerance)


def _against_explicit(bundle: Bundle, name: str, run: Run, floor: float, tolerance: float) -> Claim:
    sample = random_inputs(bundle.model, "left" if has_tokens(bundle.model) else "none")
    expected = run(bundle.model, sample, "explicit")
    largest = max((float(t.detach().abs().max()) for t in expected), default=0.0)
    gaps, tried, absent = [], [], []
    for kernel in KERNELS:
        if kernel == "explicit":
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # flex says on a CPU that it is slow there
                found = run(bundle.model, sample, kernel)
        except GlassformerError:
            absent.append(kernel)
            continue
        tried.append(kernel)
        gaps += [gap(f, e, max(floor, largest)) for f, e in zip(found, expected, strict=True)]
    missing = f" (not {', '.join(absent)})" if absent else ""
    return measured(name, gaps, tolerance, f"{', '.join(tried)} against explicit{missing}")


def _outputs(model: AnyModel, sample: RandomInputs, kernel: Kernel) -> list[Tensor]:
    return list(at_real(model, sample, sample.run(model, kernel=kernel)).values())


def _gradients(model: AnyModel, sample: RandomInputs, kernel: Kernel) -> list[Tensor]:
    found = at_real(model, sample, sample.run(model, kernel=kernel)).values()
    # each number with a weight of its own: a sum of squares would be constant for vectors of length 1
    draw = torch.Generator().manual_seed(1)
    loss = torch.stack(
        [(t.float() * torch.randn(t.shape, generator=draw).to(t.device)).mean() for t in found]
    )
    first = next(m for m in model.modules() if isinstance(m, MultiHeadAttention))
    asked = [first.q_proj.weight, first.k_proj.weight, first.v_proj.weight]
    return list(torch.autograd.grad(loss.sum(), asked))


# ---- observation -----------------------------------------------------------------------------------------


def observed_equals_unobserved(bundle: Bundle, name: str) -> Claim:
    """Every output with an observer, bit for bit that without."""
    model = bundle.model
    sample = random_inputs(model)
    with torch.no_grad():
        plain = sample.run(model)
        watched = sample.run(model, obs=Observer())
    gaps = [same_bits(watched[key], plain[key]) for key in plain]
    return measured(name, gaps, 0.0, "outputs with and without an observer, bit for bit")


def _record(bundle: Bundle) -> Record:
    """All attentions of a batch padded on the left, so that some queries may attend to nothing."""
    model = bundle.model
    sample = random_inputs(model, "left" if has_tokens(model) else "none")
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
