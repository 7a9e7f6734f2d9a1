"""4-bit weights: the packed kernel computes what the quantized integers stand for."""

from __future__ import annotations

import pytest
import torch

import glassformer
from glassformer.inference.int4 import Int4Linear, dequantize_int4, quantize_int4
from glassformer.inference.linear import Int8Linear, choose_linear

BF16 = 2**-7


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_product_matches_the_dequantized_weight(rows: int) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(48, 96), torch.randn(48), torch.randn(rows, 96)
    expected = x @ dequantize_int4(*quantize_int4(weight)).T + bias
    y = Int4Linear([(weight, bias)])(x)
    assert (y - expected).abs().max() < 4 * BF16 * expected.abs().max()
    single = torch.cat([Int4Linear([(weight, bias)])(row[None]) for row in x])
    assert torch.equal(y, single)  # a row does not depend on its batch


def test_error_is_at_most_half_a_step_of_each_group() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 128) * torch.logspace(-3, 2, 128)
    integers, scales = quantize_int4(weight)
    step = scales[..., 0].T.repeat_interleave(32, 1)  # (O, D)
    assert ((dequantize_int4(integers, scales) - weight).abs() <= step / 2 * 1.001).all()


def test_layers_that_do_not_fit_have_int8_weights() -> None:
    make = choose_linear("int4", torch.zeros(1))
    assert make is not None
    assert isinstance(make([(torch.randn(32, 64), None)]), Int4Linear)
    assert isinstance(make([(torch.randn(32, 40), None)]), Int8Linear)


def test_int4_generates_nearly_the_same_distribution() -> None:
    text = "Good morning. How are you?"
    full, small = (glassformer.load("pocket", dtype=dtype) for dtype in (None, "int4"))
    assert small.weights == "int4"
    assert small.translate(text, to="de") == full.translate(text, to="de")
