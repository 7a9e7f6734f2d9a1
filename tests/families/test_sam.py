"""SAM's image embeddings and masks match transformers for every kind of prompt; wrong parts do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.core.build import build_model, unique_state_dict
from glassformer.core.spec import PromptedSegmenterSpec
from glassformer.core.vision.segmenter import PromptedSegmenter, Prompts
from tests.families import harness
from tests.families.cases import SAM

BATCH, PROMPTS = 2, 3


@pytest.fixture(scope="module", params=SAM, ids=range(len(SAM)))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    reference = harness.reference(*request.param)
    return reference, load(reference, tmp_path_factory.mktemp("reference"))


def load(reference: Any, folder: Path) -> PromptedSegmenter:
    model = glassformer.load(harness.save_reference(reference, folder)).model
    assert isinstance(model, PromptedSegmenter)
    return model


def pixels(model: PromptedSegmenter) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, model.embed.channels, *model.embed.image_size, generator=generator)


def prompts(model: PromptedSegmenter, kinds: str) -> dict[str, Tensor]:
    """Prompts of these kinds: p points, l labels, b boxes, m masks."""
    torch.manual_seed(2)
    size, rows = model.embed.image_size[0], model.embed.grid[0]
    every = {
        "points": torch.rand(BATCH, PROMPTS, 2, 2) * size,
        "labels": torch.tensor([[[1, 0], [1, -10], [0, -1]]] * BATCH),
        "boxes": torch.rand(BATCH, PROMPTS, 4) * size,
        "masks": torch.randn(BATCH, 1, 4 * rows, 4 * rows) * 3,
    }
    return {name: value for name, value in every.items() if name[0] in kinds}


def difference(model: PromptedSegmenter, reference: Any, inputs: dict[str, Tensor], **options: Any) -> float:
    theirs = {f"input_{name}": value for name, value in inputs.items()}
    with torch.no_grad():
        ours = model(pixels(model), Prompts(**inputs, **options))
        return harness.worst(ours, reference(pixel_values=pixels(model), **theirs, **options), None)


def test_image_embeddings_match_transformers(pair: Any) -> None:
    reference, model = pair
    with torch.no_grad():
        ours, theirs = (f(pixels(model)) for f in (model.encode_image, reference.get_image_embeddings))
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("multimask_output", [True, False])
@pytest.mark.parametrize("kinds", ["", "pl", "b", "bm", "plbm"])
def test_every_prompt_matches_transformers(pair: Any, kinds: str, multimask_output: bool) -> None:
    reference, model = pair
    inputs = prompts(model, kinds)
    assert difference(model, reference, inputs, multimask_output=multimask_output) < 1e-5


def test_image_is_encoded_once_for_several_prompts(pair: Any) -> None:
    """Prompts decoded together equal prompts decoded one by one, from one embedding."""
    _, model = pair
    inputs = prompts(model, "plb")
    with torch.no_grad():
        embedding = model.encode_image(pixels(model))
        together = model.decode(embedding, Prompts(**inputs))
        for n in range(PROMPTS):
            one = Prompts(**{name: value[:, n : n + 1] for name, value in inputs.items()})
            alone = model.decode(embedding, one)
            assert (alone.masks[:, 0] - together.masks[:, n]).abs().max() < 1e-5
            assert (alone.iou[:, 0] - together.iou[:, n]).abs().max() < 1e-5


def rebuild(change: Callable[[PromptedSegmenterSpec], PromptedSegmenterSpec]) -> Callable[[Any], Any]:
    """A model of a changed spec with the same weights."""

    def wrong(model: PromptedSegmenter) -> Any:
        changed = build_model(change(model.spec))
        changed.load_state_dict(unique_state_dict(model))
        return changed.eval()

    return wrong


def all_global(spec: PromptedSegmenterSpec) -> PromptedSegmenterSpec:
    def block(block: Any) -> Any:
        return replace(block, attention=replace(block.attention, spatial_window=None))

    pattern = tuple(block(each) for each in spec.encoder.pattern)
    return replace(spec, encoder=replace(spec.encoder, block=block(spec.encoder.block), pattern=pattern))


def first_layer_has_residual(model: PromptedSegmenter) -> Any:
    model.decoder.blocks[0].first = False
    return model


def zero(*names: str) -> Callable[[Any], Any]:
    def wrong(model: PromptedSegmenter) -> Any:
        with torch.no_grad():
            for name in names:
                unique_state_dict(model)[name].zero_()
        return model

    return wrong


def corners_are_points(model: PromptedSegmenter) -> Any:
    with torch.no_grad():
        model.prompt.labels[2:] = model.prompt.labels[:2].clone()
    return model


def other_order_of_masks(model: PromptedSegmenter) -> Any:
    model.head.hypernetworks = model.head.hypernetworks[::-1]
    return model


def upscaled_with_relu(model: PromptedSegmenter) -> Any:
    model.head.upscale_norm = torch.nn.Sequential(model.head.upscale_norm, torch.nn.ReLU())
    return model


WRONG = {
    "positions of the patches": zero("embed.position"),
    "mask tokens": other_order_of_masks,
    "upscaling": upscaled_with_relu,
    "IoU": zero("head.iou.layers.1.weight"),
    "windows": rebuild(all_global),
    "bias from the query": zero("encoder.blocks.0.self_attn.position_bias.rows"),
    "first layer": first_layer_has_residual,
    "positions of the image": zero("prompt.position.frequencies"),
    "corner labels": corners_are_points,
    "no point": zero("prompt.no_point"),
    "no mask": zero("prompt.no_mask"),
    "half-width attention": rebuild(
        lambda spec: replace(
            spec,
            decoder=replace(spec.decoder, cross_attention=replace(spec.decoder.cross_attention, scale=0.1)),
        )
    ),
    "norm of the mask prompt": rebuild(
        lambda spec: replace(spec, prompt=replace(spec.prompt, norm_eps=0.5)),
    ),
}


@pytest.mark.parametrize("part", WRONG)
def test_wrong_part_is_noticed(part: str, tmp_path: Path) -> None:
    reference = harness.reference(*SAM[0])
    model = WRONG[part](load(reference, tmp_path))
    assert max(difference(model, reference, prompts(model, kinds)) for kinds in ("pl", "b", "m")) > 1e-3
