"""Tables of positions and how alike places are by distance, for every way of telling where tokens stand.

L places, D d_model, H heads, R rotated width.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.core.model import AnyModel
from glassformer.core.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
)
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import UnknownNameError

Tail = Literal["table", "table_ahead", "similarity"]
TAILS: tuple[Tail, ...] = ("table", "table_ahead", "similarity")
FAR = 512  # places of a scheme without an end, and of what distance is compared over


@torch.inference_mode()
def position_tensor(model: AnyModel, owner: str, tail: Tail) -> Tensor:
    """What `<owner>.position.<tail>` stands for; owner is a stack or the input before it.

    table: (L, D) of positions that are added; (L, R) of rotary ones, cosines left and sines right; (H, L) the
    bias by distance 0 to L-1 looking back. table_ahead: the same looking ahead, where a stack looks ahead.
    similarity: (L,) by distance, 1 at 0: the mean dot product of two rows so far apart; of rotary positions
    the mean cosine of the angles turned; of a bias the mean over heads of exp(bias), by which it multiplies
    the weight of a key before the softmax.
    """
    try:
        scheme: Any = getattr(model.get_submodule(owner), "position", None)
    except AttributeError:
        scheme = None
    match scheme:
        case SinusoidalPositions():
            return _added(scheme.table, tail)
        case LearnedPositions():
            return _added(scheme.weight[scheme.offset :], tail)
        case Tensor():  # of patches: (L, D), or (1, L, D)
            return _added(scheme.reshape(-1, scheme.shape[-1]), tail)
        case RotaryPositions():
            return _rotary(scheme, tail)
        case RelativeBias() | AlibiBias():
            causal = bool(getattr(model.get_submodule(owner), "causal", False))
            return _bias(scheme, tail, causal)
    raise UnknownNameError(f"'{owner}' has no positions of its own, so there is no '{owner}.position.{tail}'")


def _no_ahead(tail: Tail) -> None:
    if tail == "table_ahead":
        raise UnknownNameError("only a bias that looks ahead has a table_ahead")


def _added(table: Tensor, tail: Tail) -> Tensor:
    _no_ahead(tail)
    table = table.detach().float()
    if tail == "table":
        return table
    rows = table[:FAR]
    products = rows @ rows.T  # (L, L)
    means = torch.stack([products.diagonal(d).mean() for d in range(len(rows))])
    if not means[0] > 0:
        raise GlassformerError("the table of positions is all zero, so no place is like another")
    return means / means[0]


def _rotary(scheme: RotaryPositions, tail: Tail) -> Tensor:
    _no_ahead(tail)
    angle = torch.arange(FAR, device=scheme.freq.device)[:, None] * scheme.freq  # (L, R/2)
    return torch.cat((angle.cos(), angle.sin()), 1) if tail == "table" else angle.cos().mean(1)


def _bias(scheme: RelativeBias | AlibiBias, tail: Tail, causal: bool) -> Tensor:
    device = next(iter((*scheme.parameters(), *scheme.buffers()))).device
    far = torch.arange(FAR, device=device)
    if tail == "table_ahead" and causal:
        raise UnknownNameError("this stack never looks ahead, so there is no table_ahead")
    # ahead: from place 0 to each later one; back: from each later one to place 0
    queries, keys = (far[:1], far) if tail == "table_ahead" else (far, far[:1])
    bias = scheme(queries[None], keys[None]).bias  # (1, H, L, 1), or (1, H, 1, L) ahead
    assert bias is not None
    table = bias[0].flatten(1).float()  # (H, L)
    return table if tail != "similarity" else (table - table[:, :1]).exp().mean(0)
