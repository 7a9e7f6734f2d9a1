"""EoMT: a DINOv2-like image encoder whose last layers also process object queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.families.dinov2 import ffn_width, mlp_ratio_of
from glassformer.families.family import Builder, Family, spec_options
from glassformer.families.image_encoder import Size, as_pair, square_sizes
from glassformer.families.keys import Head, Key, activation
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.ops import Computed, Concat, Op, Rename, Reshape, expand


def eomt(
    *,
    image_size: Size = 640,
    patch_size: Size = 16,
    channels: int = 3,
    registers: int = 4,
    d_model: int = 1024,
    num_heads: int = 16,
    num_layers: int = 24,
    mlp_ratio: int = 4,
    swiglu: bool = False,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-6,
    layer_scale: float = 1.0,
    drop_path: float = 0.0,
    embed_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    num_queries: int = 200,
    query_layers: int = 4,
    num_upscale: int = 2,
    num_labels: int = 133,
    head: spec.MasksSpec | None = None,
) -> spec.EncoderMaskClassifierSpec:
    """Create the spec of an EoMT; the defaults are EoMT-Large for COCO panoptic segmentation.

    registers: number of trained tokens besides the class token.
    mlp_ratio: width of the feed-forward layers as a multiple of d_model.
    swiglu: gated feed-forward layers (SwiGLU), instead of `activation`.
    layer_scale: initial value of the factors on the output of each sublayer.
    drop_path: stochastic depth rate of every layer.
    num_queries: number of object queries. query_layers: number of last layers that they go through.
    num_upscale: how often the resolution of the patches is doubled for the masks.
    """
    norm = spec.LayerNormSpec(eps=norm_eps)
    ffn: spec.FeedForwardSpec | spec.GatedFeedForwardSpec
    ffn = spec.FeedForwardSpec(d_ff=d_model * mlp_ratio, activation=activation)
    if swiglu:
        ffn = spec.GatedFeedForwardSpec(
            d_ff=ffn_width(d_model, mlp_ratio, swiglu), biases=("up", "gate", "down")
        )
    return spec.EncoderMaskClassifierSpec(
        input=spec.ImagePatchesSpec(
            image_size=as_pair(image_size),
            patch_size=as_pair(patch_size),
            channels=channels,
            prefix=0,
            registers=1 + registers,  # the class token has no position either
            interpolate=True,
            dropout=embed_dropout,
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.BlockSpec(
                attention=spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout),
                feed_forward=ffn,
                norm=norm,
                wiring="pre",
                layer_scale=layer_scale,
            ),
            final_norm=norm,
            drop_path=(drop_path, drop_path),
        ),
        head=head or spec.MasksSpec(num_labels=num_labels, mask_dim=d_model, activation=activation),
        num_queries=num_queries,
        query_layers=query_layers,
        num_upscale=num_upscale,
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `eomt` that give a spec."""
    options = spec_options(model)
    return options | {
        "registers": model.input.registers - 1,
        "mlp_ratio": mlp_ratio_of(options["d_model"], options["d_ff"], options["gated"]),
        "swiglu": options["gated"],
        "activation": model.head.activation,
        "num_queries": model.num_queries,
        "query_layers": model.query_layers,
        "num_upscale": model.num_upscale,
    }


BUILDER = Builder(eomt, _invert)


KEYS = (
    square_sizes(640),
    Key("num_channels", "channels", 3),
    Key("hidden_size", "d_model", 1024),
    Key("num_attention_heads", "num_heads", 16),
    Key("num_hidden_layers", "num_layers", 24),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-6),
    Key("hidden_dropout_prob", "embed_dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("num_register_tokens", "registers", 4),
    Key("mlp_ratio", default=4),
    Key("use_swiglu_ffn", "swiglu", False),
    Key("layerscale_value", "layer_scale", 1.0),
    Key("drop_path_rate", "drop_path", 0.0),
    Key("num_queries", default=200),
    Key("num_blocks", "query_layers", 4),
    Key("num_upscale_blocks", "num_upscale", 2),
)

_LAYER = {
    **{f"attention.{p}_proj": f"self_attn.{p}_proj" for p in ("q", "k", "v", "out")},
    "norm1": "norm_self",
    "norm2": "norm_ffn",
}
_MLP = {"mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"}
_SWIGLU = {f"mlp.{p}_proj": f"ffn.{p}" for p in ("gate", "up", "down")}


def weight_rows(model: spec.EncoderMaskClassifierSpec) -> Sequence[Op]:
    width, count, patches = model.encoder.d_model, model.encoder.num_layers, model.input.num_patches
    gated = model.encoder.block.feed_forward.gated
    layer, ours = "layers.{i}", "encoder.blocks.{i}"
    scales = tuple(
        Rename(f"{layer}.layer_scale{n}.lambda1", f"{ours}.scale_{part}.weight")
        for n, part in ((1, "self_attn"), (2, "ffn"))
    )
    upscale = {"conv1": "up", "layernorm2d": "norm"}
    rows: list[Op] = [
        *layer_rows(layer, ours, count, _LAYER | (_SWIGLU if gated else _MLP)),
        *expand(scales, i=count),
        Reshape(
            "embeddings.position_embeddings.weight",
            "embed.position",
            their_shape=(patches, width),
            our_shape=(1, patches, width),
        ),
        Concat(
            ("embeddings.cls_token", "embeddings.register_tokens"),
            "embed.registers",
            sizes=(1, model.input.registers - 1),
            dim=1,
        ),
        *rename_modules(
            ("embeddings.patch_embeddings.projection", "embed.patch"),
            ("layernorm", "encoder.final_norm"),
            ("class_predictor", "head.out"),
            *((f"mask_head.fc{n + 1}", f"head.mask.layers.{n}") for n in range(3)),
        ),
        Rename("query.weight", "queries"),
        *layer_rows("upscale_block.block.{i}", "upscale.{i}", model.num_upscale, upscale),
        *expand(
            (Rename("upscale_block.block.{i}.conv2.weight", "upscale.{i}.conv.weight"),), i=model.num_upscale
        ),
        Rename("attn_mask_probs", "mask_probs"),
        Computed("criterion.empty_weight", "head.class_weights", persistent=True),
    ]
    return tuple(rows)


# "eomt-small" has the sizes of DINOv2-small, "eomt-tiny" is for small images
_QUERIES = {"registers": 0, "num_queries": 100, "query_layers": 3}


def _sizes(d_model: int, num_heads: int) -> dict[str, Any]:
    return {"d_model": d_model, "num_heads": num_heads, "num_layers": 12}


FAMILY = Family(
    name="eomt",
    builder=BUILDER,
    keys=KEYS,
    heads={
        "EomtForUniversalSegmentation": Head(
            spec.MasksSpec, (Key("hidden_size", "mask_dim", 1024), activation("hidden_act", "gelu"))
        )
    },
    presets={
        "eomt-tiny": {
            **_QUERIES,
            **_sizes(192, 3),
            "image_size": 128,
            "patch_size": 8,
            "num_upscale": 1,
        },
        "eomt-small": {**_QUERIES, **_sizes(384, 6), "image_size": 224, "patch_size": 14},
        "coco_panoptic_eomt_large_640": {},
    },
    tiny={
        "image_size": 32,
        "patch_size": 8,
        "registers": 2,
        "d_model": 32,
        "num_heads": 4,
        "num_layers": 3,
        "num_queries": 6,
        "query_layers": 2,
        "num_labels": 5,
    },
    rows=weight_rows,
)
