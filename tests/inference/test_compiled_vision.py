"""Vision models prepared for inference compile without graph breaks, and match the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.inference.encoder import InferenceEncoder, PackedModel, supports

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def first(output: Any) -> Tensor:
    """The first tensor of an output."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def encode_image(model: nn.Module) -> Callable[..., Any]:
    return model.packed.encode_image if isinstance(model, PackedModel) else model.encode_image  # type: ignore[no-any-return,operator,union-attr]


CASES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "swin": ({}, (32, 32)),
    "detr": ({"num_queries": 5}, (70, 52)),
    "yolos": ({"mid_positions": False}, (40, 56)),
    # 32 x 32 tokens, from which on the bias is computed inside the kernel on a GPU
    "sam": ({"image_size": 128, "patch_size": 4, "d_model": 32, "num_heads": 2, "window": 6}, (128, 128)),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("family", CASES)
def test_prepared_model_compiles_and_matches_the_model(family: str, device: str) -> None:
    torch.manual_seed(0)
    options, size = CASES[family]
    model = glassformer.tiny(family, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
    images = torch.randn(2, 3, *size)
    select: Callable[..., Any] = encode_image if family == "sam" else lambda module: module
    with torch.no_grad():
        expected = first(select(model)(images))
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        model, images = model.to(device, dtype), images.to(device, dtype)
        prepared = InferenceEncoder(model) if supports(model) else PackedModel(model)
        compiled = torch.compile(
            select(prepared), fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor"
        )
        plain = first(select(model)(images)).cpu().float()  # in the same precision
        allowance = 1e-5 + 2 * (plain - expected).abs().max()
        for run in (select(prepared), compiled):
            assert (first(run(images)).cpu().float() - expected).abs().max() <= allowance
