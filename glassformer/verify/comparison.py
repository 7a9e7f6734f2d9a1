"""Measure the difference between two outputs, and report the result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.model import AnyModel

Status = Literal["passed", "failed", "skipped"]

# Tolerance by the model's dtype: two correct computations of the same value differ by rounding.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
GRADIENT_FACTOR = 10  # a gradient accumulates more rounding errors than an output


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a check: the largest difference, and the tolerance.

    Differences are relative to the largest value compared, or to 1 if that is larger. A tolerance of 0 means
    bit-identical. note: what was compared, or why the check was skipped.
    """

    name: str
    status: Status
    worst: float | None = None
    tolerance: float | None = None
    note: str = ""


def dtype_tolerance(model: AnyModel) -> float:
    return TOLERANCES[next(model.parameters()).dtype]


def check_result(name: str, differences: Iterable[float], tolerance: float, note: str = "") -> CheckResult:
    """Build the result: passed if no difference exceeds the tolerance, failed if nothing was compared."""
    values = list(differences)
    if not values:
        return CheckResult(name=name, status="failed", tolerance=tolerance, note="nothing was compared")
    worst = max(values)
    status: Status = "passed" if worst <= tolerance else "failed"
    return CheckResult(name=name, status=status, worst=worst, tolerance=tolerance, note=note)


def skipped(name: str, note: str) -> CheckResult:
    return CheckResult(name=name, status="skipped", note=note)


def relative_error(ours: Tensor, theirs: Tensor, floor: float = 1.0) -> float:
    """Return max |ours - theirs| / max(max |theirs|, floor); infinite if it is NaN or the shapes differ.

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
    """Return 0 for bit-identical tensors, else their largest difference; infinite if shapes differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    bits = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (ours, theirs))
    if torch.equal(*bits):
        return 0.0
    difference = float((ours.detach().double() - theirs.detach().double().to(ours.device)).abs().max())
    return difference or float("inf")  # e.g. 0.0 and -0.0, or NaN
