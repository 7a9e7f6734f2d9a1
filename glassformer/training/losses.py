"""The loss over a vocabulary: summed, never averaged here, so that small batches add up to one large one.

Letters: N tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.examples import IGNORED

# Logits held at once. On a GPU few large products are quicker, and one kernel needs no second copy of them.
AT_ONCE, AT_ONCE_ON_GPU = 1 << 24, 1 << 30


def cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """The summed cross-entropy of logits (..., V) and labels (...), in float32.

    With smoothing e the target is 1 - e + e/V for the label and e/V for every other word.

    >>> round(float(cross_entropy(torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.long))), 4)
    12.4766
    """
    flat = logits.flatten(0, -2).float()
    return F.cross_entropy(
        flat, labels.flatten(), reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
    )


def projected_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> Tensor:
    """`cross_entropy(x @ weight.T + bias, labels)` without ever holding all logits at once.

    x (..., D), weight (V, D), labels (...). The logits of `chunk` tokens at a time are made, turned into
    their gradient where they lie, and forgotten: memory is chunk x V whatever N is, and no product is done
    twice. Under autocast the products run in its precision; sums are float32. Without a chunk it is as many
    tokens as give `AT_ONCE` logits, however large the vocabulary.

    >>> x, weight, labels = torch.randn(5, 4), torch.randn(7, 4), torch.tensor([0, 6, 2, IGNORED, 1])
    >>> plain = cross_entropy(x @ weight.T, labels)
    >>> bool(torch.isclose(projected_cross_entropy(x, weight, labels, chunk=2), plain))
    True
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if chunk is None:
        chunk = max(1, (AT_ONCE_ON_GPU if x.is_cuda else AT_ONCE) // len(weight))
    total: Tensor = _Projected.apply(
        x.flatten(0, -2), weight, bias, labels.flatten(), smoothing, chunk, dtype
    )
    return total


@cache
def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()


class _Projected(torch.autograd.Function):
    """Works out the gradients on the way there, chunk by chunk; the way back only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[:3]
        matrix = weight.to(dtype)
        total = torch.zeros((), device=x.device)
        dx: list[Tensor] = []
        dweight = dbias = None
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, len(x), chunk):
                part = x[begin : begin + chunk].to(dtype)  # (n, D)
                wrong, slope = _loss_and_slope(part, matrix, bias, labels[begin : begin + chunk], smoothing)
                total = total + wrong
                if wanted[0]:
                    dx.append((slope @ matrix).to(x.dtype))
                if wanted[1]:
                    more = (slope.T @ part).float()
                    dweight = more if dweight is None else dweight + more
                if bias is not None and wanted[2]:
                    more = slope.sum(0, dtype=torch.float32)
                    dbias = more if dbias is None else dbias + more
        ctx.save_for_backward(torch.cat(dx) if dx else None, dweight, dbias)
        ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if slope is None else (slope * grads[0]).to(dtype)
            for slope, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None, None)


def _loss_and_slope(
    part: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of some tokens (n, D), and its slope by each logit (n, V) in their precision."""
    if part.is_cuda and (torch.compiler.is_compiling() or _has_triton()):  # compiling there needs Triton
        from glassformer.training.cross_entropy_triton import replace_by_slopes

        logits = F.linear(part, matrix, None if bias is None else bias.to(part.dtype))
        return replace_by_slopes(logits, labels, smoothing, IGNORED).sum(), logits
    wrong, slope = _chunk(part @ matrix.T, bias, labels, smoothing)
    return wrong, slope.to(part.dtype)


def _chunk(logits: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The summed loss of some tokens' logits (n, V), and its slope by each logit, in float32."""
    scores = logits.float()
    if bias is not None:
        scores = scores + bias.float()
    learned = (labels != IGNORED)[:, None]  # (n, 1)
    chosen = labels.clamp(min=0)[:, None]  # (n, 1); any word stands in where nothing is learned
    log_sum = scores.logsumexp(-1, keepdim=True)
    right = scores.gather(1, chosen)
    wrong = log_sum - (1 - smoothing) * right
    if smoothing:
        wrong = wrong - smoothing * scores.mean(-1, keepdim=True)
    slope = (scores - log_sum).exp_()  # softmax, where the logits lie
    if smoothing:
        slope -= smoothing / scores.shape[-1]
    slope.scatter_add_(1, chosen, torch.full_like(right, smoothing - 1))
    return (wrong * learned).sum(), slope.mul_(learned)
