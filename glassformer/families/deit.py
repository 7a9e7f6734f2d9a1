"""DeiT: ViT with a second learned token, the distillation token; the logits of both are averaged."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.family import Config, Family, variant
from glassformer.families.image_encoder import (
    EXCLUDED,
    IGNORED_IMAGE_KEYS,
    TINY_IMAGES,
    image_encoder,
    read,
    table_of,
    write,
)

deit = variant(image_encoder, EXCLUDED, prefix=2)
ARCHITECTURES: dict[type, str] = {
    spec.DistilledClassifySpec: "DeiTForImageClassificationWithTeacher",
    spec.ClassifySpec: "DeiTForImageClassification",
    spec.FeaturesSpec: "DeiTModel",
}


def from_config(config: Config) -> spec.EncoderOnlySpec:
    return deit(**read(config, ARCHITECTURES))


FAMILY = Family(
    name="deit",
    model_types=("deit",),
    architectures=tuple(ARCHITECTURES.values()),
    build=deit,
    presets={
        "deit-tiny-distilled-patch16-224": {"d_model": 192, "num_heads": 3, "d_ff": 768},
        "deit-small-distilled-patch16-224": {"d_model": 384, "num_heads": 6, "d_ff": 1536},
        "deit-base-distilled-patch16-224": {},
        "deit-base-distilled-patch16-384": {"image_size": 384},
    },
    tiny=TINY_IMAGES,
    from_config=from_config,
    to_config=partial(write, model_type="deit", architectures=ARCHITECTURES, prefix=2),
    table=partial(table_of, base="deit."),
    ignored_keys=IGNORED_IMAGE_KEYS,
)
