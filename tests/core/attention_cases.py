"""Random attentions of every shape and mask, and the definition worked out number by number."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from glassformer.core.masks import Mask


class Case(NamedTuple):
    """q (B, H, T, K), k (B, G, S, K), v (B, G, S, V), with whatever else an attention is given."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float | None


def may_attend(mask: Mask, b: int, h: int, t: int, s: int, queries: int, keys: int) -> bool:
    """Whether query t may see key s: the words of the mask's docstring, one by one."""
    place = t + (keys - queries if mask.offset is None else int(mask.offset))
    if mask.causal and s > place:
        return False
    if mask.window is not None and abs(place - s) >= mask.window:
        return False
    if mask.padding is not None and not mask.padding[b, s]:
        return False
    if mask.segments is not None:
        own = mask.segments[b, place] if mask.query_segments is None else mask.query_segments[b, t]
        if own != mask.segments[b, s]:
            return False
    if mask.allowed is not None:
        rows, heads, times, _ = mask.allowed.shape
        return bool(mask.allowed[b % rows, h % heads, t % times, s])
    return True


def naive(case: Case) -> np.ndarray:
    """(B, H, T, V) by loops in float64."""
    q, k, v = (x.detach().double().numpy() for x in case[:3])
    (batch, heads, queries, width), groups, keys = q.shape, k.shape[1], k.shape[2]
    scale = 1 / math.sqrt(width) if case.scale is None else case.scale
    out = np.zeros((batch, heads, queries, v.shape[-1]))
    for b, h, t in np.ndindex(batch, heads, queries):
        g = h // (heads // groups)
        visible = [s for s in range(keys) if may_attend(case.mask, b, h, t, s, queries, keys)]
        if not visible:
            continue
        scores = []
        for s in visible:
            score = sum(q[b, h, t, i] * k[b, g, s, i] for i in range(width)) * scale
            for bias in filter(lambda bias: bias is not None, (case.bias, case.mask.bias)):
                score += float(bias.expand(batch, heads, queries, keys)[b, h, t, s])
            scores.append(score)
        powers = [math.exp(score - max(scores)) for score in scores]
        for s, power in zip(visible, powers, strict=True):
            out[b, h, t] += power / sum(powers) * v[b, g, s]
    return out


@st.composite
def masks(draw: Any, batch: int, heads: int, queries: int, keys: int) -> Mask:
    """Any subset of the conditions at once; often with queries that may attend to nothing."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def coin(*shape: int, chance: float) -> Tensor:
        return torch.rand(*shape, generator=generator) < chance

    offsets = st.integers(0, keys - queries) if keys >= queries else st.none()
    offset = draw(st.none() | offsets)
    if offset is not None and draw(st.booleans()):
        offset = torch.tensor(offset)
    segments = query_segments = None
    if draw(st.booleans()):
        segments = torch.randint(3, (batch, keys), generator=generator)
        if queries > keys or draw(st.booleans()):
            query_segments = torch.randint(3, (batch, queries), generator=generator)
    allowed = None
    if draw(st.booleans()):
        allowed = coin(*(draw(st.sampled_from((1, n))) for n in (batch, heads, queries)), keys, chance=0.6)
    bias = None
    if draw(st.booleans()):
        shape = [draw(st.sampled_from((1, n))) for n in (batch, heads, queries)]
        bias = torch.randn(*shape, keys, generator=generator)
    return Mask(
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, keys + 2)),
        padding=coin(batch, keys, chance=0.7) if draw(st.booleans()) else None,
        segments=segments,
        query_segments=query_segments,
        allowed=allowed,
        offset=offset,
        bias=bias,
    )


@st.composite
def cases(draw: Any) -> Case:
    """Shapes down to 1 in every dimension, more queries than keys, grouped heads, values of any width."""
    batch, groups, ratio = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    width, value_width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    heads = groups * ratio
    mask = draw(masks(batch, heads, queries, keys))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    bias = None
    if draw(st.booleans()):
        bias = normal(draw(st.sampled_from((1, batch))), heads, queries, keys)
    return Case(
        q=normal(batch, heads, queries, width),
        k=normal(batch, groups, keys, width),
        v=normal(batch, groups, keys, value_width),
        mask=mask,
        bias=bias,
        scale=draw(st.none() | st.floats(0.1, 2.0)),
    )
