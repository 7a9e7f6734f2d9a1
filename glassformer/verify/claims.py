"""One promise, what was measured of it, and how a difference between two outputs is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.core.model import AnyModel

Status = Literal["holds", "fails", "skipped"]

# Two right ways to the same number differ by rounding: what they may differ by, by the model's precision.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
GRADIENT_FACTOR = 10  # a gradient sums many more products than an output does


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A promise and its proof: the worst difference found beside the largest one allowed.

    Differences are relative to the largest number compared where that is above 1. A tolerance of 0
    means bit for bit. `note` says what was compared, or why the claim does not apply.
    """

    name: str
    status: Status
    worst: float | None = None
    tolerance: float | None = None
    note: str = ""


def tolerance_of(model: AnyModel) -> float:
    return TOLERANCES[next(model.parameters()).dtype]


def measured(name: str, gaps: Iterable[float], tolerance: float, note: str = "") -> Claim:
    """The claim that no gap is above the tolerance; with no gap at all nothing is proved, so it fails."""
    found = list(gaps)
    if not found:
        return Claim(name=name, status="fails", tolerance=tolerance, note="nothing was compared")
    worst = max(found)
    status: Status = "holds" if worst <= tolerance else "fails"
    return Claim(name=name, status=status, worst=worst, tolerance=tolerance, note=note)


def skipped(name: str, note: str) -> Claim:
    return Claim(name=name, status="skipped", note=note)


def gap(ours: Tensor, theirs: Tensor, floor: float = 1.0) -> float:
    """The largest difference, over the largest number of `theirs` (or `floor`); infinite where one is NaN.

    >>> gap(torch.tensor([200.0, 1.0]), torch.tensor([100.0, 1.0]))
    1.0
    """
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.numel():
        return 0.0
    ours, theirs = ours.detach().double(), theirs.detach().double().to(ours.device)
    difference = torch.where(ours == theirs, 0.0, ours - theirs).abs()  # equal infinities differ by nothing
    worst = float(difference.max() / theirs.abs().max().clamp(min=floor))
    return worst if worst == worst else float("inf")


def same_bits(ours: Tensor, theirs: Tensor) -> float:
    """0 where two tensors are the same bit for bit, else their largest difference (infinite for shapes)."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    bits = (t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (ours, theirs))
    if torch.equal(*bits):
        return 0.0
    difference = float((ours.detach().double() - theirs.detach().double().to(ours.device)).abs().max())
    return difference or float("inf")  # 0.0 against -0.0, and NaN, are other bits too
