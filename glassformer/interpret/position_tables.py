"""Position tables and the similarity of positions by distance, for every position scheme.

L positions, D d_model, H heads, R rotated width.
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
from glassformer.errors import UnsupportedError
from glassformer.interpret.schema import ItemNotFoundError

Table = Literal["table", "table_ahead", "similarity"]
TABLES: tuple[Table, ...] = ("table", "table_ahead", "similarity")
MAX_DISTANCE = 512  # positions shown of an unbounded scheme, and distances compared


@torch.inference_mode()
def position_tensor(model: AnyModel, owner: str, table: Table) -> Tensor:
    """The tensor `<owner>.position.<table>`; owner is a stack or its embedding.

    table: (L, D) for added positions; (L, R) for rotary ones, cosines then sines; (H, L) the attention bias
    by distance 0 to L-1 to earlier keys. table_ahead: the same to later keys, if the stack is not causal.
    similarity: (L,) by distance, 1 at distance 0. For added positions the mean dot product of two rows, for
    rotary ones the mean cosine of the rotation, for a bias the mean over heads of exp(bias), the factor on
    the unnormalized attention weight.
    """
    try:
        scheme: Any = getattr(model.get_submodule(owner), "position", None)
    except AttributeError:
        scheme = None
    match scheme:
        case SinusoidalPositions():
            return _added(scheme.table, table)
        case LearnedPositions():
            return _added(scheme.weight[scheme.offset :], table)
        case Tensor():  # of patches: (L, D), or (1, L, D)
            return _added(scheme.reshape(-1, scheme.shape[-1]), table)
        case RotaryPositions():
            return _rotary(scheme, table)
        case RelativeBias() | AlibiBias():
            causal = bool(getattr(model.get_submodule(owner), "causal", False))
            return _bias(scheme, table, causal)
    raise ItemNotFoundError("tensor", f"{owner}.position.{table}")


def _reject_ahead(table: Table) -> None:
    if table == "table_ahead":
        raise ItemNotFoundError("position table", table, ("table", "similarity"))


def _added(vectors: Tensor, table: Table) -> Tensor:
    _reject_ahead(table)
    vectors = vectors.detach().float()
    if table == "table":
        return vectors
    rows = vectors[:MAX_DISTANCE]
    products = rows @ rows.T  # (L, L)
    means = torch.stack([products.diagonal(d).mean() for d in range(len(rows))])
    if not means[0] > 0:
        raise UnsupportedError("a position table of zeros", "similarities")
    return means / means[0]


def _rotary(scheme: RotaryPositions, table: Table) -> Tensor:
    _reject_ahead(table)
    angle = torch.arange(MAX_DISTANCE, device=scheme.freq.device)[:, None] * scheme.freq  # (L, R/2)
    return torch.cat((angle.cos(), angle.sin()), 1) if table == "table" else angle.cos().mean(1)


def _bias(scheme: RelativeBias | AlibiBias, table: Table, causal: bool) -> Tensor:
    device = next(iter((*scheme.parameters(), *scheme.buffers()))).device
    positions = torch.arange(MAX_DISTANCE, device=device)
    if causal:
        _reject_ahead(table)
    # ahead: from position 0 to each later one; back: from each later one to position 0
    ahead = table == "table_ahead"
    queries, keys = (positions[:1], positions) if ahead else (positions, positions[:1])
    bias = scheme(queries[None], keys[None]).bias  # (1, H, L, 1), or (1, H, 1, L) ahead
    assert bias is not None
    by_distance = bias[0].flatten(1).float()  # (H, L)
    return by_distance if table != "similarity" else (by_distance - by_distance[:, :1]).exp().mean(0)
