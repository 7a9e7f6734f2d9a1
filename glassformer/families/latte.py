"""Latte: a diffusion Transformer for video, whose layers attend along space and along time in turn.

The positions of the frames are added once, before the first layer along time; only layers along space attend
to the text.
"""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families import pixart
from glassformer.families.config import Config
from glassformer.families.diffusion_transformer import BUILDER, HEAD, TINY, keys
from glassformer.families.family import Family
from glassformer.families.keys import Key, Options, Rule, with_defaults
from glassformer.weights.ops import Computed, Op


def _read_text(config: Config, options: Options) -> dict[str, Any]:
    width = config.maybe("cross_attention_dim", int)  # None: no layer attends to the text
    if width not in (None, options["d_model"]):
        raise InvalidValueError(f"{config.where}: cross_attention_dim", width, str(options["d_model"]))
    return {"text_dim": config.need("caption_channels", int), "crosses": width is not None}


def _write_text(options: Options) -> dict[str, Any]:
    width = options["d_model"] if options["crosses"] else None
    return {"cross_attention_dim": width, "caption_channels": options["text_dim"]}


def _rows(model: spec.EncoderOnlySpec) -> tuple[Op, ...]:
    return *pixart.rows(model), Computed("temp_pos_embed", "embed.frames.table")


FAMILY = Family(
    name="latte",
    library="diffusers",
    pipeline="LattePipeline",
    builder=BUILDER,
    defaults={"text_dim": 4096, "num_frames": 16},
    keys=(
        *with_defaults(
            keys("ada_norm_single", norm_eps=1e-5),
            **{"image_size": 64, "num_layers": 1, "qkv_bias": False, "activation": "geglu"},
        ),
        Rule(("text_dim", "crosses"), _read_text, _write_text),
        Key("video_length", "num_frames", 16),
    ),
    more_options=("num_classes",),
    heads={"LatteTransformer3DModel": HEAD},
    presets={
        "latte-1": {"image_size": 64},  # 16 x 512 x 512 pixels
        # 16 x 32 x 32 pixels in gray, e.g. moving digits with a caption; 12M parameters
        "latte-mini": {
            **{"patch_size": 4, "channels": 1, "out_channels": 1, "text_dim": 256},
            **{"d_model": 256, "num_heads": 4, "num_layers": 6},
        },
    },
    tiny={**TINY, "text_dim": 24, "num_frames": 4},
    rows=_rows,
)
