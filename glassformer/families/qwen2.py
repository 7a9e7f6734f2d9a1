"""Qwen 2 and 2.5: LLaMA's decoder with q, k and v biases; some layers have a sliding window."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import architectures, decoder
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.llama import EXCLUDED, read, table, write

SLIDING, FULL = "sliding_attention", "full_attention"

# the 7B model
qwen2 = variant(
    decoder,
    EXCLUDED,
    **preset(3584, 28, 28, 18944),
    vocab_size=152064,
    num_kv_heads=4,
    max_len=32768,
    norm_eps=1e-6,
    rope_base=1000000.0,
    qkv_bias=True,
)


def read_windows(config: Config) -> dict[str, Any]:
    """Return the layers with a window: from `layer_types`, else all layers from `max_window_layers` on."""
    layers = config.need("num_hidden_layers", int)
    used = config.get("use_sliding_window", False)
    window = config.get("sliding_window", 0 if "sliding_window" in config.values else 4096)
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types", [SLIDING if used and n >= first else FULL for n in range(layers)])
    if len(kinds) != layers or not set(kinds) <= {SLIDING, FULL}:
        config.only("layer_types", None)
    chosen = tuple(n for n, kind in enumerate(kinds) if kind == SLIDING)
    if not used or not window or not chosen:
        return {}
    return {"window": window, "window_layers": None if len(chosen) == layers else chosen}


def write_windows(model: spec.ModelSpec) -> dict[str, Any]:
    """Return the config keys of the window; the inverse of `read_windows`."""
    assert isinstance(model, spec.DecoderOnlySpec)
    stack = model.decoder
    windows = [stack.block_at(n).attention.window for n in range(stack.num_layers)]
    return {
        "use_sliding_window": any(windows),
        "sliding_window": max((window for window in windows if window), default=None),
        "max_window_layers": next((n for n, window in enumerate(windows) if window), len(windows)),
        "layer_types": [SLIDING if window else FULL for window in windows],
    }


def from_config(config: Config) -> spec.DecoderOnlySpec:
    return qwen2(**read(config, "Qwen2", kv_heads=32, max_len=32768), **read_windows(config))


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    return {**write(model, "Qwen2"), **write_windows(model)}


_SMALL = {"vocab_size": 151936, "num_kv_heads": 2, "tied": True}

FAMILY = Family(
    name="qwen2",
    model_types=("qwen2",),
    architectures=architectures("Qwen2"),
    build=qwen2,
    presets={
        "qwen2.5-0.5b": preset(896, 14, 24, 4864, **_SMALL),
        "qwen2.5-1.5b": preset(1536, 12, 28, 8960, **_SMALL),
        "qwen2.5-7b": {"max_len": 131072},
    },
    tiny={**TINY, "num_kv_heads": 2, "d_ff": 64, "window": 5, "window_layers": (1,)},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
