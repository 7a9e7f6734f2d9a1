"""Qwen 3: LLaMA's decoder in which each head's queries and keys are normalized before rotation."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.causal_heads import architectures
from glassformer.families.family import Config, Family
from glassformer.families.llama import llama, read_words, write_words
from glassformer.families.qwen2 import read_windows, table, write_windows

# Qwen 3's spec: the words of `llama`, with the defaults of the 8B model
qwen3 = partial(
    llama,
    vocab_size=151936,
    d_model=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    d_ff=12288,
    num_layers=36,
    max_len=40960,
    norm_eps=1e-6,
    rope_base=1000000.0,
    qk_norm=True,
)


def from_config(config: Config) -> spec.DecoderOnly:
    words = read_words(config, "Qwen3", max_len=32768, kv_heads=32)
    words["head_dim"] = words["head_dim"] or 128  # the config class's default, whatever the width
    return qwen3(**words, **read_windows(config), attention_bias=config.get("attention_bias", False))


def to_config(model: spec.Model) -> dict[str, Any]:
    words = write_words(model, "Qwen3")
    assert isinstance(model, spec.DecoderOnly)
    biased = bool(model.decoder.block.attention.biases)
    return {"model_type": "qwen3", **words, **write_windows(model), "attention_bias": biased}


_SMALL = {"tied": True, "num_layers": 28}

FAMILY = Family(
    name="qwen3",
    model_types=("qwen3",),
    architectures=architectures("Qwen3"),
    build=qwen3,
    presets={
        "qwen3-0.6b": {**_SMALL, "d_model": 1024, "num_heads": 16, "d_ff": 3072},
        "qwen3-1.7b": {**_SMALL, "d_model": 2048, "num_heads": 16, "d_ff": 6144},
        "qwen3-4b": {"tied": True, "d_model": 2560, "d_ff": 9728},
        "qwen3-8b": {},
    },
    tiny={
        "vocab_size": 101,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 10,
        "d_ff": 64,
        "num_layers": 2,
        "max_len": 64,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
)
