"""MaskFormer: a feature pyramid of pixel embeddings, and DETR's decoder of object queries."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.detr import DECODER_LAYER
from glassformer.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Config,
    Family,
    label_config,
    rename_modules,
)
from glassformer.families.image_encoder import layer_ops
from glassformer.families.mask_classifiers import (
    LOSS_KEYS,
    PIXELS,
    SWINS,
    TINY,
    TRANSFORMER,
    Backbone,
    head_rows,
    nested_backbone_rows,
    query_decoder,
    read_backbone,
    write_backbone,
)
from glassformer.weights.convert import WeightTable
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
        head=spec.MasksSpec(num_labels=num_labels, mask_dim=mask_dim),
    )


def from_config(config: Config) -> spec.MaskClassifierSpec:
    decoder = config.nested("decoder_config")
    decoder.only("model_type", "detr", default="detr")
    decoder.only("auxiliary_loss", False, None, default=False)
    return maskformer(
        backbone=read_backbone(config),
        width=config.get("fpn_feature_size", 256),
        mask_dim=config.get("mask_feature_size", 256),
        num_labels=config.num_labels,
        d_model=decoder.get("d_model", 256),
        num_heads=decoder.get("decoder_attention_heads", 8),
        num_layers=decoder.get("decoder_layers", 6),
        d_ff=decoder.get("decoder_ffn_dim", 2048),
        activation=decoder.choose("activation_function", ACTIVATIONS, "relu"),
        dropout=decoder.get("dropout", 0.1),
        attention_dropout=decoder.get("attention_dropout", 0.0),
        ffn_dropout=decoder.get("activation_dropout", 0.0),
        num_queries=decoder.get("num_queries", 100),
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.MaskClassifierSpec) and isinstance(model.input, spec.FeaturePyramidSpec)
    assert isinstance(model.head, spec.MasksSpec)
    block, ffn = model.decoder.block, model.decoder.block.feed_forward
    return {
        "model_type": "maskformer",
        "architectures": ["MaskFormerForInstanceSegmentation"],
        "backbone_config": write_backbone(model.input.backbone),
        "fpn_feature_size": model.input.width,
        "mask_feature_size": model.head.mask_dim,
        "decoder_config": {
            "model_type": "detr",
            "d_model": model.decoder.d_model,
            "encoder_attention_heads": block.attention.num_heads,
            "decoder_attention_heads": block.attention.num_heads,
            "decoder_layers": model.decoder.num_layers,
            "decoder_ffn_dim": ffn.d_ff,
            "activation_function": ACTIVATION_NAMES[ffn.activation],
            "dropout": block.dropout,
            "attention_dropout": block.attention.dropout,
            "activation_dropout": ffn.dropout,
            "num_queries": model.target.num_queries,
        },
        **label_config(model.head),
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.MaskClassifierSpec) and isinstance(model.input, spec.FeaturePyramidSpec)
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
    return WeightTable(tuple(rows))


FAMILY = Family(
    name="maskformer",
    model_types=("maskformer",),
    architectures=("MaskFormerForInstanceSegmentation",),
    build=maskformer,
    presets={
        **{f"maskformer-swin-{size}-ade": {"backbone": backbone} for size, backbone in SWINS.items()},
        "maskformer-resnet50-ade": {},
        "maskformer-resnet101-ade": {"backbone": spec.ResNetSpec(depths=(3, 4, 23, 3), norm="batch")},
    },
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=LOSS_KEYS | {"num_attention_heads", "num_hidden_layers"},
)
