"""ViT: pre-norm encoder of image patches; the class token is classified."""

from __future__ import annotations

from glassformer.core import spec
from glassformer.families.family import Family, preset
from glassformer.families.image_encoder import (
    BARE,
    HEAD_DIM,
    IMAGE_ENCODER,
    KEYS,
    TINY_IMAGES,
    image_rows,
    sizes,
)
from glassformer.families.keys import Head

_LARGE = preset(1024, 16, 24, 4096)
_HUGE = preset(1280, 16, 32, 5120, patch_size=14)
_POOLED = {"head": spec.FeaturesSpec(pooler=True)}

FAMILY = Family(
    name="vit",
    builder=IMAGE_ENCODER,
    keys=(sizes(), *KEYS, HEAD_DIM),
    heads={
        "ViTForImageClassification": Head(spec.ClassifySpec),
        "ViTModel": BARE,
    },
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
    rows=image_rows,
    prefixes=("vit.",),
)
