"""Time series: patches, scaling, missing values and masked patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributions

from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.inputs import SeriesInputs
from glassformer.core.observe import Observer
from glassformer.core.series.distributions import Gaussian, NegativeBinomial, StudentT
from glassformer.core.series.patches import SeriesInput, compute_scaling, extract_patches
from glassformer.errors import InvalidValueError, ShapeError, UnsupportedError

TIME, CHANNELS, AHEAD = 21, 3, 5


def model_of(head: spec.HeadSpec, *, norm: spec.NormSpec | None = None, **options: Any) -> Any:
    """A small model in evaluation mode whose numbers are large enough for a mistake to show."""
    torch.manual_seed(0)
    sizes = {"context_length": TIME, "patch_length": 6, "stride": 4, "channels": CHANNELS}
    block = spec.BlockSpec(
        attention=spec.AttentionSpec(num_heads=4),
        feed_forward=spec.FeedForwardSpec(d_ff=24, activation="gelu"),
        norm=norm or spec.LayerNormSpec(),
    )
    model = build_model(
        spec.EncoderOnlySpec(
            input=spec.SeriesPatchesSpec(**{**sizes, **options}),
            encoder=spec.StackSpec(d_model=16, num_layers=2, block=block),
            head=head,
            init=spec.NormalSpec(std=0.3),
        )
    )
    return model.eval()


def series(batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, TIME, CHANNELS, generator=generator).cumsum(1) * 5 + 20


@given(patch=st.integers(1, 7), stride=st.integers(1, 9), spare=st.integers(0, 30))
def test_patches_end_with_the_series(patch: int, stride: int, spare: int) -> None:
    length = patch + spare
    values = torch.arange(length * 2.0).reshape(1, length, 2)
    pieces = extract_patches(values, patch, stride)
    read = spec.SeriesPatchesSpec(context_length=length, patch_length=patch, stride=stride, channels=2)
    assert pieces.shape == (1, 2, read.num_patches, patch)
    assert torch.equal(pieces[0, :, -1], values[0, -patch:].T)
    starts = pieces[0, 0, :, 0] / 2  # the time step each begins at
    assert torch.equal(starts, starts[0] + stride * torch.arange(read.num_patches))
    assert 0 <= starts[0] < stride  # nothing that would still fit is left out


def test_scaling_uses_only_observed_values() -> None:
    values, observed = series().double(), torch.rand(2, TIME, CHANNELS) > 0.3
    loc, scale = compute_scaling(values.masked_fill(~observed, 0.0), observed, "std")
    _, size = compute_scaling(values.masked_fill(~observed, 0.0), observed, "mean")
    for row in range(2):
        for channel in range(CHANNELS):
            real = values[row, observed[row, :, channel], channel]
            torch.testing.assert_close(loc[row, 0, channel], real.mean())
            torch.testing.assert_close(scale[row, 0, channel] ** 2, real.var(correction=0) + 1e-5)
            torch.testing.assert_close(size[row, 0, channel], real.abs().mean())


@pytest.mark.parametrize("scaling", ["std", "mean", "none"])
def test_missing_values_are_ignored(scaling: str) -> None:
    model = model_of(spec.ForecastSpec(prediction_length=AHEAD), scaling=scaling)
    observed = torch.ones(2, TIME, CHANNELS, dtype=torch.bool)
    observed[0, 3:9, 1] = observed[1, -4:, 2] = False
    one, other = (series().masked_fill(~observed, what) for what in (torch.nan, 1e6))
    assert torch.equal(model(SeriesInputs(one, observed)), model(SeriesInputs(other, observed)))
    assert not torch.equal(model(SeriesInputs(series(), observed)), model(series()))


def test_forecasts_are_unscaled() -> None:
    """Measured in other units (a x + b, or a x), the same series has the same forecast in those units."""
    for scaling, shift in (("std", 300.0), ("mean", 0.0)):
        for pool in ("flatten", "mean", "max", "first"):
            model = model_of(spec.ForecastSpec(prediction_length=AHEAD, pool=pool), scaling=scaling).double()
            once, again = model(series().double()), model(series().double() * 7 + shift)
            torch.testing.assert_close(again, once * 7 + shift, rtol=1e-5, atol=1e-3)
    plain = model_of(spec.ForecastSpec(prediction_length=AHEAD), scaling="none")
    assert plain(series()).shape == (2, AHEAD, CHANNELS)


def test_unscaled_distribution_matches_the_affine_transform() -> None:
    torch.manual_seed(0)
    raw = torch.randn(3, 2, AHEAD, CHANNELS, dtype=torch.float64)
    loc, scale = torch.randn(2, 1, CHANNELS).double(), torch.rand(2, 1, CHANNELS).double() + 0.5
    points = torch.randn(2, AHEAD, CHANNELS).double() * 3
    for parameters in (StudentT.from_outputs(*raw), Gaussian.from_outputs(*raw[:2])):
        moved = distributions.TransformedDistribution(
            parameters.distribution, [distributions.AffineTransform(loc, scale)]
        )
        undone = parameters.unscale(loc, scale)
        torch.testing.assert_close(undone.distribution.log_prob(points), moved.log_prob(points))
        torch.testing.assert_close(undone.mean, undone.distribution.mean)
    counts = NegativeBinomial.from_outputs(*raw[:2])
    torch.testing.assert_close(counts.mean, counts.distribution.mean)
    torch.testing.assert_close(counts.unscale(loc, scale).mean, counts.mean * scale)


def test_channels_are_independent() -> None:
    model = model_of(spec.ForecastSpec(prediction_length=AHEAD), embedding="per_channel", prefix=1)
    values, changed = series(), series()
    changed[:, :, 2] = series(seed=9)[:, :, 2]
    before, after = model(values), model(changed)
    assert torch.equal(before[..., :2], after[..., :2])
    assert not torch.equal(before[..., 2], after[..., 2])


def test_masked_patches_are_ignored() -> None:
    options = {"stride": 6, "context_length": 24, "prefix": 1, "scaling": "none"}
    model = model_of(spec.PatchReconstructSpec(), **options)
    values = torch.randn(2, 24, CHANNELS)
    hidden = torch.zeros(2, CHANNELS, 4, dtype=torch.bool)
    hidden[:, 1, 2] = True
    changed = values.clone()
    changed[:, 12:18, 1] += 3  # what stands in the hidden patch
    assert model(values).shape == (2, CHANNELS, 4, 6)
    assert torch.equal(*(model(SeriesInputs(x, masked_patches=hidden)) for x in (values, changed)))
    assert not torch.equal(model(values), model(changed))


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ShapeError, lambda m: m(torch.zeros(2, CHANNELS, TIME))),
        (ShapeError, lambda m: m(SeriesInputs(series(), torch.ones(2, TIME, dtype=torch.bool)))),
        (ShapeError, lambda m: m(SeriesInputs(series(), masked_patches=torch.zeros(2, 4, dtype=torch.bool)))),
        (InvalidValueError, lambda m: model_of(spec.FeaturesSpec(), context_length=5)),
        (UnsupportedError, lambda m: model_of(spec.ClassifySpec(num_labels=2))),
    ],
)
def test_mismatched_series_are_rejected(kind: type[Exception], call: Any) -> None:
    with pytest.raises(kind):
        call(model_of(spec.FeaturesSpec()))


def test_large_values_in_half_precision_do_not_overflow() -> None:
    read = SeriesInput(8, spec.SeriesPatchesSpec(context_length=20, patch_length=8, stride=4, channels=1))
    values = (torch.arange(20.0) * 1000).half()[None, :, None]  # their squares are beyond float16
    shown = Observer("scaled")
    read(values, obs=shown)
    read(values.float(), obs=(plain := Observer("scaled")))
    assert torch.equal(shown.record["scaled"], plain.record["scaled"])
    assert shown.record["scaled"].std(correction=0) == pytest.approx(1.0, abs=1e-4)
