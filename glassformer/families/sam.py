"""SAM (Segment Anything): an image encoder of windowed and global layers, prompts, a two-way mask decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.keys import Head, Key, Options, Rule, activation, nested
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Concat, Op, Rename, Reshape, Split, Tied, add_prefix, expand


def mask_decoder(
    *,
    d_model: int = 256,
    num_layers: int = 2,
    num_heads: int = 8,
    d_ff: int = 2048,
    activation: spec.Activation = "relu",
    norm_eps: float = 1e-6,
) -> spec.TwoWayStackSpec:
    """Create the spec of the two-way decoder, whose cross-attention has half the width."""
    attention = spec.AttentionSpec(num_heads=num_heads)
    return spec.TwoWayStackSpec(
        d_model=d_model,
        num_layers=num_layers,
        attention=attention,
        cross_attention=replace(attention, head_dim=d_model // 2 // num_heads),
        feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation),
        norm=spec.LayerNormSpec(eps=norm_eps),
        final_norm=spec.LayerNormSpec(),
    )


def sam(
    *,
    image_size: int = 1024,
    patch_size: int = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-6,
    attention_dropout: float = 0.0,
    qkv_bias: bool = True,
    position: bool = True,
    relative_position: bool = True,
    window: int = 14,
    global_layers: Sequence[int] = (2, 5, 8, 11),
    decoder_dim: int = 256,
    decoder_layers: int = 2,
    decoder_heads: int = 8,
    decoder_d_ff: int = 2048,
    decoder_activation: spec.Activation = "relu",
    decoder_norm_eps: float = 1e-6,
    num_masks: int = 3,
    iou_dim: int = 256,
    iou_layers: int = 3,
    mask_channels: int = 16,
    prompt_activation: spec.Activation = "gelu",
    prompt_norm_eps: float = 1e-6,
) -> spec.PromptedSegmenterSpec:
    """Create the spec of a SAM model; the defaults are ViT-B.

    position, relative_position: learned positions of the patches, and a bias computed from the query.
    window: size of the windows of the layers that are not in `global_layers`.
    decoder_dim: width of the neck, the prompts and the decoder.
    """
    grid = (image_size // patch_size, image_size // patch_size)

    def block(window: int | None) -> spec.BlockSpec:
        bias = spec.QueryBias2dSpec(grid=(window, window) if window else grid)
        return spec.BlockSpec(
            attention=spec.AttentionSpec(
                num_heads=num_heads,
                biases=("q", "k", "v", "out") if qkv_bias else ("out",),
                dropout=attention_dropout,
                spatial_window=spec.WindowSpec(size=window) if window else None,
                position_bias=bias if relative_position else None,
            ),
            feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation),
            norm=spec.LayerNormSpec(eps=norm_eps),
            wiring="pre",
        )

    layers = tuple(block(window if window and n not in global_layers else None) for n in range(num_layers))
    period = next(
        (p for p in range(1, num_layers) if all(layers[n] == layers[n % p] for n in range(num_layers))), 0
    )
    pattern = layers[:period] if period else layers or (block(None),)
    return spec.PromptedSegmenterSpec(
        input=spec.ImagePatchesSpec(
            image_size=(image_size, image_size),
            patch_size=(patch_size, patch_size),
            channels=channels,
            prefix=0,
            position="learned" if position else "none",
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=pattern[0],
            pattern=pattern if len(pattern) > 1 else (),
        ),
        neck=spec.NeckSpec(channels=decoder_dim),
        prompt=spec.PromptEncoderSpec(
            mask_channels=mask_channels, activation=prompt_activation, norm_eps=prompt_norm_eps
        ),
        decoder=mask_decoder(
            d_model=decoder_dim,
            num_layers=decoder_layers,
            num_heads=decoder_heads,
            d_ff=decoder_d_ff,
            activation=decoder_activation,
            norm_eps=decoder_norm_eps,
        ),
        head=spec.PromptedMasksSpec(num_masks=num_masks, iou_dim=iou_dim, iou_layers=iou_layers),
    )


# ---- config -----------------------------------------------------------------------------------------------


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `sam` that give a spec."""
    stack, decoder, prompt = model.encoder, model.decoder, model.prompt
    windows = [stack.block_at(n).attention.spatial_window for n in range(stack.num_layers)]
    return {
        **spec_options(model),
        "image_size": model.input.image_size[0],
        "patch_size": model.input.patch_size[0],
        "position": model.input.position == "learned",
        "relative_position": stack.block.attention.position_bias is not None,
        "window": max((window.size for window in windows if window), default=0),
        "global_layers": [n for n, window in enumerate(windows) if window is None],
        "decoder_dim": decoder.d_model,
        "decoder_layers": decoder.num_layers,
        "decoder_heads": decoder.attention.num_heads,
        "decoder_d_ff": decoder.feed_forward.d_ff,
        "decoder_activation": decoder.feed_forward.activation,
        "decoder_norm_eps": decoder.norm.eps,
        "num_masks": model.head.num_masks,
        "iou_dim": model.head.iou_dim,
        "iou_layers": model.head.iou_layers,
        "mask_channels": prompt.mask_channels,
        "prompt_activation": prompt.activation,
        "prompt_norm_eps": prompt.norm_eps,
    }


BUILDER = Builder(sam, _invert)


_VISION_KEYS = (
    Key("image_size", default=1024),
    Key("patch_size", default=16),
    Key("num_channels", "channels", 3),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("num_hidden_layers", "num_layers", 12),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-6),
    Key("attention_dropout", default=0.0),
    Key("qkv_bias", default=True),
    Key("use_abs_pos", "position", True),
    Key("use_rel_pos", "relative_position", True),
    Key("window_size", "window", 14),
    Key("global_attn_indexes", "global_layers", [2, 5, 8, 11]),
    Key("output_channels", "decoder_dim", 256),
    Rule(
        ("d_ff",),
        lambda config, options: {
            "d_ff": config.maybe("mlp_dim", int) or int(options["d_model"] * config.get("mlp_ratio", 4.0))
        },
        lambda options: {"mlp_dim": options["d_ff"], "num_pos_feats": options["decoder_dim"] // 2},
    ),
)
_PROMPT_KEYS = (
    Key("mask_input_channels", "mask_channels", 16),
    activation("hidden_act", "gelu", ours="prompt_activation"),
    Key("layer_norm_eps", "prompt_norm_eps", 1e-6),
    Rule(
        (),
        lambda config, _: {},
        lambda options: {
            "hidden_size": options["decoder_dim"],
            "image_size": options["image_size"],
            "patch_size": options["patch_size"],
        },
    ),
)
_DECODER_KEYS = (
    Key("num_hidden_layers", "decoder_layers", 2),
    Key("num_attention_heads", "decoder_heads", 8),
    Key("mlp_dim", "decoder_d_ff", 2048),
    activation("hidden_act", "relu", ours="decoder_activation"),
    Key("layer_norm_eps", "decoder_norm_eps", 1e-6),
    Key("num_multimask_outputs", "num_masks", 3),
    Key("iou_head_hidden_dim", "iou_dim", 256),
    Key("iou_head_depth", "iou_layers", 3),
    Rule((), lambda config, _: {}, lambda options: {"hidden_size": options["decoder_dim"]}),
)


def _check_parts(config: Config, options: Options) -> dict[str, Any]:
    """Check that the sizes in the configs of the parts agree."""
    width = options["decoder_dim"]
    expected = {
        "vision_config": {"num_pos_feats": (width // 2, 128)},
        "prompt_encoder_config": {
            "hidden_size": (width, 256),
            "image_size": (options["image_size"], 1024),
            "patch_size": (options["patch_size"], 16),
            "num_point_embeddings": (4, 4),
        },
        "mask_decoder_config": {"hidden_size": (width, 256), "attention_downsample_rate": (2, 2)},
    }
    for name, sizes in expected.items():
        part = config.nested(name)
        for key, (needed, default) in sizes.items():
            if part.get(key, default) != needed:
                raise UnsupportedConfigError(part.where, key, part.get(key, default), str(needed))
    return {}


KEYS = (
    nested("vision_config", _VISION_KEYS),
    nested("prompt_encoder_config", _PROMPT_KEYS),
    nested("mask_decoder_config", _DECODER_KEYS),
    Rule((), _check_parts),
)

# ---- weights ----------------------------------------------------------------------------------------------

_VISION = (
    ("layer_norm1", "norm_self"),
    ("attn.proj", "self_attn.out_proj"),
    ("layer_norm2", "norm_ffn"),
    ("mlp.lin1", "ffn.up"),
    ("mlp.lin2", "ffn.down"),
)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def two_way_rows(layers: int, norm: str) -> tuple[Op, ...]:
    """Return the rows of the two-way decoder. norm: published name of its norms."""
    theirs, ours = "mask_decoder.transformer.", "decoder."
    attentions = (
        ("self_attn", "self_attn"),
        ("cross_attn_token_to_image", "cross_attn"),
        ("cross_attn_image_to_token", "image_attn"),
    )
    norms = (("1", "norm_self"), ("2", "norm_cross"), ("3", "norm_ffn"), ("4", "norm_image"))
    layer = rename_modules(
        *((f"{a}.{p}", f"{b}.{p}") for a, b in attentions for p in PROJECTIONS),
        *((f"{norm}{n}", name) for n, name in norms),
        ("mlp.lin1", "ffn.up"),
        ("mlp.lin2", "ffn.down"),
    )
    final = rename_modules(*((f"final_attn_token_to_image.{p}", f"final_attn.{p}") for p in PROJECTIONS))
    return (
        *expand(add_prefix(theirs + "layers.{i}.", ours + "blocks.{i}.", layer), i=layers),
        *add_prefix(theirs, ours, final),
    )


def prompt_rows(points: str) -> tuple[Op, ...]:
    """Return the rows of learned vectors. points: published name of the four label vectors."""
    labels = tuple(f"prompt_encoder.{points}.{n}.weight" for n in range(4))
    return (
        Concat(labels, "prompt.labels", sizes=(1, 1, 1, 1)),
        Rename("prompt_encoder.not_a_point_embed.weight", "prompt.no_point"),
        Rename("prompt_encoder.no_mask_embed.weight", "prompt.no_mask"),
    )


def mlp_names(layers: int) -> list[str]:
    """Return the published names of the layers of a perceptron."""
    return ["proj_in", *(f"layers.{n}" for n in range(layers - 2)), "proj_out"]


def weight_rows(model: Any) -> Sequence[Op]:
    stack, head, count = model.encoder, model.head, model.head.num_masks + 1
    attention, width = stack.block.attention, stack.d_model
    fused = "vision_encoder.layers.{i}.attn.qkv.{p}"
    split = Split(fused, "encoder.blocks.{i}.self_attn.{q,k,v}_proj.{p}", sizes=(width,) * 3)
    bias = tuple(
        Rename(
            f"vision_encoder.layers.{{i}}.attn.rel_pos_{a}",
            f"encoder.blocks.{{i}}.self_attn.position_bias.{b}",
        )
        for a, b in (("h", "rows"), ("w", "columns"))
    )
    layers = add_prefix("vision_encoder.layers.{i}.", "encoder.blocks.{i}.", rename_modules(*_VISION))
    rows, columns = model.input.grid
    position = Reshape(
        "vision_encoder.pos_embed",
        "embed.position",
        their_shape=(1, rows, columns, width),
        our_shape=(1, rows * columns, width),
    )
    convolutions = (("layer_norm1", "norm1"), ("layer_norm2", "norm2"))
    return (
        Tied(
            (
                "shared_image_embedding.positional_embedding",
                "prompt_encoder.shared_embedding.positional_embedding",
            ),
            "prompt.position.frequencies",
        ),
        *rename_modules(("vision_encoder.patch_embed.projection", "embed.patch")),
        *((position,) if model.input.position == "learned" else ()),
        *expand(layers, i=stack.num_layers),
        *expand(
            (split,), i=stack.num_layers, p=("weight", "bias") if "q" in attention.biases else ("weight",)
        ),
        *(expand(bias, i=stack.num_layers) if attention.position_bias is not None else ()),
        *(Rename(f"vision_encoder.neck.{conv}.weight", f"neck.{conv}.weight") for conv in ("conv1", "conv2")),
        *add_prefix("vision_encoder.neck.", "neck.", rename_modules(*convolutions)),
        *prompt_rows("point_embed"),
        *add_prefix(
            "prompt_encoder.mask_embed.",
            "prompt.mask.",
            rename_modules(*((conv, conv) for conv in ("conv1", "conv2", "conv3")), *convolutions),
        ),
        *two_way_rows(model.decoder.num_layers, "layer_norm"),
        *rename_modules(
            ("mask_decoder.transformer.layer_norm_final_attn", "decoder.final_norm"),
            ("mask_decoder.upscale_conv1", "head.upscale1"),
            ("mask_decoder.upscale_conv2", "head.upscale2"),
            ("mask_decoder.upscale_layer_norm", "head.upscale_norm"),
            *(
                (
                    f"mask_decoder.output_hypernetworks_mlps.{m}.{name}",
                    f"head.hypernetworks.{m}.layers.{n}",
                )
                for m in range(count)
                for n, name in enumerate(mlp_names(3))
            ),
            *(
                (f"mask_decoder.iou_prediction_head.{name}", f"head.iou.layers.{n}")
                for n, name in enumerate(mlp_names(head.iou_layers))
            ),
        ),
        Concat("mask_decoder.{iou_token,mask_tokens}.weight", "head.tokens", sizes=(1, count)),
    )


TINY: dict[str, Any] = preset(
    32,
    4,
    2,
    64,
    image_size=32,
    patch_size=4,
    window=3,
    global_layers=(1,),
    decoder_dim=32,
    decoder_heads=4,
    decoder_d_ff=64,
    iou_dim=16,
)

FAMILY = Family(
    name="sam",
    builder=BUILDER,
    keys=KEYS,
    heads={"SamModel": Head(spec.PromptedMasksSpec, from_options=True)},
    presets={
        "sam-vit-base": {},
        "sam-vit-large": preset(1024, 16, 24, 4096, global_layers=(5, 11, 17, 23)),
        "sam-vit-huge": preset(1280, 16, 32, 5120, global_layers=(7, 15, 23, 31)),
    },
    tiny=TINY,
    rows=weight_rows,
)
