"""Swin v2: Swin with cosine attention, a bias network over log-spaced offsets and norms after sublayers."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family, variant
from glassformer.families.hierarchical_encoder import (
    IGNORED_KEYS,
    TASKS,
    TINY,
    hierarchical_encoder,
    read,
    read_numbers,
    table_of,
    write,
)
from glassformer.families.swin import size_options

swinv2 = variant(hierarchical_encoder, "cosine absolute_positions", cosine=True)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    config.only("use_absolute_embeddings", False, default=False)  # the published code cannot add them
    options = read(config, "Swinv2")
    del options["absolute_positions"]
    sizes = read_numbers(config, "pretrained_window_sizes", [0, 0, 0, 0])
    return swinv2(**options, pretrained_window_sizes=sizes if any(sizes) else ())


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.encoder, spec.StagesSpec)
    biases = [stage.block.attention.position_bias for stage in model.encoder.stages]
    sizes = [bias.pretrained_size or 0 for bias in biases if isinstance(bias, spec.LogBias2dSpec)]
    return {**write(model, model_type="swinv2", prefix="Swinv2"), "pretrained_window_sizes": sizes}


_256 = {"image_size": 256, "window_size": 8}
_LARGE_WINDOW = {"image_size": 256, "window_size": 16}

FAMILY = Family(
    name="swinv2",
    model_types=("swinv2",),
    architectures=tuple(f"Swinv2{task}" for task in TASKS.values()),
    build=swinv2,
    presets={
        "swinv2-tiny-patch4-window8-256": _256,
        "swinv2-tiny-patch4-window16-256": _LARGE_WINDOW,
        "swinv2-small-patch4-window8-256": size_options(96, 18, 3, **_256),
        "swinv2-base-patch4-window8-256": size_options(128, 18, 4, **_256),
    },
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=partial(table_of, base="swinv2."),
    ignored_keys=IGNORED_KEYS,
)
