"""Images and series given to both libraries, and what comes back put side by side."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import glassformer
from glassformer.core.build import unique_state_dict
from glassformer.core.inputs import ImageInputs, ImageTextInputs, SeriesInputs
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.core.series.distributions import DISTRIBUTIONS
from glassformer.core.vision.embeddings import ImageInput
from glassformer.core.vision.mask_classifier import MaskClassifier
from glassformer.core.vision.segmenter import PromptedSegmenter, Prompts
from glassformer.core.vision.two_tower import TwoTower
from glassformer.families.registry import families
from glassformer.weights.convert import to_theirs
from tests.families import harness

BATCH, HIDDEN = 3, 2


def run_padded_images(
    reference: Any, model: EncoderDecoder | MaskClassifier, side: str, kernel: str
) -> tuple[Any, Any]:
    """Ours and theirs on images of an odd size; with `side`, they are padded on the right and the bottom."""
    backbone = model.embed.backbone if isinstance(model, MaskClassifier) else model.src_embed.backbone
    channels = getattr(backbone, "channels", None) or backbone.embed.channels
    pixels = torch.randn(BATCH, channels, 77, 61)
    if side == "none":
        return model(pixels, kernel=kernel), reference(pixel_values=pixels)
    mask = torch.zeros(BATCH, 77, 61, dtype=torch.bool)
    for row, (height, width) in enumerate(((77, 40), (51, 61), (33, 19))):
        mask[row, :height, :width] = True
    theirs = reference(pixel_values=pixels, pixel_mask=mask.long())
    return model(ImageInputs(pixels, mask), kernel=kernel), theirs


def run(
    reference: Any, model: EncoderOnly | EncoderDecoder | PromptedSegmenter, side: str, kernel: str
) -> tuple[Any, Any]:
    """Ours and theirs on the same values; of a series, some on `side` are missing."""
    torch.manual_seed(3)
    if isinstance(model, EncoderDecoder | MaskClassifier):
        return run_padded_images(reference, model, side, kernel)
    if isinstance(model.embed, ImageInput):
        values = torch.randn(BATCH, model.embed.channels, *model.embed.image_size)
        if isinstance(model, PromptedSegmenter):
            prompts = clicks(values.shape[-1])
            theirs = dict(zip(("input_points", "input_labels"), prompts, strict=True))
            return model(values, Prompts(*prompts), kernel=kernel), reference(pixel_values=values, **theirs)
        return model(values, kernel=kernel), reference(pixel_values=values)
    config = reference.config
    values = torch.randn(BATCH, config.context_length, config.num_input_channels).cumsum(1) + 3
    masked_patches = None
    if config.do_mask_input:  # the reference would hide patches at random; let it hide the last ones
        reference.model.masking.mask_type = "forecast"
        reference.model.masking.num_forecast_mask_patches = [HIDDEN]
        shape = (BATCH, config.num_input_channels, model.spec.input.num_patches)
        masked_patches = torch.zeros(shape, dtype=torch.bool)
        masked_patches[..., -HIDDEN:] = True
    if side == "none":
        inputs = SeriesInputs(values, masked_patches=masked_patches)
        return model(inputs, kernel=kernel), published(reference, reference(past_values=values))
    observed = torch.ones_like(values, dtype=torch.bool)
    for row, short in enumerate((0, 2, 5)):
        observed[row, -short if side == "right" else 0 : None if side == "right" else short] = not short
    observed[1, 3, 0] = False
    theirs = reference(past_values=values.masked_fill(~observed, 0.0), past_observed_mask=observed.float())
    inputs = SeriesInputs(values.masked_fill(~observed, torch.nan), observed, masked_patches)
    return model(inputs, kernel=kernel), published(reference, theirs)


def clicks(size: int) -> tuple[Tensor, Tensor]:
    """Two prompts per image of two points each (B, 2, 2, 2), and their labels: one of every kind."""
    return torch.rand(BATCH, 2, 2, 2) * size, torch.tensor(
        [[[1, 0], [1, -10]]] * (BATCH - 1) + [[[0, -1], [1, 1]]]
    )


def run_towers(reference: Any, model: TwoTower, ids: Tensor, real: Tensor, kernel: str) -> tuple[Any, Any]:
    """Ours and theirs on the same images and padded texts; two images more than texts."""
    torch.manual_seed(3)
    embed = model.image.embed
    images = torch.randn(BATCH + 2, embed.channels, *embed.image_size)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    theirs = reference(pixel_values=images, input_ids=ids, attention_mask=real.long(), position_ids=positions)
    return model(images, ids, real, kernel=kernel), theirs


def run_image_text(
    reference: Any, model: EncoderOnly, side: str, kernel: str, size: tuple[int, int] | None = None
) -> tuple[Any, Any]:
    """Ours and theirs on texts with an image each; the images of padded texts have other, odd sizes."""
    torch.manual_seed(3)
    image: Any = model.embed.image
    ids, real = harness.token_batch(model.embed.text.token.num_embeddings, {0}, side)
    rows, columns = image.image_size
    shapes = {"none": (rows, columns), "right": (2 * rows + 1, rows), "left": (rows, columns + 3 * rows - 1)}
    height, width = size or shapes[side]
    pixels = torch.randn(len(ids), image.channels, height, width)
    types = (ids % 2) * (model.embed.text.kind.num_embeddings > 1)
    theirs = reference(
        input_ids=ids,
        attention_mask=real.long(),
        token_type_ids=types,
        pixel_values=pixels,
        pixel_mask=torch.ones(len(ids), height, width, dtype=torch.long),
    )
    positions = torch.arange(ids.shape[1])[None]  # the reference counts padding
    text = ImageTextInputs(ids, real, types, positions, images=pixels)
    return model(text, kernel=kernel), theirs


def published(reference: Any, result: Any) -> Any:
    """The reference's result; a distribution by its parameters, for values in the series' own units."""
    raw = result.get("prediction_outputs", result.get("regression_outputs"))
    if not isinstance(raw, tuple):
        return result
    named = dict(zip(DISTRIBUTIONS[reference.config.distribution_output]._fields, raw, strict=True))
    if result.get("scale") is not None:
        distribution = reference.distribution_output.distribution(
            [t.clone() for t in raw], loc=result["loc"], scale=result["scale"]
        )
        if "logits" in named:
            named["logits"] = distribution.base_dist.logits
        else:
            named["scale"] = named["scale"] * result["scale"]
            named["loc"] = distribution.mean
    return named


def gradients(reference: nn.Module, bundle: glassformer.Bundle, folder: Path) -> tuple[dict, dict]:
    """Every gradient under its published name: ours by the weight table, theirs by their own saving."""

    def of(named: Any) -> dict[str, Tensor]:
        return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in named}

    table = families()[str(bundle.family)].table(bundle.spec, ())
    ours = to_theirs(of(unique_state_dict(bundle.model).items()), table)
    carrier = copy.deepcopy(reference)
    for name, gradient in of(reference.named_parameters()).items():
        if name.endswith("positional_embedding"):  # random Fourier frequencies, which are fixed here
            gradient.zero_()
        carrier.get_parameter(name).data = gradient
    for name, buffer in carrier.named_buffers():
        if not name.endswith("relative_position_index"):  # saved as it is by both
            buffer.zero_()
    carrier.save_pretrained(folder)  # type: ignore[operator]
    return ours, load_file(folder / "model.safetensors")
