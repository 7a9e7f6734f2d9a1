"""Swin v2: Swin with cosine attention, a bias network over log-spaced offsets and norms after sublayers."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.hierarchical_encoder import (
    HIERARCHICAL_ENCODER,
    KEYS,
    TINY,
    hierarchical_heads,
    numbers,
    table_of,
)
from glassformer.families.keys import Options, Rule, fixed
from glassformer.families.swin import size_options

_PRETRAINED = numbers("pretrained_window_sizes", (0, 0, 0, 0))


def _read_pretrained(config: Config, options: Options) -> dict[str, Any]:
    sizes = _PRETRAINED.read(config, options)
    return sizes if any(sizes["pretrained_window_sizes"]) else {}


_KEYS = (
    *KEYS,
    Rule(_PRETRAINED.options, _read_pretrained, _PRETRAINED.write),
    fixed("use_absolute_embeddings", False),  # the published code cannot add them
)

_256 = {"image_size": 256, "window_size": 8}
_LARGE_WINDOW = {"image_size": 256, "window_size": 16}

FAMILY = Family(
    name="swinv2",
    builder=HIERARCHICAL_ENCODER,
    keys=_KEYS,
    defaults={"cosine": True},
    heads=hierarchical_heads("Swinv2", None),
    presets={
        "swinv2-tiny-patch4-window8-256": _256,
        "swinv2-tiny-patch4-window16-256": _LARGE_WINDOW,
        "swinv2-small-patch4-window8-256": size_options(96, 18, 3, **_256),
        "swinv2-base-patch4-window8-256": size_options(128, 18, 4, **_256),
    },
    tiny=TINY,
    weight_table=partial(table_of, base="swinv2."),
)
