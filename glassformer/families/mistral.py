"""Mistral: LLaMA's decoder with sliding-window attention."""

from __future__ import annotations

from functools import partial

from glassformer.families.decoder import DECODER, decoder_heads
from glassformer.families.family import TINY, Family
from glassformer.families.keys import Key, fixed
from glassformer.families.llama import RELATED, llama_keys, table

FAMILY = Family(
    name="mistral",
    builder=DECODER,
    keys=llama_keys(
        Key("sliding_window", "window", 4096, null=0),
        fixed("layer_types", None),
        num_kv_heads=8,
        max_len=131072,
    ),
    # the 7B model's first version
    defaults={"num_kv_heads": 8, "d_ff": 14336, "max_len": 32768, "window": 4096},
    more_options=RELATED,
    heads=decoder_heads("Mistral"),
    presets={
        "mistral-7b": {},
        "mistral-7b-v0.3": {"vocab_size": 32768, "window": None, "rope_base": 1000000.0},
    },
    tiny={**TINY, "num_kv_heads": 2, "d_ff": 64, "window": 5},
    weight_table=partial(table, answer="model."),
)
