"""Qwen 3: LLaMA's decoder with QK norm: queries and keys of each head are normalized before rotation."""

from __future__ import annotations

from glassformer.families.decoder import DECODER, decoder_heads
from glassformer.families.family import TINY, Family, preset
from glassformer.families.llama import BIAS, RELATED, llama_keys, table
from glassformer.families.qwen2 import WINDOWS

FAMILY = Family(
    name="qwen3",
    builder=DECODER,
    keys=llama_keys(BIAS, WINDOWS, num_kv_heads=32, max_len=32768, head_dim=128),
    # the 8B model
    defaults={
        **preset(4096, 32, 36, 12288),
        "vocab_size": 151936,
        "num_kv_heads": 8,
        "head_dim": 128,
        "max_len": 40960,
        "norm_eps": 1e-6,
        "rope_base": 1000000.0,
        "qk_norm": True,
    },
    more_options=RELATED,
    heads=decoder_heads("Qwen3"),
    presets={
        "qwen3-0.6b": preset(1024, 16, 28, 3072, tied=True),
        "qwen3-1.7b": preset(2048, 16, 28, 6144, tied=True),
        "qwen3-4b": preset(2560, 32, 36, 9728, tied=True),
        "qwen3-8b": {},
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64},
    weight_table=table,
)
