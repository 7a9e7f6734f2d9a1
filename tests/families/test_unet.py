"""The UNet of Stable Diffusion, compared with diffusers' UNet2DConditionModel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.build import build_model
from glassformer.core.diffusion import levels
from glassformer.core.diffusion.latents import TimestepEmbedding
from glassformer.core.diffusion.unet import UNet
from glassformer.core.feedforward import FeedForward
from glassformer.core.inputs import LatentInputs
from glassformer.errors import ConflictError, GlassformerError, InvalidValueError, ShapeError
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.registry import families, family_of_config, preset_spec
from glassformer.weights.convert import to_theirs
from tests.families.diffusion_models import (
    assert_same_gradients,
    assert_saved_folder_is_exact,
    diffusers,
    load_saved,
    reference,
)

NAME, BATCH = "UNet2DConditionModel", 3


def settings(attends: str, **others: Any) -> dict[str, Any]:
    """attends: a letter for each level, x with attention and o without."""
    down = [("DownBlock2D", "CrossAttnDownBlock2D")[letter == "x"] for letter in attends]
    up = [("UpBlock2D", "CrossAttnUpBlock2D")[letter == "x"] for letter in reversed(attends)]
    return {
        "sample_size": 8,
        "block_out_channels": [8, 16, 12, 12][: len(attends)],
        "down_block_types": down,
        "up_block_types": up,
        "norm_num_groups": 4,
        "cross_attention_dim": 20,
        "attention_head_dim": 2,
        "layers_per_block": 1,
        **others,
    }


NO_TEXT = {"cross_attention_dim": [None, None]}
CASES = [
    (settings("xo"), (8, 8)),
    (settings("xxo", layers_per_block=2, attention_head_dim=[2, 4, 3]), (8, 12)),
    (settings("xxo", use_linear_projection=True, transformer_layers_per_block=2), (13, 18)),  # odd sizes
    (settings("ox", flip_sin_to_cos=False, freq_shift=1, in_channels=3, out_channels=6), (7, 5)),
    (settings("xo", num_class_embeds=6, norm_eps=1e-3, norm_num_groups=2), (8, 8)),
    (settings("oo", num_class_embeds=11, in_channels=1, out_channels=1, **NO_TEXT), (14, 14)),
    (settings("xxxo", sample_size=16), (16, 16)),
    (settings("x", layers_per_block=3, attention_head_dim=4), (5, 6)),
]


def inputs_of(model: UNet, size: tuple[int, int]) -> LatentInputs:
    """Latents with time steps, and what else the model reads; texts have unequal lengths."""
    generator = torch.Generator().manual_seed(3)
    read, text, mask, labels = model.spec.input, None, None, None
    latents = torch.randn(BATCH, read.channels, *size, generator=generator)
    if read.text_dim is not None:
        text = torch.randn(BATCH, 7, read.text_dim, generator=generator)
        mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    if read.num_classes is not None:
        labels = torch.tensor([0, read.num_classes - 1, read.num_classes])
    return LatentInputs(latents, torch.tensor([0, 431, 999]), labels=labels, text=text, text_mask=mask)


def run_reference(theirs: Any, inputs: LatentInputs) -> Tensor:
    output: Tensor = theirs(
        inputs.latents,
        inputs.timesteps,
        inputs.text,
        class_labels=inputs.labels,
        encoder_attention_mask=inputs.text_mask,
    ).sample
    return output


@pytest.mark.parametrize(("options", "size"), CASES)
def test_outputs_gradients_and_saved_folders_match(
    options: dict[str, Any], size: tuple[int, int], tmp_path: Path
) -> None:
    theirs = reference(NAME, options)
    bundle = load_saved(theirs, tmp_path / "theirs")
    inputs = inputs_of(bundle.model, size)
    ours, expected = bundle.model(inputs), run_reference(theirs, inputs)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    explicit = bundle.model(inputs, kernel="explicit")
    torch.testing.assert_close(explicit, expected, atol=1e-5, rtol=0)
    assert_saved_folder_is_exact(bundle, theirs, tmp_path)
    assert_same_gradients(bundle, ours, theirs, expected)


Change = Callable[[nn.Module], None]


def change_time(module: nn.Module) -> None:
    if isinstance(module, TimestepEmbedding):
        object.__setattr__(module.spec, "cosines_first", False)


def swap_gate(module: nn.Module) -> None:
    if isinstance(module, FeedForward):
        module.up, module.gate = module.gate, module.up  # type: ignore[assignment]


def approximate_gelu(module: nn.Module) -> None:
    if isinstance(module, FeedForward):
        module.activation = "gelu_tanh"


def other_heads(module: nn.Module) -> None:
    """`attention_head_dim` as the width of a head: 8 / 2 = 4 heads."""
    if isinstance(module, MultiHeadAttention):
        module.num_heads = module.num_kv_heads = module.num_heads * 2
        module.head_dim = module.value_dim = module.head_dim // 2
        module.scale = module.head_dim**-0.5


def no_condition(module: nn.Module) -> None:
    if isinstance(module, levels.ResidualConvolutions):
        module.condition = None


def pad_end(module: nn.Module) -> None:
    if isinstance(module, levels.Downsample):
        module.pad_end, module.conv.padding = True, (0, 0)


def other_eps(module: nn.Module) -> None:
    """The eps of the residual layers before Transformer layers."""
    if isinstance(module, levels.CellTransformer):
        module.norm.eps = 1e-1


def no_residual(module: nn.Module) -> None:
    if isinstance(module, levels.CellTransformer):
        module.register_forward_hook(lambda _, args, output: output - args[0])


def swap_skips(module: nn.Module) -> None:
    if isinstance(module, UNet):
        original = module.decoder.forward

        def forward(x: Tensor, context: levels.LevelContext) -> Tensor:
            first, second, *rest = context.skips or []
            return original(x, context._replace(skips=[second, first, *rest]))

        module.decoder.forward = forward  # type: ignore[method-assign]


def skip_first(module: nn.Module) -> None:
    """The skip before the hidden state."""
    if isinstance(module, levels.Level):
        layers = [layer for layer in module.layers if layer.norm1.num_channels != layer.conv2.out_channels]
        for layer in layers:
            layer.register_forward_pre_hook(lambda _, args: (args[0].roll(8, 1), *args[1:]))


WRONG = [change_time, swap_gate, approximate_gelu, other_heads, no_condition, pad_end]
WRONG += [other_eps, no_residual, swap_skips, skip_first]


@pytest.mark.parametrize("change", [None, *WRONG])
def test_a_wrong_part_does_not_match(change: Change | None, tmp_path: Path) -> None:
    theirs = reference(NAME, CASES[0][0])
    model = load_saved(theirs, tmp_path).model
    inputs = inputs_of(model, (8, 8))
    if change is not None:
        model.apply(change)
    with torch.no_grad():
        gap = float((model(inputs) - run_reference(theirs, inputs)).abs().max())
    assert gap < 1e-5 if change is None else gap > 2e-5


@pytest.mark.parametrize("preset", ["stable-diffusion-v1-5-unet", "stable-diffusion-v1-5-vae", "ldm-vq-f4"])
def test_published_sizes_have_the_tensors_of_the_reference(preset: str) -> None:
    """All names and shapes, without memory."""
    model_spec = preset_spec(preset)
    with torch.device("meta"):
        model = build_model(model_spec)
        family = next(family for family in families().values() if preset in family.presets)
        config = family.to_config(model_spec)
        theirs = getattr(diffusers, config["_class_name"]).from_config(config)
    found = to_theirs(dict(model.named_parameters()), family.table(model_spec, ()))
    expected = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in found.items()} == expected
    counts = {"stable-diffusion-v1-5-unet": 859_520_964, "stable-diffusion-v1-5-vae": 83_653_863}
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total == counts.get(preset, total)


def test_a_batch_has_the_outputs_of_its_rows() -> None:
    """Also with other lengths of texts, and a time step for all rows."""
    model = glassformer.tiny("unet_2d_condition").eval()
    inputs = inputs_of(model, (8, 8))
    assert inputs.text is not None and inputs.text_mask is not None
    with torch.no_grad():
        together = model(inputs)
        for row, length in enumerate((7, 4, 1)):
            alone = LatentInputs(
                inputs.latents[row : row + 1], inputs.timesteps[row], text=inputs.text[row : row + 1, :length]
            )
            torch.testing.assert_close(model(alone)[0], together[row], atol=1e-5, rtol=0)


def test_wrong_inputs_are_errors() -> None:
    model = glassformer.tiny("unet_2d_condition")
    text, time = torch.zeros(1, 3, 16), torch.tensor(3)
    with pytest.raises(ShapeError):
        model(LatentInputs(torch.zeros(1, 3, 8, 8), time, text=text))
    with pytest.raises(ShapeError):
        model(LatentInputs(torch.zeros(1, 4, 8, 8), time, text=torch.zeros(1, 3, 17)))
    with pytest.raises(GlassformerError):
        model(LatentInputs(torch.zeros(1, 4, 8, 8), time))
    with pytest.raises(GlassformerError):
        model(torch.zeros(1, 4, 8, 8))
    with pytest.raises(ConflictError):
        glassformer.tiny("unet_2d_condition", widths=(), attention_levels=())
    with pytest.raises(ConflictError):
        glassformer.tiny("unet_2d_condition", attention_levels=(True,))
    with pytest.raises(ConflictError):
        glassformer.tiny("unet_2d_condition", text_dim=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"addition_embed_type": "text_time"},
        {"class_embed_type": "timestep"},
        {"resnet_time_scale_shift": "scale_shift"},
        {"down_block_types": ["AttnDownBlock2D", "DownBlock2D"]},
        {"up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]},
        {"mid_block_type": None},
        {"time_cond_proj_dim": 256},
        {"cross_attention_dim": [20, 24]},
        {"freq_shift": 2},
        {"attention_head_dim": [2]},
        {"layers_per_block": [1, 2]},
        {"block_out_channels": [8, 18]},
    ],
)
def test_configs_that_cannot_be_honored_are_errors(changes: dict[str, Any]) -> None:
    config = Config({"_class_name": NAME, **settings("xo"), **changes})
    with pytest.raises(GlassformerError) as caught:
        family_of_config(config).from_config(config)
    assert isinstance(caught.value, UnsupportedConfigError | InvalidValueError | ConflictError)
