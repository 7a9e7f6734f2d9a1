"""Checks of the forward pass: rows do not depend on their batch, kernels agree, observers change nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import KERNELS
from glassformer.core.model import AnyModel
from glassformer.core.observe import Observer, Record, observe
from glassformer.core.precision import upcast
from glassformer.errors import GlassformerError
from glassformer.verify.comparison import (
    TOLERANCES,
    CheckResult,
    Tolerance,
    bitwise_difference,
    check_result,
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

Run = Callable[[AnyModel, RandomInputs], list[Tensor]]

GRADIENT_FACTOR = 10  # a gradient accumulates more rounding errors than an output

# ---- rows and padding -----------------------------------------------------------------------------------


def batched_equals_single(bundle: Bundle, name: str, side: Side = "none") -> CheckResult:
    """Compare each row of a batch with the same row run alone. side: where shorter rows are padded."""
    model, head = bundle.model, bundle.spec.head
    if side != "none" and not has_tokens(model):
        return skipped(name, "images, series, vectors and latents are not padded")
    sample = random_inputs(model, side, batch=BATCH)
    mask = sample.masks[-1]
    with torch.no_grad():
        batched = sample.run(model)
        compared = [  # a similarity compares a row with all other rows
            key for key in batched if not pools_padding(head, key, side) and not key.startswith("logits_per_")
        ]
        if not compared:
            return skipped(name, "the head reads the first column even if it is padding, like the reference")

        def single_rows(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
            outputs = (sample.single_row(row).run(model) for row in range(len(sample)))
            return [output[key][0] for output in outputs for key in compared]

        rows = [
            batched[key][row] if mask is None or not is_per_token(head, key) else batched[key][row][mask[row]]
            for row in range(len(sample))
            for key in compared
        ]
        differences = map(relative_error, rows, single_rows(model, sample))
        lengths = "" if side == "none" else " of unequal length"
        note = f"{len(sample)} rows{lengths}, each also alone"
        return check_result(name, differences, Tolerance.of_model(model, sample, single_rows), note)


# ---- kernels ---------------------------------------------------------------------------------------------


def kernels_agree(bundle: Bundle, name: str) -> CheckResult:
    """Compare each attention kernel with the explicit (unfused) kernel on a left-padded batch."""
    with torch.no_grad():
        return _compare_with_explicit(bundle, name, _outputs, floor=1.0)


def gradients_agree(bundle: Bundle, name: str) -> CheckResult:
    """Compare the gradients of the first attention layer's projections with those of the explicit kernel."""
    if not any(isinstance(m, MultiHeadAttention) for m in bundle.model.modules()):
        return skipped(name, "the model has no attention")
    minimum = GRADIENT_FACTOR * TOLERANCES[next(bundle.model.parameters()).dtype]
    with torch.enable_grad():
        return _compare_with_explicit(bundle, name, _gradients, floor=0.0, minimum=minimum)


def _compare_with_explicit(
    bundle: Bundle, name: str, run: Run, *, floor: float, minimum: float = 0.0
) -> CheckResult:
    sample = random_inputs(bundle.model, "left" if has_tokens(bundle.model) else "none")
    expected = run(bundle.model, replace(sample, kernel="explicit"))
    floor = max([floor, *(float(t.detach().abs().max()) for t in expected)])
    differences, compared, unsupported = [], [], []
    for kernel in KERNELS:
        if kernel == "explicit":
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # flex warns that it is slow on a CPU
                outputs = run(bundle.model, replace(sample, kernel=kernel))
        except GlassformerError:
            unsupported.append(kernel)
            continue
        compared.append(kernel)
        differences += [relative_error(f, e, floor) for f, e in zip(outputs, expected, strict=True)]
    missing = f" (not {', '.join(unsupported)})" if unsupported else ""
    tolerance = Tolerance.of_model(bundle.model, sample, run, minimum, floor)
    return check_result(name, differences, tolerance, f"{', '.join(compared)} against explicit{missing}")


def _outputs(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
    return list(drop_padding(model, sample, sample.run(model)).values())


def _gradients(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
    outputs = drop_padding(model, sample, sample.run(model)).values()
    # a random projection as loss: a sum of squares would be constant for normalized vectors
    generator = torch.Generator().manual_seed(1)
    loss = torch.stack(
        [(upcast(t) * torch.randn(t.shape, generator=generator).to(t.device)).mean() for t in outputs]
    )
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    # object queries may start as zeros, which gives the first layer of a decoder alone no gradient
    queries = model.spec.modalities == ("image",) and [*model.spec.stacks()] == ["decoder"]
    chosen = attentions[-1 if queries else 0]
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
    note = "outputs with and without an observer, bit for bit"
    return check_result(name, differences, Tolerance(0.0), note)


def _record(bundle: Bundle) -> Record:
    """Record all attention layers on a left-padded batch, in which some queries attend to nothing."""
    model = bundle.model
    sample = random_inputs(model, "left" if has_tokens(model) else "none")
    return observe(model, sample.arguments(), want=("*.q", "*.k", "*.v", "*.heads"))


def rows_sum_to_one(bundle: Bundle, name: str) -> CheckResult:
    """Check that every row of every attention matrix sums to 1, or to 0 if it is fully masked."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    differences = []
    for attention in record.attentions():
        sums = record.weights(attention).sum(-1)
        differences.append(float(torch.minimum((sums - 1).abs(), sums.abs()).nan_to_num(float("inf")).max()))
    note = f"{len(differences)} attentions, every head; 0 if fully masked"
    return check_result(name, differences, Tolerance(1e-5), note)


def attention_weights_match_outputs(bundle: Bundle, name: str) -> CheckResult:
    """Compare recomputed attention weights times values with the head outputs of the fast kernel."""
    record = _record(bundle)
    if not record.attentions():
        return skipped(name, "the model has no attention")
    heads = [_recomputed_heads(record, attention) for attention in record.attentions()]
    fast = [record[f"{attention}.heads"] for attention in record.attentions()]

    def rounding_error() -> float:
        exact = record.double()
        pairs = zip(heads, record.attentions(), strict=True)
        return max(relative_error(h, _recomputed_heads(exact, attention)) for h, attention in pairs)

    return check_result(
        name,
        map(relative_error, fast, heads),
        Tolerance.of_dtype(next(bundle.model.parameters()).dtype, rounding_error),
        f"{len(heads)} attentions, recomputed afterwards",
    )


def _recomputed_heads(record: Record, attention: str) -> Tensor:
    """Return attention weights times values, (B, H, T, V)."""
    weights, v = record.weights(attention), record[f"{attention}.v"]
    values = v.to(weights.dtype).repeat_interleave(weights.shape[1] // v.shape[1], 1)  # (B, H, S, V)
    return weights @ values
