"""Measure the difference between two outputs, and judge it by the rounding error of the computation.

Two correct computations of the same values differ by rounding. For most models a small tolerance is enough.
Large activations have larger rounding errors, so a difference above this tolerance is compared with a
measurement: the same computation runs once in float64, which shows how far float32 is from the exact result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.model import AnyModel
from glassformer.verify.inputs import RandomInputs

Status = Literal["passed", "failed", "skipped"]

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # by the model's dtype
MAX_ROUNDING_ERRORS = 8  # two correct computations differ by at most this many rounding errors
MAX_FLOAT32_TOLERANCE = 1e-3  # a larger difference is an error, however large the rounding error


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a check: the largest difference, and the tolerance.

    Differences are relative to the largest value compared, or to 1 if that is larger. A tolerance of 0 means
    bit-identical. rounding_error: difference from float64, if the tolerance was raised because of it.
    note: what was compared, or why the check was skipped.
    """

    name: str
    status: Status
    worst: float | None = None
    tolerance: float | None = None
    rounding_error: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Tolerance:
    """How far two correct computations of the same values may differ.

    minimum: allowed without a measurement
    rounding_error: measures the distance of the computation from float64; called only for a difference above
        `minimum`. None: no larger difference is allowed.
    """

    minimum: float
    rounding_error: Callable[[], float] | None = None

    @classmethod
    def of_dtype(
        cls, dtype: torch.dtype, rounding_error: Callable[[], float], minimum: float = 0.0
    ) -> Tolerance:
        """Return the tolerance of a dtype, at least `minimum`; only that of float32 can be raised."""
        minimum = max(minimum, TOLERANCES[dtype])
        return cls(minimum, rounding_error if dtype == torch.float32 else None)

    @classmethod
    def of_model(
        cls,
        model: AnyModel,
        sample: RandomInputs,
        run: Callable[[AnyModel, RandomInputs], Sequence[Tensor]],
        minimum: float = 0.0,
        floor: float = 1.0,
    ) -> Tolerance:
        """Return the tolerance for differences from `run(model, sample)`, the outputs to compare with.

        The rounding error is that of the explicit kernel: an imprecise kernel must not raise the tolerance.
        """

        def rounding_error() -> float:
            explicit = replace(sample, kernel="explicit")
            exact = run(copy.deepcopy(model).double(), explicit.double())
            pairs = zip(run(model, explicit), exact, strict=True)
            return max(relative_error(rounded, e, floor) for rounded, e in pairs)

        return cls.of_dtype(next(model.parameters()).dtype, rounding_error, minimum)


def check_result(
    name: str, differences: Iterable[float], tolerance: Tolerance, note: str = ""
) -> CheckResult:
    """Build the result: passed if no difference exceeds the tolerance, failed if nothing was compared."""
    allowed, error = tolerance.minimum, None
    worst = max(differences, default=None)
    if worst is None:
        return CheckResult(name=name, status="failed", tolerance=allowed, note="nothing was compared")
    if worst > allowed and tolerance.rounding_error is not None:
        error = tolerance.rounding_error()
        allowed = max(allowed, min(MAX_ROUNDING_ERRORS * error, MAX_FLOAT32_TOLERANCE))
    status: Status = "passed" if worst <= allowed else "failed"
    return CheckResult(
        name=name, status=status, worst=worst, tolerance=allowed, rounding_error=error, note=note
    )


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
