"""Gemma 2: norms before and after each sublayer, softcapped scores and logits, alternating windows."""

from __future__ import annotations

from typing import Any

from glassformer.families.config import Config
from glassformer.families.decoder import DECODER, decoder_heads
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import ACTIVATIONS, Key, Keys, Options, Rule, activation, fixed
from glassformer.families.llama import BIAS, llama_keys, table
from glassformer.families.qwen2 import FULL, SLIDING, read_layer_types, write_layer_types

OPTIONS: dict[str, Any] = {
    "wiring": "sandwich",
    "norm": "rms_zero_centered",
    "norm_eps": 1e-6,
    "activation": "gelu_tanh",
    "scale_embedding": True,
    "tied": True,
    "window": 4096,
}


def _read_scale(config: Config, options: Options) -> dict[str, Any]:
    scalar = config.get("query_pre_attn_scalar", 256.0)
    return {"scale": None if scalar == options["head_dim"] else scalar**-0.5}


def _write_scale(options: Options) -> dict[str, Any]:
    scale = options["scale"]
    return {"query_pre_attn_scalar": options["head_dim"] if scale is None else round(scale**-2)}


def gemma_keys(*more: Key | Rule, pattern: int, **defaults: Any) -> Keys:
    """Return Gemma's keys. pattern: by default, all layers have the window except every n-th.

    more, defaults: further keys and other defaults.
    """

    def read_windows(config: Config, options: Options) -> dict[str, Any]:
        n = config.get("sliding_window_pattern", pattern, "_sliding_window_pattern")
        kinds = [SLIDING if (layer + 1) % n else FULL for layer in range(options["num_layers"])]
        window = config.get("sliding_window", 4096)
        return {"window": window, "window_layers": read_layer_types(config, kinds)}

    def write_windows(options: Options) -> dict[str, Any]:
        return {"sliding_window": options["window"] or 4096, "layer_types": write_layer_types(options)}

    return llama_keys(
        activation(
            "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}
        ),
        BIAS,
        fixed("use_bidirectional_attention", None, False),
        Rule(("scale",), _read_scale, _write_scale),
        Rule(("window", "window_layers"), read_windows, write_windows),
        *more,
        **{"num_kv_heads": 4, "head_dim": 256, "norm_eps": 1e-6, "tied": True, **defaults},
    )


def softcap(theirs: str, ours: str, default: float | None) -> Rule:
    """Return the rule of a softcap; null means none."""

    def read(config: Config, options: Options) -> dict[str, Any]:
        return {ours: config.maybe(theirs, float) if theirs in config.values else default}

    return Rule((ours,), read, lambda options: {theirs: options.get(ours)})


_KEYS = gemma_keys(
    softcap("attn_logit_softcapping", "attention_softcap", 50.0),
    softcap("final_logit_softcapping", "logit_softcap", 30.0),
    pattern=2,
    max_len=8192,
)
_HEADS = decoder_heads("Gemma2")
del _HEADS["Gemma2ForQuestionAnswering"]

FAMILY = Family(
    name="gemma2",
    builder=DECODER,
    keys=_KEYS,
    # the 2B model
    defaults={
        **OPTIONS,
        **preset(2304, 8, 26, 9216, num_kv_heads=4, head_dim=256),
        "vocab_size": 256000,
        "max_len": 8192,
        "sliding_window_pattern": 2,
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
    },
    more_options=("sliding_window_pattern",),
    heads=_HEADS,
    presets={
        "gemma-2-2b": {},
        "gemma-2-9b": preset(3584, 16, 42, 14336, num_kv_heads=8),
        "gemma-2-27b": preset(4608, 32, 46, 36864, num_kv_heads=16, head_dim=128, scale=144**-0.5),
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64, "window": 5},
    weight_table=table,
)
