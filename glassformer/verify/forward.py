"""Checks of the forward pass: rows do not depend on their batch, kernels agree, observers change nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import KERNELS, Kernel
from glassformer.core.mask_classifier import MaskClassifier
from glassformer.core.model import AnyModel, TwoTower
from glassformer.core.observe import Observer, Record, observe
from glassformer.errors import GlassformerError
from glassformer.verify.comparison import (
    GRADIENT_FACTOR,
    CheckResult,
    bitwise_difference,
    check_result,
    dtype_tolerance,
    relative_error,
    skipped,
)
from glassformer.verify.inputs import (
    BATCH,
    RandomInputs,
    Side,
    drop_padding,
    has_tokens,
    is_per_token,
    pools_padding,
    random_inputs,
)

Run = Callable[[AnyModel, RandomInputs, Kernel], list[Tensor]]

# ---- rows and padding -----------------------------------------------------------------------------------


def batched_equals_single(bundle: Bundle, name: str, side: Side = "none") -> CheckResult:
    """Compare each row of a batch with the same row run alone. side: where shorter rows are padded."""
    model, head = bundle.model, bundle.spec.head
    if side != "none" and not has_tokens(model):
        return skipped(name, "images, series and vectors are not padded")
    sample = random_inputs(model, side, batch=BATCH)
    mask = sample.masks[-1]
    with torch.no_grad():
        batched = sample.run(model)
        compared = [key for key in batched if not pools_padding(head, key, side)]
        if isinstance(model, TwoTower):  # a row's logits compare it with all other rows
            compared = [key for key in compared if not key.startswith("logits_per_")]
        if not compared:
            return skipped(name, "the head reads the first column even if it is padding, like the reference")
        differences = []
        for row in range(len(sample)):
            single = sample.single_row(row).run(model)
            for key in compared:
                row_output = batched[key][row]
                if mask is not None and is_per_token(head, key):
                    row_output = row_output[mask[row]]
                differences.append(relative_error(row_output, single[key][0]))
    lengths = "" if side == "none" else " of unequal length"
    return check_result(
        name, differences, dtype_tolerance(model), f"{len(sample)} rows{lengths}, each also alone"
    )


# ---- kernels ---------------------------------------------------------------------------------------------


def kernels_agree(bundle: Bundle, name: str) -> CheckResult:
    """Compare each attention kernel with the explicit (unfused) kernel on a left-padded batch."""
    with torch.no_grad():
        return _compare_with_explicit(bundle, name, _outputs, 1.0, dtype_tolerance(bundle.model))


def gradients_agree(bundle: Bundle, name: str) -> CheckResult:
    """Compare the gradients of the first attention layer's projections with those of the explicit kernel."""
    tolerance = GRADIENT_FACTOR * dtype_tolerance(bundle.model)
    if not any(isinstance(m, MultiHeadAttention) for m in bundle.model.modules()):
        return skipped(name, "the model has no attention")
    with torch.enable_grad():
        return _compare_with_explicit(bundle, name, _gradients, 0.0, tolerance)


def _compare_with_explicit(
    bundle: Bundle, name: str, run: Run, floor: float, tolerance: float
) -> CheckResult:
    sample = random_inputs(bundle.model, "left" if has_tokens(bundle.model) else "none")
    expected = run(bundle.model, sample, "explicit")
    largest = max((float(t.detach().abs().max()) for t in expected), default=0.0)
    differences, compared, unsupported = [], [], []
    for kernel in KERNELS:
        if kernel == "explicit":
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # flex warns that it is slow on a CPU
                outputs = run(bundle.model, sample, kernel)
        except GlassformerError:
            unsupported.append(kernel)
            continue
        compared.append(kernel)
        differences += [
            relative_error(f, e, max(floor, largest)) for f, e in zip(outputs, expected, strict=True)
        ]
    missing = f" (not {', '.join(unsupported)})" if unsupported else ""
    return check_result(name, differences, tolerance, f"{', '.join(compared)} against explicit{missing}")


def _outputs(model: AnyModel, sample: RandomInputs, kernel: Kernel) -> list[Tensor]:
    return list(drop_padding(model, sample, sample.run(model, kernel=kernel)).values())


def _gradients(model: AnyModel, sample: RandomInputs, kernel: Kernel) -> list[Tensor]:
    outputs = drop_padding(model, sample, sample.run(model, kernel=kernel)).values()
    # a random projection as loss: a sum of squares would be constant for normalized vectors
    generator = torch.Generator().manual_seed(1)
    loss = torch.stack(
        [(t.float() * torch.randn(t.shape, generator=generator).to(t.device)).mean() for t in outputs]
    )
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    # object queries may start as zeros, which gives the first layer no gradient
    chosen = attentions[-1 if isinstance(model, MaskClassifier) else 0]
    weights = [chosen.q_proj.weight, chosen.k_proj.weight, chosen.v_proj.weight]
    return list(torch.autograd.grad(loss.sum(), weights))


# ---- observation -----------------------------------------------------------------------------------------


def observed_equals_unobserved(bundle: Bundle, name: str) -> CheckResult:
    """Compare every output with and without an observer; they must be bit-identical."""
    model = bundle.model
    sample = random_inputs(model)
    with torch.no_grad():
        plain = sample.run(model)
        observed = sample.run(model, obs=Observer())
    differences = [bitwise_difference(observed[key], plain[key]) for key in plain]
    return check_result(name, differences, 0.0, "outputs with and without an observer, bit for bit")


def _record(bundle: Bundle) -> Record:
    """Record all attention layers on a left-padded batch, in which some queries attend to nothing."""
    model = bundle.model
    sample = random_inputs(model, "left" if has_tokens(model) else "none")
    return observe(model, sample.arguments(model), want=("*.q", "*.k", "*.v", "*.heads"))


def rows_sum_to_one(bundle: Bundle, name: str) -> CheckResult:
    """Check that every row of every attention matrix sums to 1, or to 0 if it is fully masked."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    differences = []
    for attention in record.attentions():
        sums = record.weights(attention).sum(-1)
        differences.append(float(torch.minimum((sums - 1).abs(), sums.abs()).nan_to_num(float("inf")).max()))
    return check_result(
        name, differences, 1e-5, f"{len(differences)} attentions, every head; 0 if fully masked"
    )


def attention_weights_match_outputs(bundle: Bundle, name: str) -> CheckResult:
    """Compare recomputed attention weights times values with the head outputs of the fast kernel."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    differences = []
    for attention in record.attentions():
        weights, v = record.weights(attention), record[f"{attention}.v"]
        values = v.float().repeat_interleave(weights.shape[1] // v.shape[1], 1)  # (B, H, S, V)
        differences.append(relative_error(record[f"{attention}.heads"], weights @ values))
    return check_result(
        name,
        differences,
        dtype_tolerance(bundle.model),
        f"{len(differences)} attentions, recomputed afterwards",
    )
