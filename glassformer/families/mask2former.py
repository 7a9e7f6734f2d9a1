"""Mask2Former: deformable pixel decoder, and a decoder with masked cross-attention before self-attention."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Config,
    Family,
    label_config,
    layer_rows,
    rename_modules,
)
from glassformer.families.mask_classifiers import (
    LOSS_KEYS,
    PIXELS,
    SWINS,
    TINY,
    TRANSFORMER,
    Backbone,
    backbone_rows,
    head_rows,
    query_decoder,
    read_backbone,
    write_backbone,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, Split, expand


def mask2former(
    *,
    backbone: Backbone = spec.ResNetSpec(norm="batch"),  # noqa: B008
    width: int = 256,
    encoder_layers: int = 6,
    encoder_ff: int = 1024,
    num_finer: int = 1,
    d_model: int = 256,
    num_heads: int = 8,
    num_layers: int = 9,
    d_ff: int = 2048,
    activation: spec.Activation = "relu",
    pre_norm: bool = False,
    dropout: float = 0.0,
    num_queries: int = 100,
    mask_dim: int = 256,
    num_labels: int = 150,
    project_memory: bool = False,
) -> spec.MaskClassifierSpec:
    """Create the spec of a Mask2Former; the defaults are those for ADE20K, with a ResNet-50.

    backbone: network that returns feature maps of an image.
    width: channels of the pixel decoder. encoder_layers, encoder_ff: layers of its deformable attention, and
    width of their feed-forward layers. num_finer: number of finer maps that it adds.
    num_layers: layers of the decoder. pre_norm: whether they normalize their input instead of their output.
    num_queries: number of object queries.
    mask_dim: channels of the pixel embeddings.
    project_memory: project the maps that the decoder reads even if they have its width.
    """
    return spec.MaskClassifierSpec(
        input=spec.DeformablePixelDecoderSpec(
            backbone=backbone,
            width=width,
            num_layers=encoder_layers,
            num_heads=num_heads,
            d_ff=encoder_ff,
            num_finer=num_finer,
            dropout=dropout,
        ),
        target=spec.ObjectQueriesSpec(num_queries=num_queries, content="learned"),
        decoder=query_decoder(
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=d_ff,
            activation=activation,
            dropout=dropout,
            attention_dropout=dropout,
            ffn_dropout=dropout,
            wiring="pre" if pre_norm else "post",
            cross_first=True,
        ),
        head=spec.MasksSpec(num_labels=num_labels, mask_dim=mask_dim),
        project_memory=project_memory,
    )


def from_config(config: Config) -> spec.MaskClassifierSpec:
    config.only("feature_strides", [4, 8, 16, 32], default=[4, 8, 16, 32])
    return mask2former(
        backbone=read_backbone(config),
        width=config.get("feature_size", 256),
        encoder_layers=config.get("encoder_layers", 6),
        encoder_ff=config.get("encoder_feedforward_dim", 1024),
        num_finer=config.choose("common_stride", {4: 1, 8: 0}, 4),
        d_model=config.get("hidden_dim", 256),
        num_heads=config.get("num_attention_heads", 8),
        num_layers=config.get("decoder_layers", 10) - 1,  # it counts the prediction before the first layer
        d_ff=config.get("dim_feedforward", 2048),
        activation=config.choose("activation_function", ACTIVATIONS, "relu"),
        pre_norm=config.get("pre_norm", False),
        dropout=config.get("dropout", 0.0),
        num_queries=config.get("num_queries", 100),
        mask_dim=config.get("mask_feature_size", 256),
        num_labels=config.num_labels,
        project_memory=config.get("enforce_input_projection", False),
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.MaskClassifierSpec) and isinstance(model.head, spec.MasksSpec)
    source, block, ffn = model.input, model.decoder.block, model.decoder.block.feed_forward
    assert isinstance(source, spec.DeformablePixelDecoderSpec)
    return {
        "model_type": "mask2former",
        "architectures": ["Mask2FormerForUniversalSegmentation"],
        "backbone_config": write_backbone(source.backbone),
        "feature_size": source.width,
        "mask_feature_size": model.head.mask_dim,
        "hidden_dim": model.decoder.d_model,
        "encoder_feedforward_dim": source.d_ff,
        "activation_function": ACTIVATION_NAMES[ffn.activation],
        "encoder_layers": source.num_layers,
        "decoder_layers": model.decoder.num_layers + 1,
        "num_attention_heads": block.attention.num_heads,
        "dropout": block.dropout,
        "dim_feedforward": ffn.d_ff,
        "pre_norm": block.wiring == "pre",
        "enforce_input_projection": model.project_memory,
        "feature_strides": [4, 8, 16, 32],
        "common_stride": 8 // 2**source.num_finer,
        "num_queries": model.target.num_queries,
        **label_config(model.head),
    }


_LAYER = {
    **{f"self_attn.{p}_proj": f"self_attn.{p}_proj" for p in ("q", "k", "v", "out")},
    "cross_attn.out_proj": "cross_attn.out_proj",
    "self_attn_layer_norm": "norm_self",
    "cross_attn_layer_norm": "norm_cross",
    "fc1": "ffn.up",
    "fc2": "ffn.down",
    "final_layer_norm": "norm_ffn",
}
_ENCODER_LAYER = {
    "self_attn.sampling_offsets": "self_attn.offset_proj",
    "self_attn.attention_weights": "self_attn.weight_proj",
    "self_attn.value_proj": "self_attn.v_proj",
    "self_attn.output_proj": "self_attn.out_proj",
    "self_attn_layer_norm": "norm_self",
    "fc1": "ffn.up",
    "fc2": "ffn.down",
    "final_layer_norm": "norm_ffn",
}


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.MaskClassifierSpec)
    source, width, count = model.input, model.decoder.d_model, model.decoder.num_layers
    assert isinstance(source, spec.DeformablePixelDecoderSpec)
    pixels, layer = f"{PIXELS}decoder.", f"{TRANSFORMER}decoder.layers.{{i}}"
    fused = tuple(
        Split(
            f"{layer}.cross_attn.in_proj_{p}",
            f"decoder.blocks.{{i}}.cross_attn.{{q,k,v}}_proj.{p}",
            sizes=(width, width, width),
        )
        for p in ("weight", "bias")
    )
    # finer maps: published from fine to coarse, merged from coarse to fine
    finer = [
        (f"{pixels}{theirs}_{source.num_finer - n}", f"embed.levels.{n}.{ours}")
        for n in range(source.num_finer)
        for theirs, ours in (("adapter", "lateral"), ("layer", "out"))
    ]
    rows: list[Op] = [
        *backbone_rows(source.backbone),
        *rename_modules(
            *((f"{pixels}input_projections.{n}.0", f"embed.inputs.{n}.conv") for n in range(3)),
            *((f"{pixels}input_projections.{n}.1", f"embed.inputs.{n}.norm") for n in range(3)),
            *((f"{a}.1", f"{b}.norm") for a, b in finer),
            (f"{pixels}mask_projection", "embed.project"),
        ),
        *(Rename(f"{a}.0.weight", f"{b}.conv.weight") for a, b in finer),
        Rename(f"{pixels}level_embed", "embed.level"),
        *layer_rows(
            f"{pixels}encoder.layers.{{i}}", "embed.encoder.blocks.{i}", source.num_layers, _ENCODER_LAYER
        ),
        *layer_rows(layer, "decoder.blocks.{i}", count, _LAYER),
        *expand(fused, i=count),
        *head_rows(f"{TRANSFORMER}decoder.mask_predictor.mask_embedder"),
        Rename(f"{TRANSFORMER}queries_features.weight", "queries.content"),
        Rename(f"{TRANSFORMER}level_embed.weight", "level"),
    ]
    if model.project_memory or source.width != width:
        rows += rename_modules(*((f"{TRANSFORMER}input_projections.{n}", f"project.{n}") for n in range(3)))
    return WeightTable(tuple(rows))


FAMILY = Family(
    name="mask2former",
    model_types=("mask2former",),
    architectures=("Mask2FormerForUniversalSegmentation",),
    build=mask2former,
    presets={
        "mask2former-resnet50-ade": {},
        **{f"mask2former-swin-{size}-ade-semantic": {"backbone": b} for size, b in SWINS.items()},
        "mask2former-swin-small-coco-instance": {"backbone": SWINS["small"], "num_labels": 80},
        "mask2former-swin-small-coco-panoptic": {"backbone": SWINS["small"], "num_labels": 133},
    },
    tiny={**TINY, "encoder_layers": 2, "encoder_ff": 48},
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=LOSS_KEYS,
)
