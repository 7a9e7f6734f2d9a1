"""MaskFormer: a feature pyramid of pixel embeddings, and DETR's decoder of object queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.families.detr import DECODER_LAYER
from glassformer.families.family import Builder, Family
from glassformer.families.keys import Head, Key, Rule, activation, fixed, nested
from glassformer.families.mask_classifiers import (
    BACKBONE,
    PIXELS,
    SWINS,
    TINY,
    TRANSFORMER,
    Backbone,
    head_rows,
    mask_classifier_options,
    nested_backbone_rows,
    query_decoder,
)
from glassformer.families.rows import layer_ops, rename_modules
from glassformer.weights.ops import Op, Rename, expand


def maskformer(
    *,
    backbone: Backbone = spec.ResNetSpec(norm="batch"),  # noqa: B008
    width: int = 256,
    d_model: int = 256,
    num_heads: int = 8,
    num_layers: int = 6,
    d_ff: int = 2048,
    activation: spec.Activation = "relu",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    num_queries: int = 100,
    mask_dim: int = 256,
    num_labels: int = 150,
    head: spec.MasksSpec | None = None,
) -> spec.MaskClassifierSpec:
    """Create the spec of a MaskFormer; the defaults are those of ResNet-50 for ADE20K.

    backbone: network that returns feature maps of an image.
    width: channels of the feature pyramid.
    num_queries: number of object queries.
    mask_dim: channels of the pixel embeddings.
    """
    return spec.MaskClassifierSpec(
        input=spec.FeaturePyramidSpec(backbone=backbone, width=width),
        target=spec.ObjectQueriesSpec(num_queries=num_queries),
        decoder=query_decoder(
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=d_ff,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
            ffn_dropout=ffn_dropout,
        ),
        head=head or spec.MasksSpec(num_labels=num_labels, mask_dim=mask_dim),
    )


BUILDER = Builder(maskformer, mask_classifier_options)
KEYS = (
    BACKBONE,
    Key("fpn_feature_size", "width", 256),
    nested(
        "decoder_config",
        (
            fixed("model_type", "detr"),
            fixed("auxiliary_loss", False, None),
            Key("d_model", default=256),
            Rule((), lambda config, _: {}, lambda options: {"encoder_attention_heads": options["num_heads"]}),
            Key("decoder_attention_heads", "num_heads", 8),
            Key("decoder_layers", "num_layers", 6),
            Key("decoder_ffn_dim", "d_ff", 2048),
            activation("activation_function", "relu"),
            Key("dropout", default=0.1),
            Key("attention_dropout", default=0.0),
            Key("activation_dropout", "ffn_dropout", 0.0),
            Key("num_queries", default=100),
        ),
        model_type="detr",
    ),
)
_HEAD = Head(spec.MasksSpec, (Key("mask_feature_size", "mask_dim", 256),))


def weight_rows(model: Any) -> Sequence[Op]:
    layer = f"{TRANSFORMER}decoder.layers.{{i}}"
    decoder = layer_ops(DECODER_LAYER, old=layer, new=layer, ours="decoder.blocks.{i}")
    fpn, channels = f"{PIXELS}decoder.fpn.", spec.feature_channels(model.input.backbone)
    pairs = [("stem", "stem")]
    for n in range(len(channels) - 1):
        pairs += [
            (f"layers.{n}.proj", f"levels.{n}.lateral"),
            (f"layers.{n}.block", f"levels.{n}.out"),
        ]
    rows: list[Op] = [
        *nested_backbone_rows(model.input.backbone),
        *(Rename(f"{fpn}{a}.0.weight", f"embed.pyramid.{b}.conv.weight") for a, b in pairs),
        *rename_modules(
            *((f"{fpn}{a}.1", f"embed.pyramid.{b}.norm") for a, b in pairs),
            (f"{PIXELS}decoder.mask_projection", "embed.pyramid.project"),
        ),
        *expand(decoder, i=model.decoder.num_layers),
        *head_rows("mask_embedder"),
    ]
    if channels[-1] != model.decoder.d_model:
        rows += rename_modules((f"{TRANSFORMER}input_projection", "project.0"))
    return tuple(rows)


FAMILY = Family(
    name="maskformer",
    builder=BUILDER,
    keys=KEYS,
    heads={"MaskFormerForInstanceSegmentation": _HEAD},
    presets={
        **{f"maskformer-swin-{size}-ade": {"backbone": backbone} for size, backbone in SWINS.items()},
        "maskformer-resnet50-ade": {},
        "maskformer-resnet101-ade": {"backbone": spec.ResNetSpec(depths=(3, 4, 23, 3), norm="batch")},
    },
    tiny=TINY,
    rows=weight_rows,
)
