"""Shared by MaskFormer and Mask2Former: backbones, object queries and a DETR-like decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, UnsupportedConfigError, named_label_config, rename_modules
from glassformer.families.resnet_backbone import read_resnet, resnet_rows, write_resnet
from glassformer.weights.ops import Computed, Op, Rename

PIXELS = "model.pixel_level_module."
TRANSFORMER = "model.transformer_module."
# weights of the loss, and how its points are sampled
LOSS_KEYS = frozenset(
    """no_object_weight class_weight mask_weight dice_weight cross_entropy_weight train_num_points
    oversample_ratio importance_sample_ratio use_auxiliary_loss output_auxiliary_logits ignore_value init_std
    init_xavier_std""".split()
)

TINY: dict[str, Any] = {
    "backbone": spec.ResNetSpec(
        stem_width=16, widths=(16, 32, 48, 64), depths=(1, 1, 1, 1), layer="basic", norm="batch"
    ),
    "width": 32,
    "d_model": 32,
    "num_heads": 4,
    "num_layers": 3,
    "d_ff": 64,
    "num_queries": 8,
    "mask_dim": 16,
    "num_labels": 5,
}


def query_decoder(
    *,
    d_model: int,
    num_heads: int,
    num_layers: int,
    d_ff: int,
    activation: spec.Activation,
    dropout: float,
    attention_dropout: float,
    ffn_dropout: float,
    wiring: spec.Wiring = "post",
    cross_first: bool = False,
) -> spec.StackSpec:
    """Create the decoder of the object queries."""
    attention = spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout)
    block = spec.BlockSpec(
        attention=attention,
        cross_attention=attention,
        feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation, dropout=ffn_dropout),
        wiring=wiring,
        dropout=dropout,
        order="cross_first" if cross_first else "self_first",
    )
    return spec.StackSpec(
        d_model=d_model, num_layers=num_layers, block=block, final_norm=spec.LayerNormSpec()
    )


def read_backbone(config: Config) -> spec.ResNetSpec:
    """Read the backbone of a published config."""
    values = config.need("backbone_config", dict)
    backbone = Config(values, f"{config.where}: backbone_config")
    match values.get("model_type"):
        case "resnet":
            return replace(read_resnet(backbone), norm="batch")
    raise UnsupportedConfigError(backbone.where, "model_type", values.get("model_type"), "resnet")


def backbone_channels(backbone: spec.ResNetSpec) -> tuple[int, ...]:
    """Return the channels of the feature maps of a backbone, fine to coarse."""
    return backbone.widths


def write_backbone(backbone: spec.ResNetSpec) -> dict[str, Any]:
    """Return the published config of a backbone; the inverse of `read_backbone`."""
    config = write_resnet(backbone)
    del config["frozen_batch_norm"]
    return config | {"out_features": [f"stage{n + 1}" for n in range(len(backbone.widths))]}


def backbone_rows(backbone: spec.ResNetSpec) -> tuple[Op, ...]:
    """Return the weight operations of a backbone."""
    return resnet_rows((f"{PIXELS}encoder.",), "embed.backbone.", backbone, save_counts=True)


def head_rows(mask_embedder: str) -> tuple[Op, ...]:
    """Return the weight operations of the head. mask_embedder: published name of its perceptron."""
    return (
        *rename_modules(
            ("class_predictor", "head.out"),
            *((f"{mask_embedder}.{n}.0", f"head.mask.layers.{n}") for n in range(3)),
            (f"{TRANSFORMER}decoder.layernorm", "decoder.final_norm"),
        ),
        Computed("criterion.empty_weight", "head.class_weights", persistent=True),
        Rename(f"{TRANSFORMER}queries_embedder.weight", "queries.position"),
    )


def mask_labels(model: spec.MaskClassifierSpec) -> dict[str, Any]:
    """Return config keys with numbered labels."""
    assert isinstance(model.head, spec.MasksSpec)
    return named_label_config([f"LABEL_{n}" for n in range(model.head.num_labels)])
