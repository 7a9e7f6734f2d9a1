"""Mask2Former: deformable pixel decoder, and a decoder with masked cross-attention before self-attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Builder, Family
from glassformer.families.keys import Head, Key, Rule, activation, fixed
from glassformer.families.mask_classifiers import (
    BACKBONE,
    PIXELS,
    SWINS,
    TINY,
    TRANSFORMER,
    Backbone,
    backbone_rows,
    head_rows,
    mask_classifier_options,
    query_decoder,
)
from glassformer.families.rows import layer_rows, rename_modules
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
    head: spec.MasksSpec | None = None,
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
        head=head or spec.MasksSpec(num_labels=num_labels, mask_dim=mask_dim),
        project_memory=project_memory,
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `mask2former` that give a spec."""
    source = model.input
    return mask_classifier_options(model) | {
        "encoder_layers": source.num_layers,
        "encoder_ff": source.d_ff,
        "num_finer": source.num_finer,
        "pre_norm": model.decoder.block.wiring == "pre",
        "project_memory": model.project_memory,
    }


BUILDER = Builder(mask2former, _invert)


# the published number of layers counts the prediction before the first layer
_NUM_LAYERS = Rule(
    ("num_layers",),
    lambda config, _: {"num_layers": config.get("decoder_layers", 10) - 1},
    lambda options: {"decoder_layers": options["num_layers"] + 1},
)
KEYS = (
    BACKBONE,
    Key("feature_size", "width", 256),
    Key("hidden_dim", "d_model", 256),
    Key("encoder_feedforward_dim", "encoder_ff", 1024),
    activation("activation_function", "relu"),
    Key("encoder_layers", default=6),
    _NUM_LAYERS,
    Key("num_attention_heads", "num_heads", 8),
    Key("dropout", default=0.0),
    Key("dim_feedforward", "d_ff", 2048),
    Key("pre_norm", default=False),
    Key("enforce_input_projection", "project_memory", False),
    fixed("feature_strides", [4, 8, 16, 32]),
    Key("common_stride", "num_finer", 4, values={4: 1, 8: 0}),
    Key("num_queries", default=100),
)
_HEAD = Head(spec.MasksSpec, (Key("mask_feature_size", "mask_dim", 256),))

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


def weight_rows(model: Any) -> Sequence[Op]:
    source, width, count = model.input, model.decoder.d_model, model.decoder.num_layers
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
    return tuple(rows)


FAMILY = Family(
    name="mask2former",
    builder=BUILDER,
    keys=KEYS,
    heads={"Mask2FormerForUniversalSegmentation": _HEAD},
    presets={
        "mask2former-resnet50-ade": {},
        **{f"mask2former-swin-{size}-ade-semantic": {"backbone": b} for size, b in SWINS.items()},
        "mask2former-swin-small-coco-instance": {"backbone": SWINS["small"], "num_labels": 80},
        "mask2former-swin-small-coco-panoptic": {"backbone": SWINS["small"], "num_labels": 133},
    },
    tiny={**TINY, "encoder_layers": 2, "encoder_ff": 48},
    rows=weight_rows,
)
