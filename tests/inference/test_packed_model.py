"""A model with packed weights computes what the model computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from glassformer import tiny
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.vision.convolution.layers import ConvNorm
from glassformer.inference.encoder import PackedModel, supports
from glassformer.inference.linear import WeightFormat

_FFN = spec.FeedForwardSpec(d_ff=64, activation="gelu")


def _windowed_model() -> nn.Module:
    """An image encoder with full and with shifted-window attention, layer scale and position biases."""
    bias = spec.RelativeBias2dSpec(grid=(2, 2))
    window = spec.WindowSpec(size=2, shift=1)
    attention = spec.AttentionSpec(num_heads=2, spatial_window=window, position_bias=bias)
    full = spec.AttentionSpec(num_heads=2, position_bias=spec.QueryBias2dSpec(grid=(3, 5)))
    pattern = (
        spec.BlockSpec(attention=full, feed_forward=_FFN, wiring="pre", layer_scale=0.1),
        spec.BlockSpec(attention=attention, feed_forward=_FFN, wiring="res_post"),
    )
    stack = spec.StackSpec(d_model=32, num_layers=2, block=pattern[0], pattern=pattern)
    read = spec.ImagePatchesSpec(image_size=(12, 20), patch_size=(4, 4), prefix=0)
    return build_model(spec.EncoderOnlySpec(input=read, encoder=stack, head=spec.FeaturesSpec()))


class _Backbone(nn.Module):
    """A convolution in front of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(ConvNorm(3, 3, 3), nn.ReLU())
        self.encoder = _windowed_model()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.encoder(self.conv(images))
        return out


def _redraw(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape) + 0.5 if "var" in name else torch.randn(tensor.shape) * 0.3)


@pytest.mark.parametrize("name", ["backbone", "swin", "swinv2"])
@pytest.mark.parametrize(("weights", "tolerance"), [("own", 1e-5), ("int8", 0.2)])
def test_packed_model_equals_the_model(name: str, weights: WeightFormat, tolerance: float) -> None:
    torch.manual_seed(1)
    model = _Backbone() if name == "backbone" else tiny(name)
    _redraw(model)
    assert not supports(model.encoder if isinstance(model, _Backbone) else model)
    images = torch.randn(2, 3, 12, 20)
    packed = PackedModel(model, weights)
    with torch.no_grad():
        for _ in range(2):
            expected = model.eval()(images)
            model.train()
            result = packed(images)
            assert (result - expected).abs().max() <= tolerance * expected.abs().max()
            assert model.training
            _redraw(model)  # the weights are packed again
        assert (packed(images) - expected).abs().max() > tolerance * expected.abs().max()
