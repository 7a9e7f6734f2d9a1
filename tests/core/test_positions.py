"""Position encodings match their formulas and properties."""

from __future__ import annotations

import math

import pytest
import torch

from glassformer.core import spec
from glassformer.core.build import build_stack
from glassformer.core.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    alibi_slopes,
    relative_position_bucket,
    rotate,
    sinusoids,
)
from glassformer.errors import InputTooLongError


@pytest.mark.parametrize("width", [8, 7, 1])
def test_sinusoidal_table_matches_the_formula_in_both_layouts(width: int) -> None:
    apart, halves = sinusoids(50, width), sinusoids(50, width, "halves")
    half = math.ceil(width / 2)
    for position in (0, 1, 17, 49):
        for i in range(half):
            angle = position / 10000 ** (2 * i / width)
            assert apart[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert halves[position, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            if 2 * i + 1 < width:
                assert apart[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
                assert halves[position, half + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


# ---- rotary -----------------------------------------------------------------------------------------


def test_rotary_pairs_feature_i_with_i_plus_half() -> None:
    x = torch.randn(1, 1, 3, 6)
    turned = rotate(x, RotaryPositions(6, base=100.0)(torch.tensor([[0, 1, 7]])).rotary)
    for row, position in enumerate((0, 1, 7)):
        for i in range(3):
            angle = position * 100.0 ** (-2 * i / 6)
            pair = torch.complex(x[0, 0, row, i], x[0, 0, row, i + 3]).item() * complex(
                math.cos(angle), math.sin(angle)
            )
            assert turned[0, 0, row, i].item() == pytest.approx(pair.real, abs=1e-5)
            assert turned[0, 0, row, i + 3].item() == pytest.approx(pair.imag, abs=1e-5)


# ---- biases on the scores --------------------------------------------------------------------------------


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """One distance (key minus query) at a time: half the buckets exact, the rest logarithmic."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 65)])
def test_relative_position_buckets_match_the_formula_and_grow_with_distance(
    buckets: int, max_distance: int, bidirectional: bool
) -> None:
    distance = torch.arange(-300, 301)
    actual = relative_position_bucket(
        distance, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    expected = [bucket(d, buckets, max_distance, bidirectional) for d in distance.tolist()]
    # where the logarithm lands on a whole number, single precision may fall on either side of it
    off = [d for d, a, b in zip(distance.tolist(), actual.tolist(), expected, strict=True) if a != b]
    for d in off:
        per_side = buckets // 2 if bidirectional else buckets
        exact = per_side // 2
        share = math.log(abs(d) / exact) / math.log(max_distance / exact) * (per_side - exact)
        assert abs(share - round(share)) < 1e-5
    back, ahead = actual[:301].flip(0), actual[300:]
    assert (back.diff() >= 0).all() and (ahead.diff() >= 0).all()
    # the first bucket ahead would be distance 0, which lies behind
    assert actual.unique().tolist() == [
        n for n in range(buckets) if not (bidirectional and n == buckets // 2)
    ]


def test_relative_bias_depends_on_head_and_distance() -> None:
    bias = RelativeBias(3, buckets=8, max_distance=20, bidirectional=True)
    actual = bias(torch.tensor([[4, 5]]), torch.arange(7)[None]).bias
    assert actual.shape == (1, 3, 2, 7)
    for head, row, key in [(0, 0, 0), (2, 1, 6), (1, 1, 5)]:
        expected = bias.weight[bucket(key - (4 + row), 8, 20, True), head]
        assert actual[0, head, row, key] == expected
    causal = build_stack(
        spec.StackSpec(
            d_model=4,
            num_layers=0,
            causal=True,
            position=spec.RelativeSpec(),
            block=spec.BlockSpec(
                attention=spec.AttentionSpec(num_heads=2), feed_forward=spec.FeedForwardSpec(d_ff=4)
            ),
        )
    )
    assert isinstance(causal.position, RelativeBias) and not causal.position.bidirectional


def test_alibi_slopes_match_the_published_ones() -> None:
    eight = [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    assert alibi_slopes(4).tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    sixteen = [2.0 ** (-n / 2) for n in range(1, 17)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(eight + sixteen[0:8:2]))


@pytest.mark.parametrize("rounding", ["none", "bfloat16"])
def test_alibi_is_symmetric(rounding) -> None:
    """What reads both ways must not look at the end of a text for being the end."""
    bias = AlibiBias(4, rounding=rounding)(torch.tensor([[3]]), torch.arange(7)[None]).bias[0, :, 0]
    assert torch.equal(bias, bias.flip(1)) and (bias.diff()[:, :3] > 0).all() and (bias[:, 3] == 0).all()


def test_packed_rows_may_be_longer_than_the_table() -> None:
    rows = torch.cat((torch.arange(10), torch.arange(6)))[None]
    for model in (SinusoidalPositions(8, max_len=10), LearnedPositions(8, max_len=10)):
        assert torch.equal(model(rows, last=16)[0, 10:], model(torch.arange(6)))
        with pytest.raises(InputTooLongError):
            model(torch.tensor([[11]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_computed_buffers_stay_float32_when_the_model_is_cast(dtype: torch.dtype) -> None:
    assert torch.equal(RotaryPositions(16).to(dtype).freq, RotaryPositions(16).freq)
    assert torch.equal(AlibiBias(12).to(dtype).slopes, AlibiBias(12).slopes)
    assert torch.equal(RotaryPositions(16).to("meta").to_empty(device="cpu").freq, RotaryPositions(16).freq)
