"""The oneDNN linear layer matches torch's, including gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from glassformer.core.backend import Linear, linear


@pytest.mark.parametrize("shape", [(2, 40), (70,), (3, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_matches_torch(shape: tuple[int, ...], biased: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape, 160, requires_grad=True)
    weight = torch.randn(130, 160, requires_grad=True)
    bias = torch.randn(130, requires_grad=True) if biased else None
    leaves = [t for t in (x, weight, bias) if t is not None]
    ours, theirs = linear(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    push = torch.randn_like(theirs)
    actual = torch.autograd.grad((ours * push).sum(), leaves)
    for mine, other in zip(actual, torch.autograd.grad((theirs * push).sum(), leaves), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), ours)


def test_linear_supports_views_frozen_weights_and_other_dtypes() -> None:
    torch.manual_seed(0)
    layer = Linear(160, 130)
    layer.weight = torch.nn.Parameter(torch.randn(160, 130).T)  # as a transposed published matrix
    x = torch.randn(100, 160)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    frozen = Linear(160, 130).requires_grad_(False)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(frozen(x).sum(), x)
    torch.testing.assert_close(slope, frozen.weight.sum(0).expand(100, 160), rtol=1e-4, atol=1e-4)
    assert Linear(160, 130).double()(x.double()).dtype == torch.float64
