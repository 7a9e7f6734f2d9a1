"""The result of a check, and how the difference between two outputs is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.model import AnyModel

Status = Literal["passed", "failed", "skipped"]

# Two correct computations of one number differ by rounding: the tolerance, by the model's dtype.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
GRADIENT_FACTOR = 10  # a gradient sums many more products than an output does


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a check: the worst difference, and the tolerance.

    Differences are relative to the largest value compared if that is above 1. A tolerance of 0 means bit for
    bit. note: what was compared, or why the check was skipped.
    """

    name: str
    status: Status
    worst: float | None = None
    tolerance: float | None = None
    note: str = ""


def dtype_tolerance(model: AnyModel) -> float:
    return TOLERANCES[next(model.parameters()).dtype]


def check_result(name: str, differences: Iterable[float], tolerance: float, note: str = "") -> CheckResult:
    """Pass if no difference is above the tolerance; fail if nothing was compared."""
    values = list(differences)
    if not values:
        return CheckResult(name=name, status="failed", tolerance=tolerance, note="nothing was compared")
    worst = max(values)
    status: Status = "passed" if worst <= tolerance else "failed"
    return CheckResult(name=name, status=status, worst=worst, tolerance=tolerance, note=note)


def skipped(name: str, note: str) -> CheckResult:
    return CheckResult(name=name, status="skipped", note=note)


def relative_error(ours: Tensor, theirs: Tensor, floor: float = 1.0) -> float:
    """The largest difference over the largest value of `theirs` (at least `floor`); infinite if one is NaN.

    >>> relative_error(torch.tensor([200.0, 1.0]), torch.tensor([100.0, 1.0]))
    1.0
    """
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.detach().double().to(ours.device)
    difference = torch.where(ours == theirs, 0.0, ours - theirs).abs()  # inf - inf is NaN
    worst = float(difference.max() / theirs.abs().max().clamp(min=floor))
    return worst if worst == worst else float("inf")


def bitwise_difference(ours: Tensor, theirs: Tensor) -> float:
    """0 if two tensors are equal bit for bit, else their largest difference; infinite if shapes differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    bits = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (ours, theirs))
    if torch.equal(*bits):
        return 0.0
    difference = float((ours.detach().double() - theirs.detach().double().to(ours.device)).abs().max())
    return difference or float("inf")  # e.g. 0.0 and -0.0, or NaN
