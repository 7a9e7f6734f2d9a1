"""GGUF files (llama.cpp) as published checkpoints: metadata -> config, tensors -> published names and values.

The family of the config then reads them like a folder from the Hub. What llama.cpp changes when it converts a
model is reverted here: rows of rotated queries and keys (llama), weights of norms (gemma), and transposed
matrices (gpt2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import FileProblemError, InvalidValueError, UnsupportedError
from glassformer.weights.gguf import GGUFFile
from glassformer.weights.ops import PermuteRotary

# the key after "ARCHITECTURE." in the metadata -> key of the config
_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
_OTHERS = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_GPT2 = {
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "context_length": "n_positions",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}

_LAYER = "model.layers.{}."
_ATTENTION = {
    **{f"attn_{x}": f"{_LAYER}self_attn.{x}_proj" for x in "qkv"},
    **{f"attn_{x}_norm": f"{_LAYER}self_attn.{x}_norm" for x in "qk"},
    "attn_output": f"{_LAYER}self_attn.o_proj",
    "attn_norm": f"{_LAYER}input_layernorm",
    **{f"ffn_{x}": f"{_LAYER}mlp.{x}_proj" for x in ("gate", "up", "down")},
}
_LLAMA_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    **_ATTENTION,
    "ffn_norm": f"{_LAYER}post_attention_layernorm",
}
_GEMMA_NAMES = {
    **_LLAMA_NAMES,
    "post_attention_norm": f"{_LAYER}post_attention_layernorm",
    "ffn_norm": f"{_LAYER}pre_feedforward_layernorm",
    "post_ffw_norm": f"{_LAYER}post_feedforward_layernorm",
}
_GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    **{
        name: f"transformer.h.{{}}.{theirs}"
        for name, theirs in {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        }.items()
    },
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class GGUFArchitecture:
    """How the files of one llama.cpp architecture are read.

    keys: metadata key -> config key; those of `_SIZES` are required. names: tensor -> published module.
    more: function that returns config keys that depend on the metadata.
    """

    model_type: str
    model_class: str
    keys: Mapping[str, str]
    names: Mapping[str, str]
    more: Callable[[GGUFFile, dict[str, Any]], dict[str, Any]] = lambda file, config: {}


def _gemma(large: int) -> Callable[[GGUFFile, dict[str, Any]], dict[str, Any]]:
    """Return a function for config keys that llama.cpp derives from the size of a Gemma model.

    large: number of layers of the 27B model, whose scores are scaled by the width per head.
    """

    def more(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
        per_head = config["hidden_size"] // config["num_attention_heads"]
        scalar = per_head if config["num_hidden_layers"] == large else config["head_dim"]
        caps = {
            key: file.metadata.get(f"{config['model_type'].removesuffix('_text')}.{key}")
            for key in ("attn_logit_softcapping", "final_logit_softcapping")
        }
        return {"query_pre_attn_scalar": scalar, **caps}

    return more


def _llama_rope(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary scaling of LLaMA 3.1 and later, which is stored as one factor per frequency."""
    if "rope_freqs.weight" not in file:
        return {}
    factors = file["rope_freqs.weight"].dequantize().double()  # (K / 2,)
    factor, width = round(float(factors.max()), 4), 2 * len(factors)
    frequency = config.get("rope_theta", 10000.0) ** -(torch.arange(0, width, 2).double() / width)
    bands = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    mix = ((8192 * frequency / (2 * math.pi) - 1.0) / 3.0).clamp(0, 1)
    if not torch.allclose(1 / ((1 - mix) / factor + mix), factors, rtol=1e-3):
        raise UnsupportedError(f"reading {file.path.name}", "these rotary frequencies (rope_freqs.weight)")
    scaling = {"rope_type": "llama3", **bands, "original_max_position_embeddings": 8192}
    return {"rope_scaling": scaling}


_LLAMA = {**_SIZES, **_OTHERS}
_GEMMA = {**_LLAMA, "attention.sliding_window": "sliding_window"}
ARCHITECTURES = {
    "llama": GGUFArchitecture("llama", "LlamaForCausalLM", _LLAMA, _LLAMA_NAMES, more=_llama_rope),
    "qwen2": GGUFArchitecture("qwen2", "Qwen2ForCausalLM", _LLAMA, _LLAMA_NAMES),
    "qwen3": GGUFArchitecture("qwen3", "Qwen3ForCausalLM", _LLAMA, _LLAMA_NAMES),
    "gemma2": GGUFArchitecture("gemma2", "Gemma2ForCausalLM", _GEMMA, _GEMMA_NAMES, more=_gemma(46)),
    "gemma3": GGUFArchitecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_GEMMA, "rope.freq_base_swa": "rope_local_base_freq"},
        _GEMMA_NAMES,
        more=_gemma(62),
    ),
    "gpt2": GGUFArchitecture("gpt2", "GPT2LMHeadModel", _GPT2, _GPT2_NAMES),
}


def generation_ids(file: GGUFFile) -> dict[str, Any]:
    """Return the content of generation_config.json: special tokens, and all tokens that end a text."""
    ids = {
        key: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "padding")
    }
    ends = list(dict.fromkeys(ids[key] for key in ("eos", "eot") if ids[key] is not None))
    config = {
        "bos_token_id": ids["bos"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding"],
    }
    return {key: value for key, value in config.items() if value is not None}


def read_gguf(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config, and the dequantized tensors by published name."""
    kind = file.metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UnsupportedError(
            f"reading {file.path.name}", f"the GGUF architecture {kind!r}", hint=f"supported: {supported}"
        )
    architecture = ARCHITECTURES[kind]
    config = _config(file, kind, architecture)
    return config, _tensors(file, kind, architecture, config)


def _config(file: GGUFFile, kind: str, architecture: GGUFArchitecture) -> dict[str, Any]:
    config: dict[str, Any] = {"model_type": architecture.model_type}
    config["architectures"] = [architecture.model_class]
    for key, name in architecture.keys.items():
        value = file.metadata.get(f"{kind}.{key}")
        if value is not None:
            config[name] = value
        elif key in _SIZES:
            raise FileProblemError(file.path, f"lacks the metadata {kind}.{key}")
        if isinstance(value, Sequence) or (key in _SIZES and not isinstance(value, int)):
            raise InvalidValueError(f"{file.path}: {kind}.{key}", value, "one integer")
    if "token_embd.weight" not in file:
        raise FileProblemError(file.path, "has no token embeddings", hint="is it a part of a split model?")
    # before anything is built in that size
    layers = {match[1] for match in map(_LAYER_TENSOR.fullmatch, file) if match}
    if file.metadata[f"{kind}.block_count"] != len(layers):
        raise FileProblemError(
            file.path,
            f"has {len(layers)} layers, not the number in {kind}.block_count",
            hint="is it a part of a split model?",
        )
    scaling = file.metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling == "linear":
        factor = file.metadata.get(f"{kind}.rope.scaling.factor", 1.0)
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise UnsupportedError(f"reading {file.path.name}", f"rotary scaling of type {scaling!r}")
    config["vocab_size"] = file["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file
    config["attention_bias"] = "blk.0.attn_q.bias" in file and kind != "qwen2"
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{role}_token_id"] = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    return {**config, **architecture.more(file, config)}


def _tensors(
    file: GGUFFile, kind: str, architecture: GGUFArchitecture, config: dict[str, Any]
) -> dict[str, Tensor]:
    heads = config.get("num_attention_heads", 1)
    groups = config.get("num_key_value_heads") or heads
    tensors: dict[str, Tensor] = {}
    for name, stored in file.items():
        if name == "rope_freqs.weight":  # read with the config
            continue
        layer = _LAYER_TENSOR.fullmatch(name)
        module, _, part = (layer[2] if layer else name).rpartition(".")
        if module not in architecture.names:
            raise UnsupportedError(f"reading {file.path.name}", f"the tensor {name!r} in a {kind} model")
        tensor = stored.dequantize()
        if kind == "llama" and module in ("attn_q", "attn_k"):
            count = heads if module == "attn_q" else groups
            if tensor.shape[0] % (2 * count):
                raise FileProblemError(file.path, f"has a tensor {name!r} of {tensor.shape[0]} rows")
            permutation = PermuteRotary("", "", num_heads=count, head_dim=tensor.shape[0] // count)
            (tensor,) = permutation.load([tensor])
        elif kind.startswith("gemma") and module.endswith("norm"):
            tensor = tensor.float() - 1  # stored as 1 + weight
        elif kind == "gpt2" and tensor.dim() == 2 and layer:
            tensor = tensor.t()
        tensors[f"{architecture.names[module].format(layer[1] if layer else '')}.{part}"] = tensor
    return tensors
