"""Cross-entropy over a vocabulary, summed instead of averaged, so that batch losses can be added.

Letters: N tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.backend import apply_softcap
from glassformer.data.examples import IGNORE_INDEX

# Number of logits in memory at once. On a GPU, few large matrix multiplications are faster, and the Triton
# kernel needs no second copy.
CPU_LOGITS, GPU_LOGITS = 1 << 24, 1 << 30


def cross_entropy(
    logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    """Return the summed cross-entropy of logits (..., V) and labels (...), in float32.

    weight: weight of each class (V,).

    With label smoothing e the target probability is 1 - e + e/V for the label and e/V for every other token.

    >>> round(float(cross_entropy(torch.zeros(2, 3, 8), torch.zeros(2, 3, dtype=torch.long))), 4)
    12.4766
    """
    flat = logits.flatten(0, -2).float()
    return F.cross_entropy(
        flat,
        labels.flatten(),
        weight=weight,
        reduction="sum",
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
    )


def projected_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """`cross_entropy(softcap(x @ weight.T + bias), labels)` without storing all logits at once.

    x (..., D), weight (V, D), labels (...). The logits of `chunk` tokens at a time are computed, replaced by
    their gradient in place, and freed: memory is chunk x V for any N, and no matrix multiplication is done
    twice. Under autocast, matrix multiplications use its dtype; sums are float32. By default, chunk x V is
    about `CPU_LOGITS` or `GPU_LOGITS`.

    >>> x, weight, labels = torch.randn(5, 4), torch.randn(7, 4), torch.tensor([0, 6, 2, IGNORE_INDEX, 1])
    >>> plain = cross_entropy(x @ weight.T, labels)
    >>> bool(torch.isclose(projected_cross_entropy(x, weight, labels, chunk=2), plain))
    True
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if chunk is None:
        chunk = max(1, (GPU_LOGITS if x.is_cuda else CPU_LOGITS) // len(weight))
    total: Tensor = _ProjectedCrossEntropy.apply(
        x.flatten(0, -2), weight, bias, labels.flatten(), label_smoothing, softcap, chunk, dtype
    )
    return total


def contrastive_loss(
    logits: Tensor, targets: Tensor, same: Tensor | None = None, *, sigmoid: bool = False
) -> Tensor:
    """Return the summed contrastive loss of rows (B, N), e.g. of images against the texts of a batch.

    targets: column (B,) of the pair of each row. same: bool (B, N), further columns that match a row; they
    are left out, being neither the pair nor negatives.
    sigmoid: classify every pair separately, instead of a softmax over the row.

    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> round(float(contrastive_loss(logits, torch.arange(2))), 4)
    0.0002
    """
    logits = logits.float()
    pairs = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, targets[:, None], True)
    left_out = torch.zeros_like(pairs) if same is None else same & ~pairs
    if sigmoid:
        losses = -F.logsigmoid(torch.where(pairs, logits, -logits))
        return torch.where(left_out, 0.0, losses).sum()
    return F.cross_entropy(logits.masked_fill(left_out, -torch.inf), targets, reduction="sum")


@cache
def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()


def cosent_loss(similarities: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return the CoSENT loss of cosine similarities (B,): pairs with a higher score should be more similar.

    It is log(1 + sum exp((s_i - s_j) / temperature)) over all i, j where the score of i is below that of j.

    >>> loss = cosent_loss(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 5.0]), 1.0)
    >>> bool(torch.isclose(loss, torch.tensor(-0.8).exp().log1p()))
    True
    """
    scaled = similarities / temperature
    differences = scaled[:, None] - scaled  # (B, B)
    wrong_order = differences.masked_fill(scores[:, None] >= scores, -torch.inf).flatten()
    return torch.cat((wrong_order.new_zeros(1), wrong_order)).logsumexp(0)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Compute the gradients in the forward pass, chunk by chunk; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        softcap: float | None,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        needs_grad = ctx.needs_input_grad[:3]
        matrix = weight.to(dtype)
        total = torch.zeros((), device=x.device)
        dx: list[Tensor] = []
        dweight = dbias = None
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(x), chunk):
                part = x[start : start + chunk].to(dtype)  # (n, D)
                loss, grad = _loss_and_grad(
                    part, matrix, bias, labels[start : start + chunk], label_smoothing, softcap
                )
                total = total + loss
                if needs_grad[0]:
                    dx.append((grad @ matrix).to(x.dtype))
                if needs_grad[1]:
                    update = (grad.T @ part).float()
                    dweight = update if dweight is None else dweight + update
                if bias is not None and needs_grad[2]:
                    update = grad.sum(0, dtype=torch.float32)
                    dbias = update if dbias is None else dbias + update
        ctx.save_for_backward(torch.cat(dx) if dx else None, dweight, dbias)
        ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if grad is None else (grad * grads[0]).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None, None, None)


def _loss_and_grad(
    part: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    label_smoothing: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of hidden states (n, D), and its gradient w.r.t. the logits (n, V).

    matrix: the output weight (V, D). The gradient has the dtype of `part`.
    """
    if part.is_cuda and (torch.compiler.is_compiling() or _has_triton()):  # compiling needs Triton too
        from glassformer.training.cross_entropy_triton import cross_entropy_with_grad_

        logits = F.linear(part, matrix, None if bias is None else bias.to(part.dtype))
        scores = apply_softcap(logits, softcap)
        slope = None if softcap is None else 1 - (scores / softcap).square()  # of the softcap
        loss = cross_entropy_with_grad_(scores, labels, label_smoothing, IGNORE_INDEX).sum()
        return loss, scores if slope is None else scores * slope
    loss, grad = _chunk_loss(part @ matrix.T, bias, labels, label_smoothing, softcap)
    return loss, grad.to(part.dtype)


def _chunk_loss(
    logits: Tensor, bias: Tensor | None, labels: Tensor, label_smoothing: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of logits (n, V) plus bias, and its gradient w.r.t. them, in float32."""
    scores = logits.float()
    if bias is not None:
        scores = scores + bias.float()
    scores = apply_softcap(scores, softcap)
    counted = (labels != IGNORE_INDEX)[:, None]  # (n, 1)
    target = labels.clamp(min=0)[:, None]  # (n, 1); any token for ignored labels
    log_sum = scores.logsumexp(-1, keepdim=True)
    target_score = scores.gather(1, target)
    loss = log_sum - (1 - label_smoothing) * target_score
    if label_smoothing:
        loss = loss - label_smoothing * scores.mean(-1, keepdim=True)
    grad = (scores - log_sum).exp_()  # softmax, in place
    if label_smoothing:
        grad -= label_smoothing / scores.shape[-1]
    grad.scatter_add_(1, target, torch.full_like(target_score, label_smoothing - 1))
    if softcap is not None:
        grad.mul_(1 - (scores / softcap).square())
    return (loss * counted).sum(), grad.mul_(counted)
