"""softmax(Q K^T * scale + extra) V for a few queries against many keys.

On a CPU, torch's fused attention spends longer on its blocks than a few queries need: two plain products are
quicker, and heads that share their keys are rows of one product. Elsewhere this is torch's fused attention.

B sentences, W queries of each, H query heads, G key/value heads, L keys, K head width, V value width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def attend_few(q: Tensor, k: Tensor, v: Tensor, extra: Tensor | None, scale: float) -> Tensor:
    """q (B, H, W, K), k (B, G, L, K), v (B, G, L, V), extra (B|1, 1|H, W|1, L) -> (B, H, W, V).

    >>> q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    >>> attend_few(q, k, v, None, 0.5).shape
    torch.Size([2, 4, 1, 6])
    """
    batch, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    if not q.is_cpu or torch.is_autocast_enabled("cpu"):
        mask = None if extra is None else extra.expand(batch, -1, queries, -1)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=heads != groups
        )
    rows = (q * scale).reshape(batch * groups, heads // groups * queries, width)  # (B * G, H / G * W, K)
    scores = torch.bmm(rows, k.flatten(0, 1).transpose(1, 2))  # (B * G, H / G * W, L)
    if extra is not None:
        scores.view(batch, heads, queries, keys).add_(extra)
    found = torch.bmm(scores.softmax(-1), v.flatten(0, 1))  # (B * G, H / G * W, V)
    return found.view(batch, heads, queries, v.shape[-1])
