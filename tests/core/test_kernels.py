"""Every kernel matches the explicit one under any mask, without NaNs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from glassformer.core.kernels import KERNELS, GridBias, Kernel, _with_grid_features, attend, choose_kernel
from glassformer.core.masks import Mask
from glassformer.errors import ShapeError, UnsupportedError
from tests.core.attention_cases import Case, cases, may_attend, naive

TRAINABLE = tuple(kernel for kernel in KERNELS if kernel not in ("auto", "flex"))  # on a CPU


def run(case: Case, kernel: Kernel) -> torch.Tensor:
    return attend(case.q, case.k, case.v, mask=case.mask, bias=case.bias, scale=case.scale, kernel=kernel)


@pytest.mark.parametrize("kernel", TRAINABLE)
@settings(max_examples=150)
@given(case=cases())
def test_kernel_matches_the_explicit_kernel(kernel: Kernel, case: Case) -> None:
    check_definition(case, kernel)


@settings(max_examples=12)  # uncompiled, it is slow
@given(case=cases())
def test_flex_kernel_matches_the_explicit_kernel(case: Case) -> None:
    check_definition(case, "flex")


def check_definition(case: Case, kernel: Kernel) -> None:
    ours = run(case, kernel)
    torch.testing.assert_close(ours.double(), torch.from_numpy(naive(case)), atol=1e-5, rtol=0)
    batch, heads, queries, keys = *case.q.shape[:3], case.k.shape[2]
    for b, h, t in np.ndindex(batch, heads, queries):
        if not any(may_attend(case.mask, b, h, t, s, queries, keys) for s in range(keys)):
            assert not ours[b, h, t].any()


@settings(max_examples=80)
@given(case=cases())
def test_gradients_match_between_kernels(case: Case) -> None:
    actual = {}
    for kernel in TRAINABLE:
        leaves = [x.clone().requires_grad_() for x in case[:3]]
        bias = None if case.bias is None else case.bias.clone().requires_grad_()
        out = run(Case(*leaves, case.mask, bias, case.scale), kernel)
        weigh = torch.linspace(-1, 1, out.numel()).view_as(out)
        out.mul(weigh).sum().backward()
        actual[kernel] = [x.grad for x in (*leaves, bias) if x is not None]
    for one, other in zip(*actual.values(), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_explicit_kernel_passes_gradcheck() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 3, 2), torch.randn(1, 2, 4, 2), torch.randn(1, 2, 4, 3)
    mask = Mask(causal=True, padding=torch.tensor([[True, False, True, True]]))
    leaf = q.clone().requires_grad_()
    attend(leaf, k, v, mask=mask, kernel="explicit").square().sum().backward()
    for index in [(0, 0, 0, 0), (0, 3, 2, 1), (0, 1, 1, 0)]:
        sides = []
        for step in (1e-3, -1e-3):
            moved = q.clone()
            moved[index] += step
            sides.append((naive(Case(moved, k, v, mask, None, None)) ** 2).sum())
        assert leaf.grad[index].item() == pytest.approx((sides[0] - sides[1]) / 2e-3, abs=1e-4)


@pytest.mark.parametrize("kernel", TRAINABLE)
def test_attention_dropout_is_unbiased(kernel: Kernel) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    many = [x.expand(8000, -1, -1, -1) for x in (q, k, v)]
    dropped = attend(*many, dropout=0.4, kernel=kernel)
    assert dropped.var(0).min() > 1e-3
    torch.testing.assert_close(dropped.mean(0), attend(q, k, v)[0], atol=0.05, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_mismatched_shapes_are_rejected(kernel: Kernel) -> None:
    """The fused kernel would answer, without the last keys, where values are fewer."""
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    assert attend(q, k, v, kernel=kernel).shape == (2, 4, 3, 6)
    wrong = [(q, k, v[:, :, :4]), (q, k[..., :7], v), (q, k, v[:, :1]), (q[:, :3], k, v), (q[:1], k, v)]
    for parts in (*wrong, (q[0], k[0], v[0])):
        with pytest.raises(ShapeError):
            attend(*parts, kernel=kernel)


def test_auto_chooses_flex_only_for_long_sparse_masks() -> None:
    sparse = Mask(causal=True, window=128)
    long = {"queries": 4096, "keys": 4096}
    assert choose_kernel(mask=sparse, **long, device="cuda") == "flex"
    for elsewhere in ("cpu", "mps", "meta"):
        assert choose_kernel(mask=sparse, **long, device=elsewhere) == "sdpa"
    assert choose_kernel(mask=sparse, **long, device="cuda", dropout=0.1) == "sdpa"
    assert choose_kernel(mask=Mask(causal=True), **long, device="cuda") == "sdpa"
    assert choose_kernel("explicit", mask=sparse, **long, device="cuda") == "explicit"


@pytest.mark.parametrize("kernel", ["auto", "explicit", "flex"])
def test_softcap_bounds_the_scaled_scores_before_bias_and_mask(kernel: Kernel) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    bias, mask = torch.randn(1, 4, 7, 7), Mask(causal=True, window=3)
    actual = attend(q, k, v, mask=mask, bias=bias, scale=0.5, softcap=1.5, kernel=kernel)
    dots = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    scores = 1.5 * (dots / 1.5).tanh() + bias
    allowed = torch.ones(7, 7, dtype=torch.bool).tril() & torch.ones(7, 7, dtype=torch.bool).triu(-2)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(actual, weights @ v.repeat_interleave(2, 1))


def test_softcap_is_never_silently_dropped_by_the_fused_kernel() -> None:
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(UnsupportedError):
        attend(x, x, x, softcap=1.5, kernel="sdpa")
    long = {"queries": 4096, "keys": 4096, "device": "cuda", "softcap": 50.0}
    assert choose_kernel(mask=Mask(causal=True), **long) == "flex"
    assert choose_kernel(mask=Mask(causal=True), **long, dropout=0.1) == "explicit"


def test_features_of_rows_and_columns_equal_the_bias_of_a_grid() -> None:
    rows, columns = 3, 5
    q, k, v = torch.randn(3, 2, 2, rows * columns, 16)
    bias = GridBias(torch.randn(2, 2, rows * columns, rows), torch.randn(2, 2, rows * columns, columns))
    expected = attend(q, k, v, bias=bias.dense(), scale=0.2, kernel="explicit")
    actual = attend(*_with_grid_features(q, k, bias, 0.2), v, scale=0.2)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
