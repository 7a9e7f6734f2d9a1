"""UNet2DConditionModel of Stable Diffusion 1.x and 2.x.

`attention_head_dim` of a published config is the number of heads, or one number for each level.
"""

from __future__ import annotations

from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.config import Config
from glassformer.families.family import Builder, Family
from glassformer.families.keys import Head, Key, Keys, Options, Rule, fixed
from glassformer.families.levels import level_keys, level_rows, level_specs
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Op, Rename

# options that change the model, with the only value that is supported
_FIXED: dict[str, Any] = {
    **{"act_fn": "silu", "center_input_sample": False, "mid_block_type": "UNetMidBlock2DCrossAttn"},
    **{"downsample_padding": 1, "mid_block_scale_factor": 1, "dropout": 0.0, "num_attention_heads": None},
    **{"only_cross_attention": False, "dual_cross_attention": False, "class_embed_type": None},
    **{"encoder_hid_dim": None, "encoder_hid_dim_type": None, "addition_embed_type": None},
    **{"resnet_time_scale_shift": "default", "resnet_skip_time_act": False, "resnet_out_scale_factor": 1.0},
    **{"time_embedding_type": "positional", "time_embedding_dim": None, "time_embedding_act_fn": None},
    **{"timestep_post_act": None, "time_cond_proj_dim": None, "conv_in_kernel": 3, "conv_out_kernel": 3},
    **{"attention_type": "default", "class_embeddings_concat": False, "cross_attention_norm": None},
    "reverse_transformer_layers_per_block": None,
}


def unet(
    *,
    image_size: int = 64,
    channels: int = 4,
    out_channels: int = 4,
    widths: tuple[int, ...] = (320, 640, 1280, 1280),
    num_layers: int = 2,
    attention_levels: tuple[bool, ...] = (True, True, True, False),
    num_heads: int | tuple[int, ...] = 8,
    transformer_layers: int = 1,
    text_dim: int | None = 768,
    num_classes: int | None = None,
    norm_groups: int = 32,
    norm_eps: float = 1e-5,
    linear_projection: bool = False,
    cosines_first: bool = True,
    divisor: Literal["half", "half_minus_1"] = "half",
) -> spec.UNetSpec:
    """Create the spec of a UNet; without `text_dim`, only the middle has a Transformer layer.

    widths: channels of each level, fine to coarse; the resolution halves between them.
    num_layers: residual layers of a level on the way down; on the way up there is one more.
    attention_levels: whether each level has Transformer layers; the middle always has.
    num_heads: attention heads, of all levels or of each.
    """
    count = len(widths)
    heads = (num_heads,) * count if isinstance(num_heads, int) else num_heads
    if not 0 < count == len(attention_levels) == len(heads):
        sizes = f"{count}, {len(attention_levels)} and {len(heads)} levels"
        raise ConflictError(("widths", "attention_levels", "num_heads"), sizes)
    if text_dim is None and any(attention_levels):
        raise ConflictError(("text_dim", "attention_levels"), "levels with attention need a text")

    def stack(level: int) -> spec.StackSpec:
        inner = spec.AttentionSpec(num_heads=heads[level], biases=("out",))
        block = spec.BlockSpec(
            attention=inner,
            cross_attention=None if text_dim is None else inner,
            feed_forward=spec.GatedFeedForwardSpec(
                d_ff=4 * widths[level], activation="gelu", biases=("up", "gate", "down")
            ),
            wiring="pre",
        )
        return spec.StackSpec(d_model=widths[level], num_layers=transformer_layers, block=block)

    attentions = [stack(n) if attends else None for n, attends in enumerate(attention_levels)]
    down, middle, up = level_specs(widths, num_layers, attentions, stack(count - 1))
    return spec.UNetSpec(
        input=spec.NoisyMapSpec(
            image_size=(image_size, image_size),
            channels=channels,
            time=spec.TimestepSpec(width=widths[0], cosines_first=cosines_first, divisor=divisor),
            num_classes=num_classes,
            text_dim=text_dim,
        ),
        encoder=(*down, middle),
        decoder=up,
        head=spec.NoiseMapSpec(channels=out_channels),
        norm=spec.GroupNormSpec(groups=norm_groups, eps=norm_eps),
        linear_projection=linear_projection,
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `unet` that give a spec."""
    *levels, middle = model.encoder
    stacks = [level.attention or middle.attention for level in levels]
    heads = tuple(stack.block.attention.num_heads for stack in stacks)
    return {
        "image_size": model.input.image_size[0],
        "channels": model.input.channels,
        "out_channels": model.head.channels,
        "widths": tuple(level.width for level in levels),
        "num_layers": levels[0].num_layers,
        "attention_levels": tuple(level.attention is not None for level in levels),
        "num_heads": heads[0] if len({*heads}) == 1 else heads,
        "transformer_layers": middle.attention.num_layers,
        "text_dim": model.input.text_dim,
        "num_classes": model.input.num_classes,
        "norm_groups": model.norm.groups,
        "norm_eps": model.norm.eps,
        "linear_projection": model.linear_projection,
        "cosines_first": model.input.time.cosines_first,
        "divisor": model.input.time.divisor,
    }


def _read_heads(config: Config, options: Options) -> dict[str, Any]:
    heads = config.values.get("attention_head_dim", 8)
    return {"num_heads": tuple(heads) if isinstance(heads, list) else config.get("attention_head_dim", 8)}


def _write_heads(options: Options) -> dict[str, Any]:
    heads = options["num_heads"]
    return {"attention_head_dim": heads if isinstance(heads, int) else list(heads)}


def _read_text(config: Config, options: Options) -> dict[str, Any]:
    width = config.values.get("cross_attention_dim", 1280)
    if isinstance(width, list) and width and width.count(width[0]) == len(width):  # one for each level
        width = width[0]
    classes = config.maybe("num_class_embeds", int)
    return {
        "text_dim": Config({"cross_attention_dim": width}, config.where).maybe("cross_attention_dim", int),
        "num_classes": None if classes is None else classes - 1,
    }


def _write_text(options: Options) -> dict[str, Any]:
    classes, width = options["num_classes"], options["text_dim"]
    return {
        "cross_attention_dim": [None] * len(options["widths"]) if width is None else width,
        "num_class_embeds": None if classes is None else classes + 1,
    }


KEYS: Keys = (
    Key("sample_size", "image_size", 64),
    Key("in_channels", "channels", 4),
    Key("out_channels", default=4),
    level_keys(
        ("DownBlock2D", "CrossAttnDownBlock2D"),
        ("UpBlock2D", "CrossAttnUpBlock2D"),
        [320, 640, 1280, 1280],
        [True, True, True, False],
    ),
    Rule(("num_heads",), _read_heads, _write_heads),
    Key("layers_per_block", "num_layers", 2),
    Key("transformer_layers_per_block", "transformer_layers", 1),
    Rule(("text_dim", "num_classes"), _read_text, _write_text),
    Key("norm_num_groups", "norm_groups", 32),
    Key("norm_eps", default=1e-5),
    Key("use_linear_projection", "linear_projection", False),
    Key("flip_sin_to_cos", "cosines_first", True),
    Key("freq_shift", "divisor", 0, values={0: "half", 1: "half_minus_1"}),
    *(fixed(name, value) for name, value in _FIXED.items()),
    fixed("mid_block_only_cross_attention", None, False),
)


def _rows(model: spec.UNetSpec) -> tuple[Op, ...]:
    down, up = model.encoder, model.decoder
    names = [f"down_blocks.{n}" for n in range(len(down) - 1)] + ["mid_block"]
    inputs = spec.input_widths(down, down[0].width)
    options = {"condition": True, "linear": model.linear_projection}
    rows = level_rows(names, "encoder", down, inputs, **options)
    names = [f"up_blocks.{n}" for n in range(len(up))]
    inputs = spec.input_widths(up, down[-1].width, model.skip_widths)
    rows += level_rows(names, "decoder", up, inputs, **options)
    labels = Rename("class_embedding.weight", "embed.label.table.weight")
    return (
        *rename_modules(
            ("conv_in", "embed.conv"),
            ("time_embedding.linear_1", "embed.time.up"),
            ("time_embedding.linear_2", "embed.time.down"),
            ("conv_norm_out", "head.norm"),
            ("conv_out", "head.conv"),
        ),
        *([] if model.input.num_classes is None else [labels]),
        *rows,
    )


FAMILY = Family(
    name="unet_2d_condition",
    library="diffusers",
    pipeline="StableDiffusionPipeline",
    builder=Builder(unet, _invert),
    keys=KEYS,
    heads={"UNet2DConditionModel": Head(spec.NoiseMapSpec, from_options=True)},
    presets={
        "stable-diffusion-v1-5-unet": {},
        "stable-diffusion-v2-1-unet": {
            "num_heads": (5, 10, 20, 20),
            "text_dim": 1024,
            "image_size": 96,
            "linear_projection": True,
        },
        # 28 x 28 gray pixels, e.g. digits
        "unet-mini": {
            **{"image_size": 28, "channels": 1, "out_channels": 1, "num_classes": 10, "text_dim": None},
            **{"widths": (64, 128, 128), "attention_levels": (False,) * 3, "num_heads": 4},
        },
    },
    tiny={
        **{"image_size": 8, "widths": (8, 16), "attention_levels": (True, False), "num_layers": 1},
        **{"num_heads": 2, "text_dim": 16, "norm_groups": 4},
    },
    rows=_rows,
)
