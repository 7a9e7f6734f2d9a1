"""Autoencoders of images in diffusers' layout: what AutoencoderKL and VQModel share."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.family import Builder
from glassformer.families.keys import Head, Key, Keys, fixed
from glassformer.families.levels import level_keys, level_rows, level_specs
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Op, Rename, add_prefix


def autoencoder(
    *,
    image_size: int = 32,
    channels: int = 3,
    out_channels: int = 3,
    widths: tuple[int, ...] = (64,),
    num_layers: int = 1,
    attention_levels: tuple[bool, ...] = (),
    middle_attention: bool = True,
    latent_channels: int = 4,
    num_codes: int | None = None,
    code_dim: int | None = None,
    project: bool = True,
    unproject: bool = True,
    norm_groups: int = 32,
    scaling_factor: float = 0.18215,
    shift_factor: float = 0.0,
) -> spec.AutoencoderSpec:
    """Create the spec of an autoencoder; with `num_codes`, its latents are codes.

    widths: channels of each level, fine to coarse; the resolution halves between them.
    num_layers: residual layers of a level of the encoder; the decoder has one more.
    attention_levels: whether each level has attention, besides the middle (`middle_attention`); (): none has.
    code_dim: width of a code; None: latent_channels.
    project, unproject: whether a 1x1 convolution stands before and after the latents.
    """
    attention = attention_levels or (False,) * len(widths)
    if len(attention) != len(widths):
        raise ConflictError(("attention_levels", "widths"), f"{len(attention)} and {len(widths)} levels")
    cells = spec.AttentionSpec(num_heads=1)
    attentions = [cells if attends else None for attends in attention]
    down, middle, up = level_specs(widths, num_layers, attentions, cells if middle_attention else None)
    latents: spec.GaussianLatentsSpec | spec.CodebookSpec
    if num_codes is None:
        latents = spec.GaussianLatentsSpec(channels=latent_channels, project=project, unproject=unproject)
    else:
        width = latent_channels if code_dim is None else code_dim
        latents = spec.CodebookSpec(channels=latent_channels, num_codes=num_codes, code_dim=width)
    return spec.AutoencoderSpec(
        input=spec.ImagePixelsSpec(image_size=(image_size, image_size), channels=channels),
        encoder=(*down, middle),
        latents=latents,
        decoder=(middle, *up),
        head=spec.ImageHeadSpec(channels=out_channels),
        norm=spec.GroupNormSpec(groups=norm_groups),
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `autoencoder` that give a spec."""
    *levels, middle = model.encoder
    return {
        **{"project": True, "unproject": True, "num_codes": None, "code_dim": None},
        **vars(model.latents),
        "latent_channels": model.latents.channels,
        "image_size": model.input.image_size[0],
        "channels": model.input.channels,
        "out_channels": model.head.channels,
        "widths": tuple(level.width for level in levels),
        "num_layers": levels[0].num_layers,
        "attention_levels": tuple(level.attention is not None for level in levels),
        "middle_attention": middle.attention is not None,
        "norm_groups": model.norm.groups,
        "scaling_factor": model.scaling_factor,
        "shift_factor": model.shift_factor,
    }


def keys(latent_channels: int) -> Keys:
    """Return the config keys of both families."""
    return (
        Key("sample_size", "image_size", 32),
        Key("in_channels", "channels", 3),
        Key("out_channels", default=3),
        level_keys(
            ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
            ("UpDecoderBlock2D", "AttnUpDecoderBlock2D"),
            [64],
            [False],
        ),
        Key("layers_per_block", "num_layers", 1),
        Key("latent_channels", default=latent_channels),
        Key("norm_num_groups", "norm_groups", 32),
        Key("mid_block_add_attention", "middle_attention", True),
        Key("scaling_factor", default=0.18215),
        fixed("act_fn", "silu"),
    )


def weight_rows(model: spec.AutoencoderSpec) -> tuple[Op, ...]:
    """Return the rows of an autoencoder."""
    rows: list[Op] = []
    for side, levels, names in (
        ("encoder", model.encoder, ("embed", "project")),
        ("decoder", model.decoder, ("unproject", "head")),
    ):
        blocks = [f"{'down' if side == 'encoder' else 'up'}_blocks.{n}" for n in range(len(levels) - 1)]
        theirs = [*blocks, "mid_block"] if side == "encoder" else ["mid_block", *blocks]
        parts = level_rows(theirs, side, levels, spec.input_widths(levels, levels[0].width))
        around = rename_modules(
            ("conv_in", names[0]), ("conv_norm_out", f"{names[1]}.norm"), ("conv_out", f"{names[1]}.conv")
        )
        rows += add_prefix(f"{side}.", "", (*parts, *around))
    latents = model.latents
    gaussian = isinstance(latents, spec.GaussianLatentsSpec)
    pairs = {"quant_conv": "project", "post_quant_conv": "unproject"}
    used = [(a, f"bottleneck.{b}") for a, b in pairs.items() if getattr(latents, b, True)]
    codes = () if gaussian else (Rename("quantize.embedding.weight", "bottleneck.codes"),)
    return (*rows, *rename_modules(*used), *codes)


BUILDER = Builder(autoencoder, _invert, shared=True)
HEAD = Head(spec.ImageHeadSpec, from_options=True)
TINY: dict[str, Any] = {"widths": (8, 16), "norm_groups": 4}
