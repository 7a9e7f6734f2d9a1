"""Every attention kernel gives the explicit one's numbers and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.kernels import KERNELS, Kernel
from glassformer.core.model import AnyModel
from glassformer.errors import GlassformerError
from glassformer.verify.claims import GRADIENT_FACTOR, Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import Sample, at_real, has_tokens, sample_for

Run = Callable[[AnyModel, Sample, Kernel], list[Tensor]]


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
    sample = sample_for(bundle.model, "left" if has_tokens(bundle.model) else "none")
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
    return measured(name, gaps, tolerance, f"{', '.join(tried)} against explicit{_not_here(absent)}")


def _not_here(absent: Iterable[str]) -> str:
    names = ", ".join(absent)
    return f" (not {names})" if names else ""


def _outputs(model: AnyModel, sample: Sample, kernel: Kernel) -> list[Tensor]:
    return list(at_real(model, sample, sample.run(model, kernel=kernel)).values())


def _gradients(model: AnyModel, sample: Sample, kernel: Kernel) -> list[Tensor]:
    found = at_real(model, sample, sample.run(model, kernel=kernel)).values()
    # each number with a weight of its own: a sum of squares would be constant for vectors of length 1
    draw = torch.Generator().manual_seed(1)
    loss = torch.stack(
        [(t.float() * torch.randn(t.shape, generator=draw).to(t.device)).mean() for t in found]
    )
    first = next(m for m in model.modules() if isinstance(m, MultiHeadAttention))
    asked = [first.q_proj.weight, first.k_proj.weight, first.v_proj.weight]
    return list(torch.autograd.grad(loss.sum(), asked))
