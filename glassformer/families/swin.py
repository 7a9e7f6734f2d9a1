"""Swin: hierarchical image encoder with shifted-window attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.families.family import Family
from glassformer.families.hierarchical_encoder import (
    HIERARCHICAL_ENCODER,
    KEYS,
    NORM,
    TINY,
    hierarchical_heads,
    table_of,
)
from glassformer.families.keys import Key


def size_options(embed_dim: int, depth: int, first_heads: int, **options: Any) -> dict[str, Any]:
    heads = tuple(first_heads * 2**n for n in range(4))
    return {"embed_dim": embed_dim, "depths": (2, 2, depth, 2), "num_heads": heads, **options}


_BASE_384 = {"image_size": 384, "window_size": 12}

FAMILY = Family(
    name="swin",
    builder=HIERARCHICAL_ENCODER,
    keys=(*KEYS, Key("use_absolute_embeddings", "absolute_positions", False)),
    heads=hierarchical_heads("Swin", NORM),
    presets={
        # for images of 28 x 28 to 32 x 32 pixels, trained from scratch
        "swin-mini-patch2-window4-32": {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 64,
            "depths": (2, 6, 2),
            "num_heads": (2, 4, 8),
            "window_size": 4,
        },
        "swin-tiny-patch4-window7-224": {},
        "swin-small-patch4-window7-224": size_options(96, 18, 3),
        "swin-base-patch4-window7-224": size_options(128, 18, 4),
        "swin-base-patch4-window12-384": size_options(128, 18, 4, **_BASE_384),
        "swin-large-patch4-window7-224": size_options(192, 18, 6),
        "swin-large-patch4-window12-384": size_options(192, 18, 6, **_BASE_384),
    },
    tiny=TINY,
    weight_table=partial(table_of, base="swin."),
)
