"""Write tiny models as GGUF files, with llama.cpp's names and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 40}
GEMMA = {**SIZES, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 3, "pad_token_id": 0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**SIZES, "rope_theta": 77.0, "rms_norm_eps": 1e-4}),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "head_dim": 32}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA),
    "gemma3": (
        "Gemma3ForCausalLM",
        {**GEMMA, "num_hidden_layers": 7, "rope_theta": 500.0},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 96, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 40},
    ),
}
_LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA = {
    **_LLAMA,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def write_model(
    path: Path, kind: str, model: Any, quantization: str = "F32", metadata: dict[str, Any] | None = None
) -> Path:
    """Write a transformers model. quantization: type of the matrices, the name of a GGML type."""
    config, writer = model.config, gguf.GGUFWriter(path, kind)
    if kind == "gpt2":
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_context_length(config.n_positions)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        rope = config.rope_parameters
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if kind != "llama":
            writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    if kind.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if not (name == "lm_head.weight" and tied):
            add_tensor(writer, kind, config, name, tensor, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(
    writer: Any, kind: str, config: Any, name: str, tensor: torch.Tensor, quantization: str
) -> None:
    names = {"gpt2": _GPT2}.get(kind, _GEMMA if kind.startswith("gemma") else _LLAMA)
    module, _, part = name.rpartition(".")
    prefix = ""
    if ".layers." in module or ".h." in module:
        _, _, layer, module = module.split(".", 3)
        prefix = f"blk.{layer}."
    module, values = names[module], tensor.detach()
    if kind == "llama" and module in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if module == "attn_q" else config.num_key_value_heads
        values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    elif kind.startswith("gemma") and module.endswith("norm"):
        values = values + 1
    elif kind == "gpt2" and prefix and values.dim() == 2:
        values = values.T
    array = np.ascontiguousarray(values.numpy())
    if values.dim() < 2:
        writer.add_tensor(f"{prefix}{module}.{part}", array)
        return
    raw = getattr(gguf.GGMLQuantizationType, quantization)
    data = gguf.quants.quantize(array, raw)
    writer.add_tensor(f"{prefix}{module}.{part}", data, raw_dtype=raw)
