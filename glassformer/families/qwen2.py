"""Qwen 2 and 2.5: LLaMA's decoder with q, k and v biases; some layers have a sliding window."""

from __future__ import annotations

from typing import Any

from glassformer.families.config import Config
from glassformer.families.decoder import DECODER, decoder_heads
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Options, Rule
from glassformer.families.llama import RELATED, llama_keys, table

SLIDING, FULL = "sliding_attention", "full_attention"


def read_layer_types(config: Config, default: list[str]) -> tuple[int, ...]:
    """Return the layers with a window, from `layer_types`."""
    kinds = config.get("layer_types", default)
    if len(kinds) != len(default) or not set(kinds) <= {SLIDING, FULL}:
        config.only("layer_types", None)
    return tuple(n for n, kind in enumerate(kinds) if kind == SLIDING)


def window_layers(options: Options) -> tuple[int, ...]:
    """Return the layers with a window; the inverse of `read_layer_types`."""
    if not options["window"]:
        return ()
    every = options["window_layers"] is None
    return tuple(range(options["num_layers"])) if every else options["window_layers"]


def write_layer_types(options: Options) -> list[str]:
    """Return the key `layer_types`."""
    layers = window_layers(options)
    return [SLIDING if n in layers else FULL for n in range(options["num_layers"])]


def _read_windows(config: Config, options: Options) -> dict[str, Any]:
    """Return the layers with a window: from `layer_types`, else all layers from `max_window_layers` on."""
    layers, used = options["num_layers"], config.get("use_sliding_window", False)
    window = config.get("sliding_window", 0 if "sliding_window" in config.values else 4096)
    first = config.get("max_window_layers", 28)
    chosen = read_layer_types(config, [SLIDING if used and n >= first else FULL for n in range(layers)])
    if not used or not window or not chosen:
        return {}
    return {"window": window, "window_layers": None if len(chosen) == layers else chosen}


def _write_windows(options: Options) -> dict[str, Any]:
    return {
        "use_sliding_window": bool(options["window"]),
        "sliding_window": options["window"],
        "max_window_layers": min(window_layers(options), default=options["num_layers"]),
        "layer_types": write_layer_types(options),
    }


WINDOWS = Rule(("window", "window_layers"), _read_windows, _write_windows)
_SMALL = {"vocab_size": 151936, "num_kv_heads": 2, "tied": True}

FAMILY = Family(
    name="qwen2",
    builder=DECODER,
    keys=llama_keys(WINDOWS, num_kv_heads=32, max_len=32768),
    # the 7B model
    defaults={
        **preset(3584, 28, 28, 18944),
        "vocab_size": 152064,
        "num_kv_heads": 4,
        "max_len": 32768,
        "norm_eps": 1e-6,
        "rope_base": 1000000.0,
        "qkv_bias": True,
    },
    more_options=RELATED,
    heads=decoder_heads("Qwen2"),
    presets={
        "qwen2.5-0.5b": preset(896, 14, 24, 4864, **_SMALL),
        "qwen2.5-1.5b": preset(1536, 12, 28, 8960, **_SMALL),
        "qwen2.5-7b": {"max_len": 131072},
    },
    tiny={**TINY, "num_kv_heads": 2, "d_ff": 64, "window": 5, "window_layers": (1,)},
    weight_table=table,
)
