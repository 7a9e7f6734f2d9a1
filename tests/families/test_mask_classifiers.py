"""Mask classifiers: masked attention, deep supervision, and deliberately wrong parts that must show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glassformer
from glassformer.core.vision.deformable import DeformableAttention
from glassformer.core.vision.mask_classifier import EncoderMaskClassifier, MaskClassifier
from glassformer.errors import InvalidValueError, MissingValueError
from tests.families import harness, values
from tests.families.cases import EOMT, MASK2FORMER, MASKFORMER

LOGITS = 1e-5


def load_pair(case: tuple[str, dict[str, Any]], folder: Path, seed: int = 1) -> tuple[Any, Any]:
    """A redrawn reference and our model from its folder; EoMT with masked attention."""
    reference = harness.reference(*case, seed=seed)
    return reference, glassformer.load(harness.save_reference(reference, folder)).model


def images(model: Any, size: tuple[int, int] = (77, 61)) -> torch.Tensor:
    torch.manual_seed(3)
    if isinstance(model, EncoderMaskClassifier):
        return torch.randn(2, model.embed.channels, *model.embed.image_size)
    return torch.randn(2, 3, *size)


def gap(model: nn.Module, reference: Any, pixels: torch.Tensor) -> float:
    with torch.no_grad():
        return harness.worst(model(pixels), reference(pixel_values=pixels), None)


@pytest.mark.parametrize("case", [*enumerate(MASK2FORMER), *enumerate(EOMT)], ids=lambda case: case[1][0][:8])
def test_rounding_moves_no_cell_across_the_mask_threshold(case: Any, tmp_path: Path) -> None:
    """In the cases of the parity test, every mask logit is farther from 0 than ours is from theirs."""
    number, settings = case
    reference, model = load_pair(settings, tmp_path, seed=number)
    mine, theirs, grids = [], [], []
    model.head.register_forward_hook(lambda _, __, output: mine.append(output.masks))
    if isinstance(model, MaskClassifier):
        record = lambda _, __, output: grids.extend(level.shape[-2:] for level in output.memory)  # noqa: E731
        model.embed.register_forward_hook(record)
        predictor = reference.model.transformer_module.decoder.mask_predictor
        predictor.register_forward_hook(lambda _, __, output: theirs.append(output[0]))
    else:
        predict = reference.predict
        reference.predict = lambda x: theirs.append(predict(x)[0]) or predict(x)
    with torch.no_grad():
        values.run(reference, model, "none", "auto")
    assert len(mine) == len(theirs) > 0
    for n, (one, other) in enumerate(zip(mine[:-1], theirs[:-1], strict=True)):
        grid = tuple(grids[n % 3]) if grids else model.embed.grid
        margin = F.interpolate(one, grid, mode="bilinear").abs().min()
        assert margin > 2 * (one - other).abs().max()


def test_earlier_layers_match_the_auxiliary_outputs_of_mask2former(tmp_path: Path) -> None:
    reference, model = load_pair(MASK2FORMER[1], tmp_path)
    pixels = images(model)
    with torch.no_grad():
        auxiliary = reference(pixel_values=pixels, output_auxiliary_logits=True).auxiliary_logits
        assert model(pixels).layers == ()
        model.training = True  # of the model alone: without dropout
        layers = model(pixels).layers
    assert len(layers) == len(auxiliary) == 4
    assert max(harness.worst(a, b, None) for a, b in zip(layers, auxiliary, strict=True)) < LOGITS


def test_earlier_layers_match_a_maskformer_with_fewer_layers(tmp_path: Path) -> None:
    reference, model = load_pair(MASKFORMER[2], tmp_path)
    pixels, decoder = images(model), reference.model.transformer_module.decoder
    model.training, model.decoder.training = True, True
    with torch.no_grad():
        layers = model(pixels).layers
        assert len(layers) == len(decoder.layers) - 1 == 2
        for n, layer in reversed(list(enumerate(layers))):
            decoder.layers = decoder.layers[: n + 1]
            assert harness.worst(layer, reference(pixel_values=pixels), None) < LOGITS


def test_earlier_layers_match_the_predictions_inside_eomt(tmp_path: Path) -> None:
    reference, model = load_pair(EOMT[2], tmp_path)
    pixels, logits = images(model), []
    reference.class_predictor.register_forward_hook(lambda _, __, output: logits.append(output))
    with torch.no_grad():
        reference(pixel_values=pixels)
        model.training = True
        output = model(pixels)
    predicted = [*(layer.logits for layer in output.layers), output.logits]
    assert len(predicted) == len(logits) == 4
    for mine, theirs in zip(predicted, logits, strict=True):
        assert (mine - theirs).abs().max() < LOGITS


def test_query_with_an_empty_mask_attends_to_all_cells(tmp_path: Path) -> None:
    reference = harness.reference(*MASK2FORMER[0], seed=1)
    embedder = reference.model.transformer_module.decoder.mask_predictor.mask_embedder
    last, pixels = getattr(embedder, "2"), reference.model.pixel_level_module.decoder.mask_projection
    with torch.no_grad():
        for part, bias in ((getattr(last, "0"), 1.0), (pixels, -1.0)):  # all logits are negative
            part.weight.zero_()
            part.bias.fill_(bias)
    model = glassformer.load(harness.save_reference(reference, tmp_path)).model
    assert (model(images(model)).masks < 0).all()
    assert gap(model, reference, images(model)) < LOGITS


def _self_first(model: Any) -> None:
    for block in model.decoder.blocks:
        block.order = "self_first"


def _unmasked(model: Any) -> None:
    model.masked = False


def _swap_axes(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            bias = module.offset_proj.bias.data.view(-1, 2)
            module.offset_proj.bias.data = bias.flip(-1).reshape(-1)


def _one_level(model: Any) -> None:
    model.embed.level.data.zero_()


def _nearest(model: Any) -> None:
    for level in model.embed.levels:
        level.mode = "nearest"


def _bilinear(model: Any) -> None:
    for level in model.embed.pyramid.levels:
        level.mode = "bilinear"


def _no_positions(model: Any) -> None:
    model.queries.position.data.zero_()


def _unshifted(model: Any) -> None:
    for block in model.embed.backbone.encoder.stages[0].blocks:
        window = block.self_attn.spatial_window
        block.self_attn.spatial_window = type(window)(size=window.size)


def _no_masks(model: Any) -> None:
    model.mask_probs.zero_()


def _unscaled(model: Any) -> None:
    model.encoder.blocks[0].scale_ffn.weight.data.fill_(1.0)


def _one_norm(model: Any) -> None:
    model.upscale[0].norm.weight.data.fill_(1.0)


def _more_groups(model: Any) -> None:
    for module in model.embed.modules():
        if isinstance(module, nn.GroupNorm):
            module.num_groups = 16


def _other_activation(model: Any) -> None:
    model.head.mask.activation = "tanh"


def _content_is_position(model: Any) -> None:
    model.queries.content = model.queries.position


def _equal_samples(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            nn.init.zeros_(module.weight_proj.weight)
            nn.init.zeros_(module.weight_proj.bias)


WRONG: list[tuple[Any, Callable[[Any], None]]] = [
    *((MASK2FORMER[0], change) for change in (_self_first, _unmasked, _swap_axes, _one_level, _nearest)),
    *((MASK2FORMER[0], change) for change in (_more_groups, _equal_samples, _other_activation)),
    *((MASKFORMER[2], change) for change in (_bilinear, _no_positions, _unshifted)),
    *((MASKFORMER[2], change) for change in (_more_groups, _content_is_position, _other_activation)),
    *((EOMT[0], change) for change in (_no_masks, _unscaled, _one_norm, _other_activation)),
]


@pytest.mark.parametrize(("case", "change"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_part_changes_the_output(case: Any, change: Callable[[Any], None], tmp_path: Path) -> None:
    reference, model = load_pair(case, tmp_path)
    assert gap(model, reference, images(model)) < LOGITS
    change(model)
    assert gap(model, reference, images(model)) > 100 * LOGITS


def test_deformable_attention_starts_with_points_around_the_query() -> None:
    """Fresh weights sample one direction per head, and count all points equally."""
    model = glassformer.tiny("mask2former")
    attention = next(module for module in model.modules() if isinstance(module, DeformableAttention))
    offsets = attention.offset_proj.bias.view(attention.num_heads, attention.num_levels, -1, 2)
    assert offsets[0, 0].tolist() == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]
    assert not attention.weight_proj.weight.any() and not attention.offset_proj.weight.any()


def test_invalid_mask_classifiers_are_rejected() -> None:
    with pytest.raises(InvalidValueError) as invalid:
        glassformer.tiny("eomt", query_layers=9)
    assert invalid.value.name == "query_layers"
    with pytest.raises(InvalidValueError) as invalid:
        glassformer.tiny("maskformer", width=40)
    assert invalid.value.name == "width"
    spec = glassformer.tiny("maskformer").spec
    with pytest.raises(MissingValueError):
        type(spec)(
            **{**vars(spec), "decoder": type(spec.decoder)(**{**vars(spec.decoder), "final_norm": None})}
        )


@pytest.mark.parametrize("family", ["eomt", "maskformer", "mask2former"])
def test_mask_classifiers_can_be_verified_and_inspected(family: str) -> None:
    from glassformer.cli.model_summary import summarize_model
    from glassformer.verify.forward import gradients_agree, observed_equals_unobserved

    bundle = glassformer.Pipeline(model=glassformer.tiny(family).eval())
    for check in (gradients_agree, observed_equals_unobserved):
        assert check(bundle, "check").status == "passed"
    shapes = summarize_model(bundle, batch=2).outputs
    assert shapes["logits"][:2] == shapes["masks"][:2]
