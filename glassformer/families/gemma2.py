"""Gemma 2: norms before and after each sublayer, softcapped scores and logits, alternating windows."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import decoder
from glassformer.families.family import TINY, Config, Family, Key, preset, spec_options, variant
from glassformer.families.llama import BIAS, KEYS, read, table, write
from glassformer.families.qwen2 import FULL, SLIDING

EXCLUDED = """wiring norm gated position partial_rotary_factor qkv_bias ffn_bias dropout embed_dropout
    scale_embedding logit_scale init"""
OPTIONS: dict[str, Any] = {
    "wiring": "sandwich",
    "norm": "rms_zero_centered",
    "norm_eps": 1e-6,
    "activation": "gelu_tanh",
    "scale_embedding": True,
    "tied": True,
    "window": 4096,
}
# the 2B model
gemma2 = variant(
    decoder,
    f"local_rope_base qk_norm {EXCLUDED}",
    **OPTIONS,
    **preset(2304, 8, 26, 9216, num_kv_heads=4, head_dim=256),
    vocab_size=256000,
    max_len=8192,
    sliding_window_pattern=2,
    attention_softcap=50.0,
    logit_softcap=30.0,
)
_ACTIVATION = Key("hidden_activation", "activation", "gelu_pytorch_tanh")
GEMMA_KEYS = (*(key for key in KEYS if key.ours != "activation"), _ACTIVATION, BIAS)


def read_gemma(config: Config, stem: str, *, pattern: int, **defaults: Any) -> dict[str, Any]:
    """Read the options of a config with Gemma's keys.

    pattern: by default, all layers have the window except every n-th. defaults: used for absent keys.
    """
    config.only("use_bidirectional_attention", None, False)
    options = read(config, stem, GEMMA_KEYS, kv_heads=4, head_dim=256, norm_eps=1e-6, tied=True, **defaults)
    layers, scalar = options["num_layers"], config.get("query_pre_attn_scalar", 256.0)
    kinds = config.get("layer_types", [SLIDING if (n + 1) % pattern else FULL for n in range(layers)])
    if len(kinds) != layers or not set(kinds) <= {SLIDING, FULL}:
        config.only("layer_types", None)
    return {
        **options,
        "scale": None if scalar == options["head_dim"] else scalar**-0.5,
        "window": config.get("sliding_window", 4096),
        "window_layers": tuple(n for n, kind in enumerate(kinds) if kind == SLIDING),
    }


def write_gemma(model: spec.ModelSpec, stem: str) -> dict[str, Any]:
    """Return the config, with Gemma's keys, of a spec; the inverse of `read_gemma`."""
    assert isinstance(model, spec.DecoderOnlySpec)
    stack, options = model.decoder, spec_options(model)
    scale = stack.block.attention.scale
    windows = [stack.block_at(n).attention.window for n in range(stack.num_layers)]
    config = {
        **write(model, stem, GEMMA_KEYS),
        "query_pre_attn_scalar": options["head_dim"] if scale is None else round(scale**-2),
        "sliding_window": next((window for window in windows if window), 4096),
        "layer_types": [SLIDING if window else FULL for window in windows],
        "final_logit_softcapping": getattr(model.head, "softcap", None),
    }
    if options["activation"] == "gelu_tanh":
        config["hidden_activation"] = "gelu_pytorch_tanh"
    return config


def read_softcap(config: Config, key: str, default: float | None) -> float | None:
    """Return a softcap; null in the config means none."""
    return config.maybe(key, float) if key in config.values else default


def from_config(config: Config) -> spec.DecoderOnlySpec:
    options = read_gemma(config, "Gemma2", pattern=2, max_len=8192)
    options["attention_softcap"] = read_softcap(config, "attn_logit_softcapping", 50.0)
    options["logit_softcap"] = read_softcap(config, "final_logit_softcapping", 30.0)
    return gemma2(**options)


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnlySpec)
    softcap = model.decoder.block.attention.softcap
    return {**write_gemma(model, "Gemma2"), "attn_logit_softcapping": softcap}


FAMILY = Family(
    name="gemma2",
    model_types=("gemma2",),
    architectures=tuple(
        f"Gemma2{kind}"
        for kind in ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification")
    ),
    build=gemma2,
    presets={
        "gemma-2-2b": {},
        "gemma-2-9b": preset(3584, 16, 42, 14336, num_kv_heads=8),
        "gemma-2-27b": preset(4608, 32, 46, 36864, num_kv_heads=16, head_dim=128, scale=144**-0.5),
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64, "window": 5},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
