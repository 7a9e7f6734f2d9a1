"""YOLOS: a pre-norm encoder of image patches, whose last tokens are object queries with a class and a box."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.family import (
    DETECTION_LOSS_KEYS,
    Config,
    Family,
    box_head_rows,
    preset,
    read_options,
)
from glassformer.families.image_encoder import KEYS, Size, image_encoder, read_size, table_of, write
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Rename, Tied

ARCHITECTURES: dict[type, str] = {spec.BoxesSpec: "YolosForObjectDetection"}


def yolos(
    *,
    image_size: Size = (512, 864),
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-12,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    qkv_bias: bool = True,
    num_queries: int = 100,
    mid_positions: bool = True,
    num_labels: int = 91,
) -> spec.EncoderOnlySpec:
    """Create the spec of a YOLOS detector; the defaults are YOLOS-Base for COCO.

    num_queries: number of detection tokens after the patches.
    mid_positions: whether trained positions are added to the output of every layer but the last.
    """
    model = image_encoder(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        activation=activation,
        norm_eps=norm_eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        qkv_bias=qkv_bias,
        head=spec.BoxesSpec(num_labels=num_labels, class_layers=3, num_queries=num_queries),
    )
    assert isinstance(model.input, spec.ImagePatchesSpec)
    tables = num_layers - 1 if mid_positions else 0
    tokens = replace(model.input, suffix=num_queries, interpolate=True, layer_positions=tables)
    return replace(model, input=tokens)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    return yolos(
        **read_options(config, KEYS),
        image_size=read_size(config, "image_size", (512, 864)),
        patch_size=read_size(config, "patch_size", 16),
        num_queries=config.get("num_detection_tokens", 100),
        mid_positions=config.get("use_mid_position_embeddings", True),
        num_labels=config.num_labels,
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.ImagePatchesSpec)
    return {
        **write(model, model_type="yolos", architectures=ARCHITECTURES, prefix=1),
        "image_size": list(model.input.image_size),
        "num_detection_tokens": model.input.suffix,
        "use_mid_position_embeddings": model.input.layer_positions > 0 or model.encoder.num_layers == 1,
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.ImagePatchesSpec)
    assert isinstance(model.head, spec.BoxesSpec)
    shared = table_of(model, names, base="vit.")
    middle = "{base}encoder.{mid_position_embeddings,interpolation.mid_position_embeddings}"
    rows = (
        Rename("{base}embeddings.detection_tokens", "embed.suffix"),
        *((Tied(middle, "embed.layer_positions"),) if model.input.layer_positions else ()),
        *box_head_rows(model.head),
    )
    return WeightTable((*shared.ops, *rows), base=shared.base)


FAMILY = Family(
    name="yolos",
    model_types=("yolos",),
    architectures=tuple(ARCHITECTURES.values()),
    build=yolos,
    presets={
        "yolos-tiny": preset(192, 3, 12, 768, image_size=(800, 1333), mid_positions=False),
        "yolos-small": preset(384, 6, 12, 1536),
        "yolos-base": {"image_size": (800, 1344)},
    },
    tiny={
        "image_size": (32, 48),
        "patch_size": 8,
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_layers": 2,
        "num_queries": 6,
        "num_labels": 4,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=DETECTION_LOSS_KEYS | {"auxiliary_loss"},
)
