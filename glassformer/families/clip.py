"""CLIP: an image tower and a causal text tower with a shared embedding space; also each tower alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import Family, preset
from glassformer.families.image_encoder import square_sizes
from glassformer.families.image_text import (
    IMAGE_KEYS,
    TEXT_KEYS,
    TINY_TOWERS,
    TWO_TOWERS,
    image_rows,
    text_rows,
    towers,
    towers_table,
)
from glassformer.families.keys import Head, Options, Rule, with_defaults
from glassformer.weights.ops import Op, Rename

WITH_PROJECTION = "WithProjection"
LARGEST_ID = 2  # the eos_token_id of configs whose text is pooled at the largest id


def _read_end(config: Config, _: Options) -> dict[str, Any]:
    end = config.get("eos_token_id", 49407)
    return {"end_id": None if end == LARGEST_ID else end}


def _write_end(options: Options) -> dict[str, Any]:
    head = options["head"]
    return {"eos_token_id": LARGEST_ID if head.pool == "largest_id" else head.end_id}


def _read_projection(config: Config, _: Options) -> dict[str, Any]:
    width, scale = config.get("projection_dim", 512), config.get("logit_scale_init_value", 2.6592)
    projects = config.architecture == "CLIPModel" or config.architecture.endswith(WITH_PROJECTION)
    return {"projection_dim": width if projects else None, "logit_scale": scale}


def _write_projection(options: Options) -> dict[str, Any]:
    model = options["model"]
    if isinstance(model, spec.TwoTowerSpec):
        return {"projection_dim": model.embedding_dim, "logit_scale_init_value": model.head.scale}
    width = model.head.projection_dim
    name = "CLIPTextModel" if isinstance(model.input, spec.TokensSpec) else "CLIPVisionModel"
    return {"projection_dim": width, "architectures": [f"{name}{WITH_PROJECTION}"]} if width else {}


_QUICK = {"activation": "quick_gelu"}
_TEXT_KEYS = with_defaults(TEXT_KEYS, **_QUICK, d_model=512, num_heads=8, d_ff=2048, vocab_size=49408)
_TOWERS = towers(
    "CLIP",
    image=(square_sizes(224, 32), *with_defaults(IMAGE_KEYS, **_QUICK)),
    text=(*_TEXT_KEYS, Rule(("end_id",), _read_end, _write_end)),
)
_NORMS = {"pre_layrnorm": "embed.norm", "post_layernorm": "head.norm"}  # the misspelling is published


def _image_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    return (*image_rows(tower, theirs, ours, _NORMS), *_projection(tower, "visual", ours))


def _text_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    return (*text_rows(tower, theirs, ours), *_projection(tower, "text", ours))


def _projection(tower: spec.EncoderOnlySpec, name: str, ours: str) -> tuple[Op, ...]:
    row = Rename(f"{name}_projection.weight", f"{ours}head.projection.weight")
    return (row,) if getattr(tower.head, "projection_dim", None) else ()


_LARGE_TEXT = {"text_d_model": 768, "text_num_heads": 12, "text_d_ff": 3072, "projection_dim": 768}
_LARGE = preset(1024, 16, 24, 4096, patch_size=14, **_LARGE_TEXT)

FAMILY = Family(
    name="clip",
    builder=TWO_TOWERS,
    keys=(_TOWERS, Rule(("projection_dim", "logit_scale"), _read_projection, _write_projection)),
    defaults={"patch_size": 32, "projection_dim": 512},  # ViT-B/32
    heads={
        "CLIPModel": Head(spec.SoftmaxSimilaritySpec, from_options=True),
        **{
            f"CLIP{tower}Model{suffix}": Head(spec.ProjectionSpec, from_options=True)
            for tower in ("Text", "Vision")
            for suffix in ("", WITH_PROJECTION)
        },
    },
    presets={
        "clip-vit-base-patch32": {},
        "clip-vit-base-patch16": {"patch_size": 16},
        "clip-vit-large-patch14": _LARGE,
        "clip-vit-large-patch14-336": {**_LARGE, "image_size": 336},
    },
    tiny={**TINY_TOWERS, "projection_dim": 20},
    weight_table=partial(
        towers_table, image=_image_rows, text=_text_rows, pair=(Rename("logit_scale", "head.scale"),)
    ),
)
