"""ViT: an image cut into squares, read by a pre-norm encoder; the first of its vectors tells the label."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family
from glassformer.families.image_encoder import (
    IMMATERIAL_HERE,
    Size,
    config_of,
    features_of,
    image_encoder,
    rows_of,
    words_of,
)
from glassformer.weights.convert import Table
from glassformer.weights.ops import Ignored, Op, Rename, expand


def vit(
    *,
    image_size: Size = 224,
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    head_dim: int | None = None,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-12,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    qkv_bias: bool = True,
    num_labels: int = 1000,
    head: spec.Head | None = None,
) -> spec.EncoderOnly:
    """ViT's spec; the defaults are the base model's for ImageNet."""
    return image_encoder(
        prefix=1,
        head=head or spec.Classify(num_labels=num_labels),
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        d_model=d_model,
        num_heads=num_heads,
        head_dim=head_dim,
        d_ff=d_ff,
        num_layers=num_layers,
        activation=activation,
        norm_eps=norm_eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        qkv_bias=qkv_bias,
    )


def from_config(config: Config) -> spec.EncoderOnly:
    bare = config.architecture == "ViTModel"
    head = features_of(config) if bare else spec.Classify(num_labels=config.num_labels)
    return vit(**words_of(config), head=head)


def to_config(model: spec.Model) -> dict[str, Any]:
    names: dict[type, str] = {spec.Features: "ViTModel", spec.Classify: "ViTForImageClassification"}
    return config_of(model, model_type="vit", architectures=names, prefix=1)


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderOnly)
    rows: tuple[Op, ...] = (
        *rows_of(model),
        Rename("{base}embeddings.cls_token", "embed.prefix"),
        Ignored("{base}embeddings.mask_token"),  # left over from learning by masked squares
    )
    if isinstance(model.head, spec.Classify):
        rows += expand((Rename("classifier.{p}", "head.out.{p}"),), p=("weight", "bias"))
        rows += (Ignored("{base}pooler.dense.*"),)  # this head reads the vector itself
        return Table(rows, base=("vit.", ""))
    if isinstance(model.head, spec.Features) and model.head.pooler:
        rows += expand((Rename("{base}pooler.dense.{p}", "head.pooler.{p}"),), p=("weight", "bias"))
    return Table(rows, base=("", "vit."))


_LARGE = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 24}
_HUGE = {"d_model": 1280, "num_heads": 16, "d_ff": 5120, "num_layers": 32, "patch_size": 14}
_POOLED = {"head": spec.Features(pooler=True)}

FAMILY = Family(
    name="vit",
    model_types=("vit",),
    architectures=("ViTForImageClassification", "ViTModel"),
    build=vit,
    presets={
        "vit-base-patch16-224": {},
        "vit-base-patch16-384": {"image_size": 384},
        "vit-base-patch32-384": {"image_size": 384, "patch_size": 32},
        "vit-large-patch16-224": _LARGE,
        "vit-large-patch16-384": {**_LARGE, "image_size": 384},
        "vit-large-patch32-384": {**_LARGE, "image_size": 384, "patch_size": 32},
        "vit-base-patch16-224-in21k": _POOLED,
        "vit-base-patch32-224-in21k": {**_POOLED, "patch_size": 32},
        "vit-large-patch16-224-in21k": {**_LARGE, **_POOLED},
        "vit-large-patch32-224-in21k": {**_LARGE, **_POOLED, "patch_size": 32},
        "vit-huge-patch14-224-in21k": {**_HUGE, **_POOLED},
        # published by another paper, but without its second token, so of this family
        "deit-tiny-patch16-224": {"d_model": 192, "num_heads": 3, "d_ff": 768},
        "deit-small-patch16-224": {"d_model": 384, "num_heads": 6, "d_ff": 1536},
        "deit-base-patch16-224": {},
        "deit-base-patch16-384": {"image_size": 384},
    },
    tiny={
        "image_size": 16,
        "patch_size": 4,
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_layers": 2,
        "num_labels": 10,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=IMMATERIAL_HERE,
)
