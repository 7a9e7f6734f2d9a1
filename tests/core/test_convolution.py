"""ResNet against transformers' ResNet: every stage, batch norm folded, and wrong variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from glassformer.core import spec
from glassformer.core.vision.convolution.layers import ConvNorm, FoldedStem
from glassformer.core.vision.convolution.resnet import ResNet
from glassformer.families.config import Config
from glassformer.families.resnet_backbone import read_resnet, resnet_rows, timm_resnet, write_resnet
from glassformer.weights.convert import WeightTable, to_ours

_SMALL: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [2, 1, 2]}
CASES: list[dict[str, Any]] = [
    {**_SMALL, "layer_type": "basic"},
    {**_SMALL, "layer_type": "basic", "downsample_in_first_stage": True, "num_channels": 2},
    {**_SMALL, "layer_type": "bottleneck"},
    {**_SMALL, "downsample_in_bottleneck": True},
    {"embedding_size": 12, "hidden_sizes": [16, 16, 16, 40], "depths": [1, 2, 3, 1]},
    {"embedding_size": 8, "hidden_sizes": [8], "depths": [3], "layer_type": "basic"},
]


def redraw(model: nn.Module, seed: int = 0) -> None:
    """Draw every parameter and every running statistic."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator)
                scale = value[0].numel() ** -0.5 if value.dim() == 4 else 0.3
                value.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn * scale)


def reference(settings: dict[str, Any]) -> Any:
    stages = [f"stage{n + 1}" for n in range(len(settings["depths"]))]
    config = transformers.ResNetConfig(**settings, out_features=stages)
    model = transformers.ResNetBackbone(config).eval()
    redraw(model)
    return model


def ours(backbone: spec.ResNetSpec, model: nn.Module) -> ResNet:
    network = ResNet(backbone).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    table = WeightTable(resnet_rows(("",), "", backbone, save_counts=True))
    network.load_state_dict(to_ours(model.state_dict(), table, shapes, where="reference"))
    return network


def read(settings: dict[str, Any]) -> spec.ResNetSpec:
    config = transformers.ResNetConfig(**settings).to_dict()
    return read_resnet(Config({**config, "frozen_batch_norm": False}))


@pytest.mark.parametrize("settings", CASES)
def test_resnet_matches_transformers(settings: dict[str, Any]) -> None:
    theirs, backbone = reference(settings), read(settings)
    assert read_resnet(Config(write_resnet(backbone))) == backbone
    network = ours(backbone, theirs)
    images = torch.randn(2, backbone.channels, 61, 47)
    mine, maps = network(images), theirs(images).feature_maps
    for a, b in zip(mine, maps, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max().clamp(min=1)
    mine[-1].square().sum().backward()
    maps[-1].square().sum().backward()
    stem, other = network.stem.conv.weight.grad, theirs.embedder.embedder.convolution.weight.grad
    assert stem is not None and (stem - other).abs().max() <= 1e-4 * other.abs().max().clamp(min=1)


@pytest.mark.parametrize("norm", ["batch", "frozen_batch"])
def test_folded_convolution_equals_convolution_and_norm(norm: Any) -> None:
    layer = ConvNorm(4, 6, 3, stride=2, dilation=2, groups=2, norm=norm).eval()
    redraw(layer)
    images, residual = torch.randn(2, 4, 17, 14), torch.randn(2, 6, 9, 7)
    with torch.no_grad():
        normed = layer(images)
        assert (layer.fold()(images) - normed).abs().max() < 1e-5
        for conv in (layer, layer.fold()):
            out = conv(images, residual=residual, relu=True)
            assert (out - (normed + residual).relu()).abs().max() < 1e-5


@pytest.mark.parametrize("size", [(32, 32), (33, 40), (40, 31), (1, 2)])
def test_folded_stem_equals_the_strided_convolution(size: tuple[int, int]) -> None:
    weight, bias, images = torch.randn(8, 3, 7, 7), torch.randn(8), torch.randn(2, 3, *size)
    expected = nn.functional.conv2d(images, weight, bias, stride=2, padding=3)
    stem = FoldedStem(weight, bias)
    assert stem(images).shape == expected.shape
    assert (stem(images, relu=True) - expected.relu()).abs().max() < 1e-4


def test_dilation_replaces_the_stride_of_the_last_stage() -> None:
    """Convolutions of the reference are changed as timm's `output_stride` does."""
    theirs = reference(CASES[4])
    backbone = replace(read(CASES[4]), strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2))
    for n, layer in enumerate(theirs.encoder.stages[3].layers):
        for conv in (part for part in layer.modules() if isinstance(part, nn.Conv2d)):
            conv.stride = (1, 1)
            if conv.kernel_size == (3, 3) and n > 0:  # the first layer has the dilation of the stage before
                conv.dilation = conv.padding = (2, 2)
    images = torch.randn(1, 3, 70, 52)
    with torch.no_grad():
        a, b = ours(backbone, theirs)(images)[-1], theirs(images).feature_maps[-1]
    assert a.shape == b.shape and (a - b).abs().max() < 1e-5
    assert timm_resnet("resnet50", output_stride=16).dilations == (1, 1, 1, 2)


def test_wrong_variants_differ() -> None:
    theirs, images = reference(CASES[3]), torch.randn(1, 3, 61, 47)
    right = theirs(images).feature_maps[-1]
    for change in ({"strided_conv": "3x3"}, {"dilations": (2, 2, 2)}):
        wrong = ours(replace(read(CASES[3]), **change), theirs)(images)[-1]
        assert wrong.shape != right.shape or (wrong - right).abs().max() > 1e-3
    unfrozen = ours(read(CASES[3]), theirs).train()(images)[-1]
    assert (unfrozen - right).abs().max() > 1e-3
