"""Shared by MaskFormer and Mask2Former: backbones, object queries and a DETR-like decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.core.vision.attention import offset_index
from glassformer.families import hierarchical_encoder
from glassformer.families.config import Config
from glassformer.families.family import preset, spec_options
from glassformer.families.keys import Rule
from glassformer.families.resnet_backbone import read_resnet, resnet_rows, write_resnet
from glassformer.families.rows import rename_modules
from glassformer.families.swin import FAMILY as SWIN
from glassformer.families.swin import size_options
from glassformer.weights.ops import Computed, Constant, Op, Rename, add_prefix, expand

PIXELS = "model.pixel_level_module."
TRANSFORMER = "model.transformer_module."

Backbone = spec.ResNetSpec | spec.EncoderOnlySpec
TINY: dict[str, Any] = preset(
    32,
    4,
    3,
    64,
    backbone=spec.ResNetSpec(
        stem_width=16, widths=(16, 32, 48, 64), depths=(1, 1, 1, 1), layer="basic", norm="batch"
    ),
    width=32,
    num_queries=8,
    mask_dim=16,
    num_labels=5,
)


def swin_backbone(embed_dim: int, depth: int, num_heads: int, **options: Any) -> spec.EncoderOnlySpec:
    """Create a Swin of four stages. depth, num_heads: layers of the third stage, heads of the first."""
    head = spec.BackboneSpec(layers=(1, 2, 3, 4), norm=hierarchical_encoder.NORM)
    return SWIN.build(**size_options(embed_dim, depth, num_heads, drop_path=0.3, head=head, **options))


_LARGER = {"image_size": 384, "window_size": 12}
SWINS = {
    "tiny": swin_backbone(96, 6, 3),
    "small": swin_backbone(96, 18, 3),
    "base": swin_backbone(128, 18, 4, **_LARGER),
    "large": swin_backbone(192, 18, 6, **_LARGER),
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


def read_backbone(config: Config) -> Backbone:
    """Read the backbone of a published config; all its stages give feature maps."""
    backbone = config.nested("backbone_config")
    kind = backbone.only("model_type", "resnet", "swin", "maskformer-swin")
    stages = [f"stage{n + 1}" for n in range(len(backbone.get("depths", [0] * 4)))]
    if (config.values.get("model_type"), kind) != ("maskformer", "swin"):  # which reads all stages anyway
        backbone.only("out_features", stages, None)
    if kind == "resnet":
        return replace(read_resnet(backbone), norm="batch")
    backbone = config.nested("backbone_config", architectures=["SwinBackbone"], out_features=stages)
    backbone.only("use_absolute_embeddings", False, None, default=False)
    swin = SWIN.from_config(backbone)
    assert isinstance(swin, spec.EncoderOnlySpec)
    return swin


def write_backbone(backbone: Backbone) -> dict[str, Any]:
    """Return the published config of a backbone; the inverse of `read_backbone`."""
    if isinstance(backbone, spec.EncoderOnlySpec):
        return SWIN.to_config(backbone)
    config = write_resnet(backbone)
    del config["frozen_batch_norm"]
    return config | {"out_features": [f"stage{n + 1}" for n in range(len(backbone.widths))]}


BACKBONE = Rule(
    ("backbone",),
    lambda config, _: {"backbone": read_backbone(config)},
    lambda options: {"backbone_config": write_backbone(options["backbone"])},
)


def mask_classifier_options(model: spec.MaskClassifierSpec) -> dict[str, Any]:
    """Return the options of a spec that both families share."""
    return spec_options(model) | {
        "backbone": model.input.backbone,
        "width": model.input.width,
        "num_queries": model.target.num_queries,
    }


def backbone_rows(backbone: Backbone) -> tuple[Op, ...]:
    """Return the weight operations of a backbone."""
    published, ours = f"{PIXELS}encoder.", "embed.backbone."
    if isinstance(backbone, spec.ResNetSpec):
        return resnet_rows((published,), ours, backbone, save_counts=True)
    return add_prefix(published, ours, hierarchical_encoder.table_of(backbone, (), base="swin.").rows(""))


def nested_backbone_rows(backbone: Backbone) -> tuple[Op, ...]:
    """Return the weight operations of a backbone; those of Swin are published one module deeper."""
    if isinstance(backbone, spec.ResNetSpec):
        return backbone_rows(backbone)
    assert isinstance(backbone.encoder, spec.StagesSpec)
    norms = "hidden_states_norms."
    rows = hierarchical_encoder.table_of(backbone, (), base="model.").rows("model.")
    ops = [op for op in rows if not op.theirs[0].startswith(norms)]
    ops += rename_modules(*((f"{norms}{n}", f"head.norms.{n}") for n in range(len(backbone.encoder.stages))))
    for n, stage in enumerate(backbone.encoder.stages):
        window = stage.block.attention.spatial_window
        assert isinstance(window, spec.WindowSpec)
        index = Constant(
            f"model.encoder.layers.{n}.blocks.{{i}}.attention.self.relative_position_index",
            value=offset_index((window.size, window.size)),
        )
        ops += expand((index,), i=stage.num_layers)
    return add_prefix(f"{PIXELS}encoder.", "embed.backbone.", ops)


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
