"""MobileSAM: SAM's prompts and mask decoder behind a TinyViT encoder of convolutions and window attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.family import Builder, Family
from glassformer.families.keys import Head, Key, Keys, Rule
from glassformer.families.rows import rename_modules
from glassformer.families.sam import mask_decoder, prompt_rows, two_way_rows
from glassformer.weights.ops import (
    Concat,
    Ignored,
    Op,
    Rename,
    SplitGroups,
    Transpose,
    add_prefix,
    expand,
)


def mobile_sam(
    *,
    image_size: int = 1024,
    channels: int = 3,
    widths: Sequence[int] = (64, 128, 160, 320),
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[int] = (4, 5, 10),
    windows: Sequence[int] = (7, 14, 7),
    strides: Sequence[int] = (2, 2, 1),
    d_model: int = 256,
    decoder_layers: int = 2,
    decoder_heads: int = 8,
    decoder_d_ff: int = 2048,
    mask_channels: int = 16,
    iou_dim: int = 256,
) -> spec.PromptedSegmenterSpec:
    """Create the spec of a MobileSAM model; the defaults are those of the published one.

    widths, depths: of the stages, of which the first is convolutional.
    heads, windows: of the stages with attention. strides: of the merging between stages.
    """

    def stack(width: int, depth: int, num_heads: int, window: int) -> spec.StackSpec:
        attention = spec.AttentionSpec(
            num_heads=num_heads,
            spatial_window=spec.WindowSpec(size=window, pad_before_norm=True),
            position_bias=spec.RelativeBias2dSpec(grid=(window, window), signed=False),
        )
        ffn = spec.FeedForwardSpec(d_ff=4 * width, activation="gelu")
        block = spec.BlockSpec(attention=attention, feed_forward=ffn, wiring="pre", local_conv=3)
        return spec.StackSpec(d_model=width, num_layers=depth, block=block)

    if not len(widths) == len(depths) == len(heads) + 1 == len(windows) + 1:
        names = ("widths", "depths", "heads", "windows")
        raise ConflictError(names, "they need one number for each stage, or each stage with attention")
    stacks = zip(widths[1:], depths[1:], heads, windows, strict=True)
    first = spec.ConvolutionStageSpec(d_model=widths[0], num_layers=depths[0])
    return spec.PromptedSegmenterSpec(
        input=spec.ConvolutionStemSpec(image_size=(image_size, image_size), channels=channels),
        encoder=spec.HybridStagesSpec(
            stages=(first, *(stack(*options) for options in stacks)), strides=tuple(strides)
        ),
        neck=spec.NeckSpec(channels=d_model),
        prompt=spec.PromptEncoderSpec(mask_channels=mask_channels),
        decoder=mask_decoder(
            d_model=d_model,
            num_layers=decoder_layers,
            num_heads=decoder_heads,
            d_ff=decoder_d_ff,
            norm_eps=1e-5,
        ),
        head=spec.PromptedMasksSpec(iou_dim=iou_dim),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `mobile_sam` that give a spec."""
    stages = model.encoder.stages
    attentions = [stage.block.attention for stage in stages if isinstance(stage, spec.StackSpec)]
    windows = [attention.spatial_window for attention in attentions]
    return {
        "image_size": model.input.image_size[0],
        "channels": model.input.channels,
        "widths": tuple(stage.d_model for stage in stages),
        "depths": tuple(stage.num_layers for stage in stages),
        "heads": tuple(attention.num_heads for attention in attentions),
        "windows": tuple(w.size for w in windows if isinstance(w, spec.WindowSpec)),
        "strides": model.encoder.strides,
        "d_model": model.decoder.d_model,
        "decoder_layers": model.decoder.num_layers,
        "decoder_heads": model.decoder.attention.num_heads,
        "decoder_d_ff": model.decoder.feed_forward.d_ff,
        "mask_channels": model.prompt.mask_channels,
        "iou_dim": model.head.iou_dim,
    }


BUILDER = Builder(mobile_sam, _invert)


def _sequence(name: str) -> Rule:
    return Rule(
        (name,),
        lambda config, _: {name: tuple(config.need(name, list))},
        lambda options: {name: [*options[name]]},
    )


# There is no published config: the keys are the options of `mobile_sam`.
_SIZES = "image_size channels d_model decoder_layers decoder_heads decoder_d_ff mask_channels iou_dim".split()
KEYS: Keys = (
    *(Key(name) for name in _SIZES),
    *(_sequence(name) for name in ("widths", "depths", "heads", "windows", "strides")),
)

_BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def _conv_rows(*pairs: tuple[str, str]) -> tuple[Op, ...]:
    """Return the rows of convolutions with batch norm; pairs: (published name, Glassformer name)."""
    convs = tuple(Rename(f"{theirs}.c.weight", f"{ours}.conv.weight") for theirs, ours in pairs)
    norms = tuple(Rename(f"{theirs}.bn.{{p}}", f"{ours}.norm.{{p}}") for theirs, ours in pairs)
    return (*convs, *expand(norms, p=_BATCH_NORM))


_BOTTLENECK = (("conv1", "expand"), ("conv2", "depthwise"), ("conv3", "project"))


def _stage_rows(n: int, stage: spec.ConvolutionStageSpec | spec.StackSpec) -> tuple[Op, ...]:
    theirs, ours = f"image_encoder.layers.{n}.blocks.{{i}}.", f"encoder.stages.{n}.blocks.{{i}}."
    if isinstance(stage, spec.ConvolutionStageSpec):
        return expand(add_prefix(theirs, ours, _conv_rows(*_BOTTLENECK)), i=stage.num_layers)
    heads = stage.block.attention.num_heads
    split = SplitGroups(
        "attn.qkv.{p}",
        "self_attn.{q,k,v}_proj.{p}",
        groups=heads,
        queries=1,
        head_dim=stage.d_model // heads,
    )
    rows = (
        *expand((split,), p=("weight", "bias")),
        Transpose("attn.attention_biases", "self_attn.position_bias.weight"),
        *rename_modules(
            ("attn.norm", "norm_self"),
            ("attn.proj", "self_attn.out_proj"),
            ("mlp.norm", "norm_ffn"),
            ("mlp.fc1", "ffn.up"),
            ("mlp.fc2", "ffn.down"),
        ),
        *_conv_rows(("local_conv", "local_conv")),
    )
    return expand(add_prefix(theirs, ours, rows), i=stage.num_layers)


def weight_rows(model: Any) -> Sequence[Op]:
    stages, count = model.encoder.stages, model.head.num_masks + 1
    mlps = [(f"output_hypernetworks_mlps.{m}", f"hypernetworks.{m}", 3) for m in range(count)]
    mlps.append(("iou_prediction_head", "iou", model.head.iou_layers))
    return (
        *_conv_rows(
            ("image_encoder.patch_embed.seq.0", "embed.conv1"),
            ("image_encoder.patch_embed.seq.2", "embed.conv2"),
        ),
        *(row for n, stage in enumerate(stages) for row in _stage_rows(n, stage)),
        *_conv_rows(
            *(
                (f"image_encoder.layers.{n}.downsample.{theirs}", f"encoder.merging.{n}.{ours}")
                for n in range(len(stages) - 1)
                for theirs, ours in _BOTTLENECK
            )
        ),
        Ignored("image_encoder.{norm_head,head}.*"),  # a classifier from pretraining
        Rename("image_encoder.neck.0.weight", "neck.conv1.weight"),
        Rename("image_encoder.neck.2.weight", "neck.conv2.weight"),
        Rename("prompt_encoder.pe_layer.positional_encoding_gaussian_matrix", "prompt.position.frequencies"),
        *prompt_rows("point_embeddings"),
        *two_way_rows(model.decoder.num_layers, "norm"),
        *rename_modules(
            ("image_encoder.neck.1", "neck.norm1"),
            ("image_encoder.neck.3", "neck.norm2"),
            ("prompt_encoder.mask_downscaling.0", "prompt.mask.conv1"),
            ("prompt_encoder.mask_downscaling.1", "prompt.mask.norm1"),
            ("prompt_encoder.mask_downscaling.3", "prompt.mask.conv2"),
            ("prompt_encoder.mask_downscaling.4", "prompt.mask.norm2"),
            ("prompt_encoder.mask_downscaling.6", "prompt.mask.conv3"),
            ("mask_decoder.transformer.norm_final_attn", "decoder.final_norm"),
            ("mask_decoder.output_upscaling.0", "head.upscale1"),
            ("mask_decoder.output_upscaling.1", "head.upscale_norm"),
            ("mask_decoder.output_upscaling.3", "head.upscale2"),
            *(
                (f"mask_decoder.{theirs}.layers.{n}", f"head.{ours}.layers.{n}")
                for theirs, ours, layers in mlps
                for n in range(layers)
            ),
        ),
        Concat("mask_decoder.{iou_token,mask_tokens}.weight", "head.tokens", sizes=(1, count)),
    )


FAMILY = Family(
    name="mobile_sam",
    builder=BUILDER,
    keys=KEYS,
    heads={"MobileSam": Head(spec.PromptedMasksSpec, from_options=True)},
    presets={"mobile-sam": {}},
    tiny={
        "image_size": 48,
        "widths": (8, 16, 16, 32),
        "depths": (1, 1, 2, 1),
        "heads": (2, 2, 4),
        "windows": (3, 4, 3),
        "d_model": 32,
        "decoder_heads": 4,
        "decoder_d_ff": 64,
        "iou_dim": 16,
    },
    rows=weight_rows,
)
