"""Mistral: LLaMA's decoder in which a query sees only a window of keys before it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.causal_heads import architectures
from glassformer.families.family import Config, Family, bases
from glassformer.families.llama import llama, read_words, rows, write_words
from glassformer.weights.convert import Table

# Mistral's spec: the words of `llama`, with the defaults of the 7B model's first version
mistral = partial(llama, num_kv_heads=8, d_ff=14336, max_len=32768, window=4096)


def from_config(config: Config) -> spec.DecoderOnly:
    config.only("layer_types", None)
    window = 0 if "sliding_window" in config.values else 4096  # null means none
    return mistral(
        **read_words(config, "Mistral", max_len=131072, kv_heads=8),
        window=config.get("sliding_window", window) or None,
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    words = write_words(model, "Mistral")
    assert isinstance(model, spec.DecoderOnly)
    return {"model_type": "mistral", **words, "sliding_window": model.decoder.block.attention.window}


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.DecoderOnly)
    return Table(rows(model), base=bases(model.head, "model."))


FAMILY = Family(
    name="mistral",
    model_types=("mistral",),
    architectures=architectures("Mistral"),
    build=mistral,
    presets={
        "mistral-7b": {},
        "mistral-7b-v0.3": {"vocab_size": 32768, "window": None, "rope_base": 1000000.0},
    },
    tiny={
        "vocab_size": 101,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ff": 64,
        "num_layers": 2,
        "max_len": 64,
        "window": 5,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
)
