"""Falcon: decoder with parallel or sequential attention and feed-forward, and shared key/value heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.decoder import (
    DECODER,
    PAD,
    decoder_heads,
    fused_rows,
    head_rows,
    rotary,
    write_rotary,
)
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, Options, Rule, activation
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Ignored, Op


def _read_layout(config: Config, options: Options) -> dict[str, Any]:
    """Return the wiring and the number of key/value heads, which older and newer models declare apart."""
    kv_heads = config.get("num_kv_heads", options["num_heads"])
    multi_query, parallel = config.get("multi_query", True), config.get("parallel_attn", True)
    norms = config.only("num_ln_in_parallel_attn", None, 1, 2)
    if config.get("new_decoder_architecture", False):
        config.only("parallel_attn", True, default=True)
        return {"num_kv_heads": kv_heads, "wiring": "parallel" if norms == 1 else "parallel_split"}
    if parallel:
        config.only("num_ln_in_parallel_attn", None, 1)
    if not multi_query:
        config.only("num_kv_heads", None, options["num_heads"])
    kv_heads = 1 if multi_query else options["num_heads"]
    return {"num_kv_heads": kv_heads, "wiring": "parallel" if parallel else "pre"}


def _write_layout(options: Options) -> dict[str, Any]:
    kv_heads, wiring = options["num_kv_heads"], options["wiring"]
    grouped = kv_heads not in (1, options["num_heads"])
    return {
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": wiring == "parallel_split" or grouped,
        "multi_query": kv_heads == 1,
        "parallel_attn": wiring != "pre",
        "num_ln_in_parallel_attn": {"pre": None, "parallel": 1, "parallel_split": 2}[wiring],
    }


def _read_position(config: Config, options: Options) -> dict[str, Any]:
    alibi = config.get("alibi", False)
    return {"position": "alibi"} if alibi else rotary().read(config, options)


def _write_position(options: Options) -> dict[str, Any]:
    alibi = options["position"] == "alibi"
    return {"alibi": alibi, **({} if alibi else write_rotary(options))}


KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model", aliases=("n_embed",)),
    Key("num_attention_heads", "num_heads"),
    Key("ffn_hidden_size", "d_ff", 0),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 2048),
    activation("activation", "gelu"),
    Key("layer_norm_epsilon", "norm_eps", 1e-5),
    Key("bias", "attention_bias", False),
    Key("bias", "ffn_bias", False),
    Key("hidden_dropout", "dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("tie_word_embeddings", "tied", True),
    Rule(("num_kv_heads", "wiring"), _read_layout, _write_layout),
    Rule(("position", "rope_base", "rope_scaling"), _read_position, _write_position),
    PAD,
)


def weight_rows(model: spec.DecoderOnlySpec) -> Sequence[Op]:
    norms = {
        "pre": {"input_layernorm": "norm_self", "post_attention_layernorm": "norm_ffn"},
        "parallel": {"input_layernorm": "norm_self"},
        "parallel_split": {"ln_attn": "norm_self", "ln_mlp": "norm_ffn"},
    }[model.decoder.block.wiring]
    return (
        *fused_rows(model, "{base}h.{i}", "self_attention", norms),
        *rename_modules(("{base}ln_f", "decoder.final_norm")),
        Ignored("{base}h.*.self_attention.*.inv_freq"),  # computed here; only in older files
        *head_rows(model, token="{base}word_embeddings.weight", each_token="classifier"),
    )


_BIAS = {"attention_bias": True, "ffn_bias": True}

FAMILY = Family(
    name="falcon",
    builder=DECODER,
    keys=KEYS,
    # the 7B model
    defaults={
        "d_model": 4544,
        "num_heads": 71,
        "vocab_size": 65024,
        "num_kv_heads": 1,
        "max_len": 2048,
        "wiring": "parallel",
        "norm": "layer",
        "activation": "gelu",
        "gated": False,
        "tied": True,
    },
    heads=decoder_heads(
        "Falcon", dropout=Key("classifier_dropout", "dropout", 0.0, aliases=("hidden_dropout",))
    ),
    presets={
        "falcon-7b": {},
        "falcon-40b": preset(8192, 128, 60, 32768, num_kv_heads=8, wiring="parallel_split"),
        "falcon-rw-1b": preset(
            2048, 32, 24, 8192, vocab_size=50304, num_kv_heads=32, wiring="pre", position="alibi", **_BIAS
        ),
    },
    tiny=TINY,
    rows=weight_rows,
    prefixes=("transformer.",),
)
