"""Pooling ignores padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from glassformer.core import spec
from glassformer.core.heads import EmbedHead, HeadContext

X = torch.tensor([[1.0, 8.0, -2.0, 5.0], [3.0, -1.0, 4.0, 4.0]])[..., None]  # (B, T, 1)
REAL = torch.tensor([[False, True, True, False], [True, True, True, True]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("mean", [3.0, 2.5]),
        ("first", [8.0, 3.0]),
        ("last", [-2.0, 4.0]),
        ("max", [8.0, 4.0]),
        ("mean_sqrt_len", [3.0 * math.sqrt(2), 5.0]),
    ],
)
def test_only_real_tokens_are_pooled(pool: Any, expected: list[float], dtype: torch.dtype) -> None:
    head = EmbedHead(1, spec.EmbedSpec(pool=pool))
    pooled = head(X.to(dtype), HeadContext(padding=REAL))
    torch.testing.assert_close(pooled[:, 0], torch.tensor(expected, dtype=dtype))
    full = head(X.to(dtype), HeadContext())
    assert full.dtype == dtype and torch.equal(full[1], pooled[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pooling_only_padding_gives_zeros(dtype: torch.dtype) -> None:
    nothing = HeadContext(padding=torch.zeros(2, 4, dtype=torch.bool))
    assert torch.equal(EmbedHead(1, spec.EmbedSpec())(X.to(dtype), nothing), torch.zeros(2, 1, dtype=dtype))
