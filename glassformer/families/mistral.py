"""Mistral: LLaMA's decoder with sliding-window attention."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.decoder import architectures, decoder
from glassformer.families.family import TINY, Config, Family, Key, variant
from glassformer.families.llama import EXCLUDED, KEYS, read, table, write

# the 7B model's first version
mistral = variant(decoder, EXCLUDED, num_kv_heads=8, d_ff=14336, max_len=32768, window=4096)
_KEYS = (*KEYS, Key("sliding_window", "window", 0))


def from_config(config: Config) -> spec.DecoderOnlySpec:
    config.only("layer_types", None)
    window = 0 if "sliding_window" in config.values else 4096  # null: no window
    return mistral(**read(config, "Mistral", _KEYS, kv_heads=8, max_len=131072, window=window))


FAMILY = Family(
    name="mistral",
    model_types=("mistral",),
    architectures=architectures("Mistral"),
    build=mistral,
    presets={
        "mistral-7b": {},
        "mistral-7b-v0.3": {"vocab_size": 32768, "window": None, "rope_base": 1000000.0},
    },
    tiny={**TINY, "num_kv_heads": 2, "d_ff": 64, "window": 5},
    from_config=from_config,
    to_config=partial(write, stem="Mistral", keys=_KEYS),
    table=partial(table, answer="model."),
)
