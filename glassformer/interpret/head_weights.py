"""The weights of an attention head as maps of the residual stream.

A head moves x W_V W_O from a key to a query (OV), as far as x_q W_Q^T W_K x_k is large (QK). Biases, norms,
rotations and the scale are left out. D d_model, H heads, K head width, M width of the keys' input.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Circuit = Literal["ov", "qk"]


def _factors(attention: Any, head: int, circuit: Circuit) -> tuple[Tensor, Tensor]:
    """The two factors of a head's circuit: (rows, K) and (K, columns)."""
    shared = head // (attention.num_heads // attention.num_kv_heads)  # the key/value head

    def rows(weight: Tensor, index: int, width: int) -> Tensor:
        return weight.detach().float()[index * width : (index + 1) * width]

    if circuit == "qk":
        width = attention.head_dim
        return rows(attention.q_proj.weight, head, width).T, rows(attention.k_proj.weight, shared, width)
    width = attention.value_dim
    return rows(attention.v_proj.weight, shared, width).T, rows(attention.out_proj.weight.T, head, width)


def circuit_matrix(attention: Any, head: int, circuit: Circuit) -> Tensor:
    """W_V W_O (M, D) or W_Q^T W_K (D, M) of a head."""
    left, right = _factors(attention, head, circuit)
    return left @ right


def singular_values(attention: Any, circuit: Circuit) -> Tensor:
    """The singular values (H, K) of the circuits of all heads, largest first.

    Those of the product are those of the product of the triangular factors, which is only K x K.
    """
    values = []
    for head in range(attention.num_heads):
        left, right = _factors(attention, head, circuit)
        small = torch.linalg.qr(left)[1] @ torch.linalg.qr(right.T)[1].T
        values.append(torch.linalg.svdvals(small))
    return torch.stack(values)
