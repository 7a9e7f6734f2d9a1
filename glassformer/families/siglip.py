"""SigLIP: an image tower with attention pooling and a bidirectional text tower; trained with a sigmoid."""

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
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Op, Rename, Reshape, Split, expand


def _read_projection(config: Config, options: Options) -> dict[str, Any]:
    return {"projection_dim": config.maybe("projection_size", int) or options["d_model"]}


def _write_pooling(options: Options) -> dict[str, Any]:
    return {} if isinstance(options["head"], spec.AttentionPoolSpec) else {"vision_use_head": False}


_USUAL = {"activation": "gelu_pytorch_tanh", "norm_eps": 1e-6}
_TOWERS = towers(
    "Siglip",
    image=(
        square_sizes(224, 16),
        *with_defaults(IMAGE_KEYS, **_USUAL),
        Rule(
            ("pooling",), lambda config, _: {"pooling": config.get("vision_use_head", True)}, _write_pooling
        ),
    ),
    text=(
        *with_defaults(TEXT_KEYS, **_USUAL, max_len=64),
        Rule(
            ("projection_dim",),
            _read_projection,
            lambda options: {"projection_size": options["head"].projection_dim},
        ),
    ),
)


def _text_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    head = rename_modules((f"{theirs}head", f"{ours}head.projection"))
    return (*text_rows(tower, theirs, ours), *head)


def _image_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    rows = image_rows(tower, theirs, ours, {"post_layernorm": "encoder.final_norm"})
    if not isinstance(tower.head, spec.AttentionPoolSpec):
        return rows
    sizes = (tower.encoder.d_model,) * 3
    fused = Split(
        f"{theirs}head.attention.in_proj_{{p}}", f"{ours}head.attn.{{q,k,v}}_proj.{{p}}", sizes=sizes
    )
    return (
        *rows,
        Rename(f"{theirs}head.probe", f"{ours}head.probe"),
        *expand((fused,), p=("weight", "bias")),
        *rename_modules(
            (f"{theirs}head.attention.out_proj", f"{ours}head.attn.out_proj"),
            (f"{theirs}head.layernorm", f"{ours}head.norm"),
            (f"{theirs}head.mlp.fc1", f"{ours}head.ffn.up"),
            (f"{theirs}head.mlp.fc2", f"{ours}head.ffn.down"),
        ),
    )


_SIZES = preset(1024, 16, 24, 4096)
_LARGE = {**_SIZES, **{f"text_{option}": size for option, size in _SIZES.items()}}

FAMILY = Family(
    name="siglip",
    heads={
        "SiglipModel": Head(spec.SigmoidSimilaritySpec, from_options=True),
        "SiglipTextModel": Head(spec.ProjectionSpec, from_options=True),
        "SiglipVisionModel": Head(spec.AttentionPoolSpec | spec.FeaturesSpec, from_options=True),
    },
    builder=TWO_TOWERS,
    keys=(_TOWERS,),
    # the base model with patches of 16
    defaults={
        "similarity": "sigmoid",
        "activation": "gelu_tanh",
        "norm_eps": 1e-6,
        "vocab_size": 32000,
        "max_len": 64,
        "text_d_model": 768,
        "text_num_heads": 12,
        "text_d_ff": 3072,
        "text_activation": "gelu_tanh",
        "text_norm_eps": 1e-6,
    },
    presets={
        "siglip-base-patch16-224": {},
        "siglip-base-patch16-256": {"image_size": 256},
        "siglip-base-patch16-384": {"image_size": 384},
        "siglip-large-patch16-256": {**_LARGE, "image_size": 256},
    },
    tiny=TINY_TOWERS,
    weight_table=partial(
        towers_table,
        image=_image_rows,
        text=_text_rows,
        pair=expand((Reshape("logit_{n}", "head.{n}", their_shape=(1,), our_shape=()),), n=("scale", "bias")),
    ),
)
