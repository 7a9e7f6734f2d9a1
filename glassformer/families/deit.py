"""DeiT: ViT with a second learned token, the distillation token; the logits of both are averaged."""

from __future__ import annotations

from glassformer.core import spec
from glassformer.families.family import Family
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

FAMILY = Family(
    name="deit",
    builder=IMAGE_ENCODER,
    keys=(sizes(), *KEYS, HEAD_DIM),
    defaults={"prefix": 2},
    heads={
        "DeiTForImageClassificationWithTeacher": Head(spec.DistilledClassifySpec),
        "DeiTForImageClassification": Head(spec.ClassifySpec),
        "DeiTModel": BARE,
    },
    presets={
        "deit-tiny-distilled-patch16-224": {"d_model": 192, "num_heads": 3, "d_ff": 768},
        "deit-small-distilled-patch16-224": {"d_model": 384, "num_heads": 6, "d_ff": 1536},
        "deit-base-distilled-patch16-224": {},
        "deit-base-distilled-patch16-384": {"image_size": 384},
    },
    tiny=TINY_IMAGES,
    rows=image_rows,
    prefixes=("deit.",),
)
