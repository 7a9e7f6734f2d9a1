"""DeiT: ViT with a second learned token, taught by another model's labels; their scores are averaged."""

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
from glassformer.weights.ops import Concat, Ignored, Op, Rename, expand


def deit(
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
    """DeiT's spec; the defaults are the distilled base model's for ImageNet."""
    return image_encoder(
        prefix=2,
        head=head or spec.ClassifyTwice(num_labels=num_labels),
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
    head: spec.Head
    match config.architecture:
        case "DeiTModel":
            head = features_of(config)
        case "DeiTForImageClassification":
            head = spec.Classify(num_labels=config.num_labels)
        case _:
            head = spec.ClassifyTwice(num_labels=config.num_labels)
    return deit(**words_of(config), head=head)


def to_config(model: spec.Model) -> dict[str, Any]:
    names: dict[type, str] = {
        spec.Features: "DeiTModel",
        spec.Classify: "DeiTForImageClassification",
        spec.ClassifyTwice: "DeiTForImageClassificationWithTeacher",
    }
    return config_of(model, model_type="deit", architectures=names, prefix=2)


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderOnly)
    rows: tuple[Op, ...] = (
        *rows_of(model),
        Concat("{base}embeddings.{cls,distillation}_token", "embed.prefix", sizes=(1, 1), dim=1),
        Ignored("{base}embeddings.mask_token"),  # left over from learning by masked squares
    )
    both = ("weight", "bias")
    match model.head:
        case spec.Features(pooler=True):
            rows += expand((Rename("{base}pooler.dense.{p}", "head.pooler.{p}"),), p=both)
        case spec.Classify():
            rows += expand((Rename("classifier.{p}", "head.out.{p}"),), p=both)
        case spec.ClassifyTwice():
            rows += expand(
                (
                    Rename("cls_classifier.{p}", "head.first.{p}"),
                    Rename("distillation_classifier.{p}", "head.second.{p}"),
                ),
                p=both,
            )
    if isinstance(model.head, spec.Features):
        return Table(rows, base=("", "deit."))
    rows += (Ignored("{base}pooler.dense.*"),)  # these heads read the vectors themselves
    return Table(rows, base=("deit.", ""))


FAMILY = Family(
    name="deit",
    model_types=("deit",),
    architectures=("DeiTForImageClassificationWithTeacher", "DeiTForImageClassification", "DeiTModel"),
    build=deit,
    presets={
        "deit-tiny-distilled-patch16-224": {"d_model": 192, "num_heads": 3, "d_ff": 768},
        "deit-small-distilled-patch16-224": {"d_model": 384, "num_heads": 6, "d_ff": 1536},
        "deit-base-distilled-patch16-224": {},
        "deit-base-distilled-patch16-384": {"image_size": 384},
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
