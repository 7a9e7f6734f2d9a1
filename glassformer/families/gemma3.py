"""Gemma 3, the text model: Gemma 2 with QK norm instead of softcaps, and another rotary base in windows.

Of an image-text checkpoint (`Gemma3ForConditionalGeneration`), only the language model is read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.decoder import DECODER, decoder_heads, read_rotary, write_rotary
from glassformer.families.family import TINY, Family, preset
from glassformer.families.gemma2 import OPTIONS, gemma_keys, softcap
from glassformer.families.keys import Options, Rule, fixed
from glassformer.families.llama import table as llama_table
from glassformer.families.qwen2 import FULL, SLIDING
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored

CAUSAL_LM, IMAGE_TEXT = "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"


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


def _use_text_config(config: Config, options: Options) -> dict[str, Any]:
    """Replace the config of an image-text model by that of its language model."""
    if config.architecture == IMAGE_TEXT:
        ids: dict[str, Any] = {
            key: config.values[key] for key in ("bos_token_id", "eos_token_id") if key in config.values
        }
        text: dict[str, Any] = config.need("text_config", dict)
        names = {"architectures": [CAUSAL_LM], "model_type": "gemma3_text"}
        config.values = {**_TEXT_DEFAULTS, **ids, **text, **names}
    return {}


def _read_rotary(config: Config, options: Options) -> dict[str, Any]:
    """Return the rotary positions of layers without and with a window, from old or new keys."""
    both: dict[str, Any] = config.get("rope_parameters", {})
    local_base, max_len = config.get("rope_local_base_freq", 10000.0), options["max_len"]
    outer = {key: config.values.get(key) for key in ("rope_theta", "rope_scaling")}
    full = Config({**outer, "rope_parameters": both.get(FULL)}, config.where)
    local = Config({"rope_parameters": both.get(SLIDING)}, config.where)
    rotary = read_rotary(full, base=1000000.0, max_len=max_len)
    local_rotary = read_rotary(local, base=local_base, max_len=max_len)
    if local_rotary.scaling is not None:
        raise UnsupportedConfigError(config.where, f"rope_parameters ({SLIDING})", "scaled", "default")
    return {"rope_base": rotary.base, "rope_scaling": rotary.scaling, "local_rope_base": local_rotary.base}


def _write_rotary(options: Options) -> dict[str, Any]:
    return {**write_rotary(options), "rope_local_base_freq": options["local_rope_base"] or 10000.0}


_KEYS = (
    Rule((), _use_text_config),
    *gemma_keys(
        fixed("attn_logit_softcapping", None),
        Rule(("rope_base", "rope_scaling", "local_rope_base"), _read_rotary, _write_rotary),
        softcap("final_logit_softcapping", "logit_softcap", None),
        pattern=6,
        vocab_size=262208,
        max_len=131072,
    ),
)
_NAMED = decoder_heads("Gemma3Text")
_HEADS = {
    CAUSAL_LM: _NAMED["Gemma3TextForCausalLM"],
    **{name: _NAMED[name] for name in ("Gemma3TextModel", "Gemma3TextForSequenceClassification")},
    IMAGE_TEXT: _NAMED["Gemma3TextForCausalLM"],
}


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
    model_type="gemma3_text",
    builder=DECODER,
    keys=_KEYS,
    # the 1B model
    defaults={
        **{**OPTIONS, "window": 512},
        **preset(1152, 4, 26, 6912, num_kv_heads=1, head_dim=256),
        "vocab_size": 262144,
        "max_len": 32768,
        "sliding_window_pattern": 6,
        "rope_base": 1000000.0,
        "local_rope_base": 10000.0,
        "qk_norm": True,
    },
    more_options=("sliding_window_pattern", "qk_norm"),
    heads=_HEADS,
    presets={
        "gemma-3-270m": preset(640, 4, 18, 2048),
        "gemma-3-1b": {},
        "gemma-3-4b": preset(2560, 8, 34, 10240, num_kv_heads=4, **_LONG),
        "gemma-3-12b": preset(3840, 16, 48, 15360, num_kv_heads=8, **_LONG),
        "gemma-3-27b": preset(5376, 32, 62, 21504, num_kv_heads=16, head_dim=128, scale=168**-0.5, **_LONG),
    },
    tiny={**TINY, "num_kv_heads": 2, "head_dim": 10, "d_ff": 64, "window": 5, "sliding_window_pattern": 2},
    weight_table=table,
)
