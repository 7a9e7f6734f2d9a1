"""LLaMA: pre-norm decoder with RMSNorm, rotary positions, gated SiLU, grouped key/value heads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import DECODER, PAD, decoder_heads, head_rows, rotary
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, Keys, Rule, activation, fixed, with_defaults
from glassformer.families.rows import model_prefixes
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, PermuteRotary, Rename, expand

KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("num_key_value_heads", "num_kv_heads", 0, null=0),  # null: as many as query heads
    Key("head_dim", default=0),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 2048),
    activation("hidden_act", "silu"),
    Key("rms_norm_eps", "norm_eps", 1e-6),
    Key("attention_dropout", default=0.0),
    Key("tie_word_embeddings", "tied", False),
    fixed("rope_interleaved", None, False),
)
BIAS = Key("attention_bias", default=False)
# options that the configs of related families express
RELATED = ("window", "window_layers", "attention_bias", "qkv_bias", "ffn_bias", "qk_norm")


def llama_keys(*more: Key | Rule, rope_base: float = 10000.0, **defaults: Any) -> Keys:
    """Return LLaMA's keys with other defaults, and further ones that may replace a key of the same option."""
    replaced = {option for key in more for option in key.options}
    keys = (*with_defaults(KEYS, **defaults), rotary(rope_base), PAD)
    return (*(key for key in keys if not replaced & {*key.options}), *more)


def table(
    model: Any, names: Collection[str], *, answer: str = "transformer.", interleaved: bool = False
) -> WeightTable:
    """Return the weight table. answer: name prefix under a question-answering head.

    interleaved: rotary pairs are adjacent rows in the published query and key weights; Glassformer uses the
    half-split layout.
    """
    stack, block, attention = model.decoder, model.decoder.block, model.decoder.block.attention
    theirs, ours = "{base}layers.{i}", "decoder.blocks.{i}"
    own = f"{theirs}.self_attn.", f"{ours}.self_attn."
    width = attention.head_dim or stack.d_model // attention.num_heads
    rows: tuple[Op, ...] = tuple(
        PermuteRotary(
            f"{own[0]}{which}_proj.{{a}}", f"{own[1]}{which}_proj.{{a}}", num_heads=heads, head_dim=width
        )
        if interleaved
        else Rename(f"{own[0]}{which}_proj.{{a}}", f"{own[1]}{which}_proj.{{a}}")
        for which, heads in (("q", attention.num_heads), ("k", attention.num_kv_heads or attention.num_heads))
    )
    rows += (
        Rename(f"{own[0]}v_proj.{{a}}", f"{own[1]}v_proj.{{a}}"),
        Rename(f"{own[0]}o_proj.{{o}}", f"{own[1]}out_proj.{{o}}"),
        Rename(f"{theirs}.mlp.{{gate,up,down}}_proj.{{f}}", f"{ours}.ffn.{{gate,up,down}}.{{f}}"),
        Rename(f"{theirs}.input_layernorm.weight", f"{ours}.norm_self.weight"),
    )
    if block.wiring == "sandwich":
        rows += (
            Rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norm_self_out.weight"),
            Rename(f"{theirs}.pre_feedforward_layernorm.weight", f"{ours}.norm_ffn.weight"),
            Rename(f"{theirs}.post_feedforward_layernorm.weight", f"{ours}.norm_ffn_out.weight"),
        )
    elif block.wiring != "parallel":
        rows += (Rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norm_ffn.weight"),)
    if attention.qk_norm is not None:
        rows += (Rename(f"{own[0]}{{q,k}}_norm.weight", f"{own[1]}{{q,k}}_norm.weight"),)
    rows = expand(
        rows,
        i=stack.num_layers,
        a=("weight", "bias") if "q" in attention.biases else ("weight",),
        o=("weight", "bias") if "out" in attention.biases else ("weight",),
        f=("weight", "bias") if block.feed_forward.biases else ("weight",),
    )
    rows += (
        Rename("{base}norm.weight", "decoder.final_norm.weight"),
        Ignored("{base}layers.*.self_attn.rotary_emb.inv_freq"),  # computed here; only in older files
        *head_rows(model),
    )
    prefixes = (answer, "model.") if isinstance(model.head, spec.AnswerSpec) else ("model.",)
    return WeightTable(rows, base=model_prefixes(model.head, *prefixes))


_LLAMA_3 = {"vocab_size": 128256, "num_kv_heads": 8, "max_len": 8192, "rope_base": 500000.0}
_SMOLLM2 = {"vocab_size": 49152, "max_len": 8192, "rope_base": 100000.0, "tied": True}


def _long(factor: float, **options: Any) -> dict[str, Any]:
    """Return preset options of LLaMA 3.1 and later: RoPE scaled by `factor`, up to 131072 positions."""
    bands = spec.BandScalingSpec(
        factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192
    )
    return {**_LLAMA_3, "max_len": 131072, "rope_scaling": bands, **options}


FAMILY = Family(
    name="llama",
    builder=DECODER,
    keys=llama_keys(BIAS, Key("mlp_bias", "ffn_bias", False), fixed("pretraining_tp", 1, None)),
    defaults={"d_ff": 11008},  # LLaMA 2 with 7 billion parameters
    more_options=RELATED,
    heads=decoder_heads("Llama"),
    presets={
        "llama-2-7b": {},
        "llama-2-13b": preset(5120, 40, 40, 13824),
        "llama-2-70b": preset(8192, 64, 80, 28672, num_kv_heads=8),
        "llama-3-8b": {**_LLAMA_3, "d_ff": 14336},
        "llama-3-70b": preset(8192, 64, 80, 28672, **_LLAMA_3),
        "llama-3.1-8b": _long(8.0, d_ff=14336),
        "llama-3.2-1b": preset(2048, 32, 16, 8192, **_long(32.0, tied=True)),
        "llama-3.2-3b": preset(3072, 24, 28, 8192, **_long(32.0, tied=True)),
        "smollm2-135m": preset(576, 9, 30, 1536, num_kv_heads=3, **_SMOLLM2),
        "smollm2-360m": preset(960, 15, 32, 2560, num_kv_heads=5, **_SMOLLM2),
        "tinyllama-1.1b": preset(2048, 32, 22, 5632, num_kv_heads=4, max_len=2048),
    },
    tiny={**TINY, "num_kv_heads": 2, "d_ff": 64},
    weight_table=table,
)
