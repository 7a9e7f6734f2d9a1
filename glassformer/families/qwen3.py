"""Qwen 3: LLaMA's decoder with QK norm: queries and keys of each head are normalized before rotation."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import architectures, decoder
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.llama import BIAS, EXCLUDED, KEYS, read, table, write
from glassformer.families.qwen2 import read_windows, write_windows

# the 8B model
qwen3 = variant(
    decoder,
    EXCLUDED,
    **preset(4096, 32, 36, 12288),
    vocab_size=151936,
    num_kv_heads=8,
    head_dim=128,
    max_len=40960,
    norm_eps=1e-6,
    rope_base=1000000.0,
    qk_norm=True,
)
_KEYS = (*KEYS, BIAS)


def from_config(config: Config) -> spec.DecoderOnlySpec:
    options = read(config, "Qwen3", _KEYS, kv_heads=32, max_len=32768, head_dim=128)
    return qwen3(**options, **read_windows(config))


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    return {**write(model, "Qwen3", _KEYS), **write_windows(model)}


FAMILY = Family(
    name="qwen3",
    model_types=("qwen3",),
    architectures=architectures("Qwen3"),
    build=qwen3,
    presets={
        "qwen3-0.6b": preset(1024, 16, 28, 3072, tied=True),
        "qwen3-1.7b": preset(2048, 16, 28, 6144, tied=True),
        "qwen3-4b": preset(2560, 32, 36, 9728, tied=True),
        "qwen3-8b": {},
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
