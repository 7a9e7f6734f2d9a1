"""Gemma 3, the text model: Gemma 2 with QK norm instead of softcaps, and another rotary base in windows.

Of an image-text checkpoint (`Gemma3ForConditionalGeneration`), only the language model is read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import decoder, read_rotary
from glassformer.families.family import TINY, Config, Family, UnsupportedConfigError, preset, variant
from glassformer.families.gemma2 import EXCLUDED, OPTIONS, read_gemma, read_softcap, write_gemma
from glassformer.families.llama import table as llama_table
from glassformer.families.qwen2 import FULL, SLIDING
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored

STEM = "Gemma3Text"  # of all classes but the language model's
CAUSAL_LM, IMAGE_TEXT = "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"
# the 1B model
gemma3 = variant(
    decoder,
    f"attention_softcap {EXCLUDED}",
    **{**OPTIONS, "window": 512},
    **preset(1152, 4, 26, 6912, num_kv_heads=1, head_dim=256),
    vocab_size=262144,
    max_len=32768,
    sliding_window_pattern=6,
    rope_base=1000000.0,
    local_rope_base=10000.0,
    qk_norm=True,
)


def read_rotaries(config: Config) -> tuple[spec.RotarySpec, spec.RotarySpec]:
    """Return the rotary positions of layers without and with a window, from old or new keys."""
    both: dict[str, Any] = config.get("rope_parameters", {})
    max_len = config.get("max_position_embeddings", 131072)
    local_base = config.get("rope_local_base_freq", 10000.0)
    outer = {key: config.values.get(key) for key in ("rope_theta", "rope_scaling")}
    full = Config({**outer, "rope_parameters": both.get(FULL)}, config.where)
    local = Config({"rope_parameters": both.get(SLIDING)}, config.where)
    rotaries = (
        read_rotary(full, base=1000000.0, max_len=max_len),
        read_rotary(local, base=local_base, max_len=max_len),
    )
    if rotaries[1].scaling is not None:
        raise UnsupportedConfigError(config.where, f"rope_parameters ({SLIDING})", "scaled", "default")
    return rotaries


def from_config(config: Config) -> spec.DecoderOnlySpec:
    if config.architecture == IMAGE_TEXT:  # from here on, it is the config of a language model
        config.values = text_values(config)
    config.only("attn_logit_softcapping", None)
    full, local = read_rotaries(config)
    pattern = config.get("sliding_window_pattern", 6, "_sliding_window_pattern")
    options = read_gemma(config, STEM, pattern=pattern, rotary=full, max_len=131072, vocab_size=262208)
    options["logit_softcap"] = read_softcap(config, "final_logit_softcapping", None)
    return gemma3(**options, local_rope_base=local.base)


# published image-text configs leave out what equals these
_TEXT_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
}


def text_values(config: Config) -> dict[str, Any]:
    """Return the config of the language model of an image-text model."""
    outer: dict[str, Any] = {
        key: config.values[key] for key in ("bos_token_id", "eos_token_id") if key in config.values
    }
    text: dict[str, Any] = config.need("text_config", dict)
    return {**_TEXT_DEFAULTS, **outer, **text, "architectures": [CAUSAL_LM], "model_type": "gemma3_text"}


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnlySpec)
    config = {**write_gemma(model, STEM), "model_type": "gemma3_text"}
    if isinstance(model.head, spec.LanguageModelSpec):
        config["architectures"] = [CAUSAL_LM]
    local = model.decoder.local_position
    config["rope_local_base_freq"] = local.base if isinstance(local, spec.RotarySpec) else 10000.0
    return config


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    weights = llama_table(model, names)
    # of image-text checkpoints, in the older and the newer layout
    images = Ignored(("{,model.}vision_tower.*", "{,model.}multi_modal_projector.*"))
    prefixes = ("language_model.model.", "model.language_model.")
    return replace(weights, ops=(*weights.ops, images), base=(*weights.base, *prefixes))


_LONG = {
    "vocab_size": 262208,
    "max_len": 131072,
    "window": 1024,
    "rope_scaling": spec.LinearScalingSpec(factor=8.0),
}

FAMILY = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    architectures=(CAUSAL_LM, "Gemma3TextModel", "Gemma3TextForSequenceClassification", IMAGE_TEXT),
    build=gemma3,
    presets={
        "gemma-3-270m": preset(640, 4, 18, 2048),
        "gemma-3-1b": {},
        "gemma-3-4b": preset(2560, 8, 34, 10240, num_kv_heads=4, **_LONG),
        "gemma-3-12b": preset(3840, 16, 48, 15360, num_kv_heads=8, **_LONG),
        "gemma-3-27b": preset(5376, 32, 62, 21504, num_kv_heads=16, head_dim=128, scale=168**-0.5, **_LONG),
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64, "window": 5, "sliding_window_pattern": 2},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
