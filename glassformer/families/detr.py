"""DETR: a ResNet, and a post-norm encoder-decoder whose object queries each find a class and a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import Builder, Family, preset, spec_options
from glassformer.families.keys import Head, Key, Options, Rule, activation, fixed
from glassformer.families.resnet_backbone import (
    read_resnet,
    read_timm,
    resnet_rows,
    timm_resnet,
    write_resnet,
    write_timm,
)
from glassformer.families.rows import box_head_rows, layer_ops, rename_modules
from glassformer.weights.ops import Op, Rename, Tied, expand

Position = Literal["sine", "learned"]
_POSITIONS: dict[Position, spec.Position2dSpec] = {
    "sine": spec.Sinusoidal2dSpec(),
    "learned": spec.Learned2dSpec(),
}


def detr(
    *,
    backbone: str | spec.ResNetSpec = "resnet50",
    dilation: bool = False,
    channels: int = 3,
    d_model: int = 256,
    num_heads: int = 8,
    d_ff: int = 2048,
    num_layers: int = 6,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    decoder_layers: int | None = None,
    activation: spec.Activation = "relu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    position: Position = "sine",
    num_queries: int = 100,
    num_labels: int = 91,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderDecoderSpec:
    """Create the spec of a DETR detector; the defaults are DETR-R50 for COCO.

    backbone: resnet18, resnet34, resnet50, resnet101 or resnet152 with frozen batch norm, or a spec.
    dilation: with a backbone by name, the last stage has dilation instead of a stride (DC5).
    decoder_heads, decoder_d_ff, decoder_layers: by default as in the encoder.
    position: position embeddings of the cells of the feature map.
    num_queries: number of object queries, the most objects that are found in an image.
    """
    if isinstance(backbone, str):
        backbone = timm_resnet(backbone, channels=channels, output_stride=16 if dilation else 32)

    def stack(layers: int, heads: int, inner: int, *, decoder: bool) -> spec.StackSpec:
        attention = spec.AttentionSpec(num_heads=heads, dropout=attention_dropout)
        block = spec.BlockSpec(
            attention=attention,
            cross_attention=attention if decoder else None,
            feed_forward=spec.FeedForwardSpec(d_ff=inner, activation=activation, dropout=ffn_dropout),
            dropout=dropout,
        )
        final = spec.LayerNormSpec() if decoder else None
        return spec.StackSpec(d_model=d_model, num_layers=layers, block=block, final_norm=final)

    return spec.EncoderDecoderSpec(
        source=spec.FeatureMapSpec(backbone=backbone, position=_POSITIONS[position]),
        encoder=stack(num_layers, num_heads, d_ff, decoder=False),
        target=spec.ObjectQueriesSpec(num_queries=num_queries),
        decoder=stack(
            decoder_layers or num_layers, decoder_heads or num_heads, decoder_d_ff or d_ff, decoder=True
        ),
        head=head or spec.BoxesSpec(num_labels=num_labels),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `detr` that give a spec."""
    return spec_options(model) | {
        "backbone": model.source.backbone,
        "position": next(name for name, kind in _POSITIONS.items() if kind == model.source.position),
        "num_queries": model.target.num_queries,
    }


BUILDER = Builder(detr, _invert)


def _read_backbone(config: Config) -> spec.ResNetSpec:
    """Read the backbone: a ResNet of transformers, or of timm by its name, in two spellings."""
    nested, dilated = config.nested("backbone_config"), config.get("dilation", False)
    values = nested.values
    stages: list[str] = nested.get("out_features", [])
    last = f"stage{len(nested.get('depths', [0] * 4))}"
    if stages and stages[-1] != last:
        raise UnsupportedConfigError(nested.where, "out_features", stages, f"those that end with {last!r}")
    if values and values.get("model_type") != "timm_backbone":
        return read_resnet(nested)
    if any(".embedder.embedder." in name for name in config.names):
        supported = "the backbone of the weights, model_type 'resnet'"
        raise UnsupportedConfigError(config.where, "backbone_config", values, supported)
    return read_timm(nested if values else config, output_stride=16 if dilated else 32)


def _write_backbone(options: Options) -> dict[str, Any]:
    backbone = options["backbone"]
    return {
        "backbone_config": write_timm(backbone) if backbone.dilations else write_resnet(backbone),
        "num_channels": backbone.channels,
        "dilation": bool(backbone.dilations),
    }


KEYS = (
    Key("d_model", default=256, aliases=("hidden_size",)),
    Key("encoder_layers", "num_layers", 6, aliases=("num_hidden_layers",)),
    Key("encoder_attention_heads", "num_heads", 8, aliases=("num_attention_heads",)),
    Key("encoder_ffn_dim", "d_ff", 2048),
    activation("activation_function", "relu"),
    Key("dropout", default=0.1),
    Key("attention_dropout", default=0.0),
    Key("activation_dropout", "ffn_dropout", 0.0),
    Rule(("backbone",), lambda config, _: {"backbone": _read_backbone(config)}, _write_backbone),
    Key("decoder_attention_heads", "decoder_heads", 8),
    Key("decoder_ffn_dim", "decoder_d_ff", 2048),
    Key("decoder_layers", default=6),
    Key("position_embedding_type", "position", "sine", values={name: name for name in _POSITIONS}),
    Key("num_queries", default=100),
    fixed("auxiliary_loss", False),  # it changes what the decoder computes
)


# published module names of a layer, in two spellings, and Glassformer's
ENCODER_LAYER = (
    *((f"self_attn.{p}_proj", f"self_attn.{p}_proj", f"self_attn.{p}_proj") for p in "qkv"),
    ("self_attn.out_proj", "self_attn.o_proj", "self_attn.out_proj"),
    ("self_attn_layer_norm", "self_attn_layer_norm", "norm_self"),
    ("fc1", "mlp.fc1", "ffn.up"),
    ("fc2", "mlp.fc2", "ffn.down"),
    ("final_layer_norm", "final_layer_norm", "norm_ffn"),
)
DECODER_LAYER = (
    *ENCODER_LAYER,
    *((f"encoder_attn.{p}_proj", f"encoder_attn.{p}_proj", f"cross_attn.{p}_proj") for p in "qkv"),
    ("encoder_attn.out_proj", "encoder_attn.o_proj", "cross_attn.out_proj"),
    ("encoder_attn_layer_norm", "encoder_attn_layer_norm", "norm_cross"),
)


def weight_rows(model: Any) -> Sequence[Op]:
    backbone = model.source.backbone
    rows: list[Op] = []
    for name, stack, modules in (
        ("encoder", model.encoder, ENCODER_LAYER),
        ("decoder", model.decoder, DECODER_LAYER),
    ):
        layer = f"{{base}}{name}.layers.{{i}}"
        ops = layer_ops(modules, old=layer, new=layer, ours=f"{name}.blocks.{{i}}")
        rows += expand(ops, i=stack.num_layers)
    rows += rename_modules(
        ("{base}input_projection", "src_embed.project"), ("{base}decoder.layernorm", "decoder.final_norm")
    )
    rows.append(Rename("{base}query_position_embeddings.weight", "tgt_embed.position"))
    rows += resnet_rows(
        ("{base}backbone.conv_encoder.model.", "{base}backbone.model."),
        "src_embed.backbone.",
        backbone,
        layout="timm" if backbone.dilations else "transformers",
    )
    if isinstance(model.source.position, spec.Learned2dSpec):
        for axis in ("row", "column"):
            name = f"position_embedding.{axis}_embeddings.weight"
            rows.append(Tied(f"{{base}}{{,backbone.}}{name}", f"src_embed.position.{axis}s"))
    if isinstance(model.head, spec.BoxesSpec):
        rows += box_head_rows(model.head)
    return tuple(rows)


_SMALL = spec.ResNetSpec(
    widths=(64, 128, 256), depths=(2, 2, 2), layer="basic", strides=(1, 2, 2), norm="batch"
)
_TINY = replace(_SMALL, stem_width=8, widths=(8, 16), depths=(1, 1), strides=(1, 2), norm="frozen_batch")

FAMILY = Family(
    name="detr",
    builder=BUILDER,
    keys=KEYS,
    heads={"DetrForObjectDetection": Head(spec.BoxesSpec), "DetrModel": Head(spec.FeaturesSpec)},
    presets={
        "detr-resnet-50": {},
        "detr-resnet-50-dc5": {"dilation": True},
        "detr-resnet-101": {"backbone": "resnet101"},
        # to be trained from scratch on small images: stride 16, trained batch norm
        "detr-tiny": {
            "backbone": _SMALL,
            "d_ff": 1024,
            "num_layers": 3,
            "dropout": 0.0,
            "num_queries": 25,
        },
    },
    tiny=preset(32, 4, 2, 64, backbone=_TINY, num_queries=6, num_labels=4),
    rows=weight_rows,
    prefixes=("model.",),
)
