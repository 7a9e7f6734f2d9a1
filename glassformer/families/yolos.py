"""YOLOS: a pre-norm encoder of image patches, whose last tokens are object queries with a class and a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Family, preset
from glassformer.families.image_encoder import (
    IMAGE_ENCODER,
    KEYS,
    image_rows,
    sizes,
    write_sizes,
)
from glassformer.families.keys import Head, Key
from glassformer.families.rows import box_head_rows
from glassformer.weights.ops import Op, Rename, Tied

_SIZES = replace(
    sizes((512, 864)), write=lambda options: write_sizes(options) | {"image_size": [*options["image_size"]]}
)
_QUERIES = Key("num_detection_tokens", "num_queries", 100)


def weight_rows(model: Any) -> Sequence[Op]:
    middle = "{base}encoder.{mid_position_embeddings,interpolation.mid_position_embeddings}"
    return (
        *image_rows(model),
        Rename("{base}embeddings.detection_tokens", "embed.suffix"),
        *((Tied(middle, "embed.layer_positions"),) if model.input.layer_positions else ()),
        *box_head_rows(model.head),
    )


FAMILY = Family(
    name="yolos",
    builder=IMAGE_ENCODER,
    keys=(_SIZES, *KEYS, _QUERIES, Key("use_mid_position_embeddings", "mid_positions", True)),
    # YOLOS-Base for COCO
    defaults={
        "image_size": (512, 864),
        "interpolate": True,
        "num_queries": 100,
        "mid_positions": True,
        "num_labels": 91,
    },
    heads={"YolosForObjectDetection": Head(spec.BoxesSpec, (_QUERIES,), {"class_layers": 3})},
    presets={
        "yolos-tiny": preset(192, 3, 12, 768, image_size=(800, 1333), mid_positions=False),
        "yolos-small": preset(384, 6, 12, 1536),
        "yolos-base": {"image_size": (800, 1344)},
    },
    tiny=preset(32, 4, 2, 64, image_size=(32, 48), patch_size=8, num_queries=6, num_labels=4),
    rows=weight_rows,
    prefixes=("vit.",),
)
