"""ViT: pre-norm encoder of image patches; the class token is classified."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.family import Config, Family, preset, variant
from glassformer.families.image_encoder import (
    EXCLUDED,
    IGNORED_IMAGE_KEYS,
    TINY_IMAGES,
    image_encoder,
    read,
    table_of,
    write,
)

vit = variant(image_encoder, EXCLUDED)
ARCHITECTURES: dict[type, str] = {
    spec.ClassifySpec: "ViTForImageClassification",
    spec.FeaturesSpec: "ViTModel",
}


def from_config(config: Config) -> spec.EncoderOnlySpec:
    return vit(**read(config, ARCHITECTURES))


_LARGE = preset(1024, 16, 24, 4096)
_HUGE = preset(1280, 16, 32, 5120, patch_size=14)
_POOLED = {"head": spec.FeaturesSpec(pooler=True)}

FAMILY = Family(
    name="vit",
    model_types=("vit",),
    architectures=tuple(ARCHITECTURES.values()),
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
        # DeiT models without a distillation token have ViT's architecture
        "deit-tiny-patch16-224": {"d_model": 192, "num_heads": 3, "d_ff": 768},
        "deit-small-patch16-224": {"d_model": 384, "num_heads": 6, "d_ff": 1536},
        "deit-base-patch16-224": {},
        "deit-base-patch16-384": {"image_size": 384},
    },
    tiny=TINY_IMAGES,
    from_config=from_config,
    to_config=partial(write, model_type="vit", architectures=ARCHITECTURES, prefix=1),
    table=partial(table_of, base="vit."),
    ignored_keys=IGNORED_IMAGE_KEYS,
)
