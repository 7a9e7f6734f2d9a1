"""LLaMA: pre-norm decoder with RMSNorm, rotary positions, gated SiLU, grouped key/value heads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from glassformer.core import spec
from glassformer.families.causal_heads import (
    architectures,
    head_rows,
    read_head,
    read_pad,
    write_head,
)
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, Family, bases
from glassformer.families.rope import Scaling, read_rotary, write_rotary
from glassformer.weights.convert import Table
from glassformer.weights.ops import Ignored, Op, Rename, expand


def llama(
    *,
    vocab_size: int = 32000,
    d_model: int = 4096,
    num_heads: int = 32,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    d_ff: int = 11008,
    num_layers: int = 32,
    max_len: int = 4096,
    window: int | None = None,
    window_layers: tuple[int, ...] | None = None,
    activation: spec.Activation = "silu",
    norm_eps: float = 1e-5,
    rope_base: float = 10000.0,
    rope_scaling: Scaling = None,
    attention_bias: bool = False,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    ffn_bias: bool = False,
    attention_dropout: float = 0.0,
    pad_id: int | None = None,
    tied: bool = False,
    head: spec.Head | None = None,
) -> spec.DecoderOnly:
    """LLaMA's spec; the defaults are those of LLaMA 2 with 7 thousand million parameters.

    window_layers: the layers that have the window, if not all. qkv_bias: biases without that of `out`.
    qk_norm: queries and keys of each head are normalized before they are rotated.
    """
    norm = spec.RMSNorm(eps=norm_eps)
    block = spec.Block(
        attention=spec.Attention(
            num_heads=num_heads,
            num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
            head_dim=None if head_dim and head_dim * num_heads == d_model else head_dim,
            biases=("q", "k", "v", "out") if attention_bias else ("q", "k", "v") if qkv_bias else (),
            window=window,
            dropout=attention_dropout,
            qk_norm=norm if qk_norm else None,
        ),
        feed_forward=spec.GatedFeedForward(
            d_ff=d_ff, activation=activation, biases=("up", "gate", "down") if ffn_bias else ()
        ),
        norm=norm,
        wiring="pre",
    )
    pattern: tuple[spec.Block, ...] = ()
    if window_layers is not None:
        full = replace(block, attention=replace(block.attention, window=None))
        pattern = tuple(block if n in window_layers else full for n in range(num_layers))
    return spec.DecoderOnly(
        input=spec.Tokens(vocab_size=vocab_size, pad_id=pad_id),
        decoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=block,
            pattern=pattern,
            causal=True,
            position=spec.Rotary(base=rope_base, scaling=rope_scaling),
            final_norm=norm,
        ),
        head=head or spec.LanguageModel(vocab_size=vocab_size),
        tied=("head",) if tied and head is None else (),
        max_len=max_len,
    )


def read_words(config: Config, stem: str, *, max_len: int, kv_heads: int = 0) -> dict[str, Any]:
    """The words of `llama` in a config of this layout; `max_len` and `kv_heads` are the class's defaults."""
    max_len = config.get("max_position_embeddings", max_len)
    rotary = read_rotary(config, max_len=max_len)
    head = read_head(config, stem)
    config.only("rope_interleaved", None, False)
    kv_heads = 0 if "num_key_value_heads" in config.values else kv_heads  # null means as many as queries
    return {
        "vocab_size": config.need("vocab_size", int),
        "d_model": config.need("hidden_size", int),
        "num_heads": config.need("num_attention_heads", int),
        "num_kv_heads": config.get("num_key_value_heads", kv_heads) or None,
        "head_dim": config.get("head_dim", 0) or None,
        "d_ff": config.need("intermediate_size", int),
        "num_layers": config.need("num_hidden_layers", int),
        "max_len": max_len,
        "activation": config.choose("hidden_act", ACTIVATIONS, "silu"),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_base": rotary.base,
        "rope_scaling": rotary.scaling,
        "attention_dropout": config.get("attention_dropout", 0.0),
        "pad_id": read_pad(config, head),
        "tied": config.get("tie_word_embeddings", False),
        "head": head,
    }


def from_config(config: Config) -> spec.DecoderOnly:
    config.only("pretraining_tp", 1, None, default=1)
    return llama(
        **read_words(config, "Llama", max_len=2048),
        attention_bias=config.get("attention_bias", False),
        ffn_bias=config.get("mlp_bias", False),
    )


def write_words(model: spec.Model, stem: str) -> dict[str, Any]:
    """What a config of this layout says of a spec: `read_words` backwards."""
    assert isinstance(model, spec.DecoderOnly) and isinstance(model.input, spec.Tokens)
    stack, attention, ffn = model.decoder, model.decoder.block.attention, model.decoder.block.feed_forward
    assert isinstance(stack.block.norm, spec.RMSNorm) and isinstance(stack.position, spec.Rotary)
    return {
        **write_head(model.head, stem),
        "vocab_size": model.input.vocab_size,
        "hidden_size": stack.d_model,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_dim or stack.d_model // attention.num_heads,
        "intermediate_size": ffn.d_ff,
        "num_hidden_layers": stack.num_layers,
        "max_position_embeddings": model.max_len,
        "hidden_act": PUBLISHED[ffn.activation],
        "rms_norm_eps": stack.block.norm.eps,
        **write_rotary(stack.position),
        "attention_dropout": attention.dropout,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": bool(model.tied),
    }


def to_config(model: spec.Model) -> dict[str, Any]:
    words = write_words(model, "Llama")
    assert isinstance(model, spec.DecoderOnly)
    block = model.decoder.block
    return {
        "model_type": "llama",
        **words,
        "attention_bias": bool(block.attention.biases),
        "mlp_bias": bool(block.feed_forward.biases),
    }


def rows(model: spec.DecoderOnly) -> tuple[Op, ...]:
    """The rows of this layout, head included."""
    block = model.decoder.block
    qkv, out = (
        ("weight", "bias") if part in block.attention.biases else ("weight",) for part in ("q", "out")
    )
    ffn = ("weight", "bias") if block.feed_forward.biases else ("weight",)
    theirs, ours = "{base}layers.{i}", "decoder.blocks.{i}"
    layers = expand(
        (
            Rename(f"{theirs}.input_layernorm.weight", f"{ours}.norm_self.weight"),
            Rename(f"{theirs}.self_attn.{{q,k,v}}_proj.{{a}}", f"{ours}.self_attn.{{q,k,v}}_proj.{{a}}"),
            Rename(f"{theirs}.self_attn.o_proj.{{o}}", f"{ours}.self_attn.out_proj.{{o}}"),
            Rename(f"{theirs}.post_attention_layernorm.weight", f"{ours}.norm_ffn.weight"),
            Rename(f"{theirs}.mlp.{{gate,up,down}}_proj.{{f}}", f"{ours}.ffn.{{gate,up,down}}.{{f}}"),
        ),
        i=model.decoder.num_layers,
        a=qkv,
        o=out,
        f=ffn,
    )
    if block.attention.qk_norm is not None:
        norms = Rename(f"{theirs}.self_attn.{{q,k}}_norm.weight", f"{ours}.self_attn.{{q,k}}_norm.weight")
        layers = (*layers, *expand((norms,), i=model.decoder.num_layers))
    return (
        *layers,
        Rename("{base}norm.weight", "decoder.final_norm.weight"),
        Ignored("{base}layers.*.self_attn.rotary_emb.inv_freq"),  # a formula that older files carry
        *head_rows(model),
    )


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.DecoderOnly)
    if isinstance(model.head, spec.Answer):
        return Table(rows(model), base=bases(model.head, "transformer.", "model."))
    return Table(rows(model), base=bases(model.head, "model."))


_LLAMA_3 = {"vocab_size": 128256, "num_kv_heads": 8, "d_ff": 14336, "max_len": 8192, "rope_base": 500000.0}
_SMOLLM2 = {"vocab_size": 49152, "max_len": 8192, "rope_base": 100000.0, "tied": True}


def _long(factor: float) -> dict[str, Any]:
    """LLaMA 3.1 and later: 8192 positions stretched to 131072."""
    bands = spec.BandScaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192)
    return {"max_len": 131072, "rope_scaling": bands}


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    architectures=architectures("Llama"),
    build=llama,
    presets={
        "llama-2-7b": {},
        "llama-2-13b": {"d_model": 5120, "num_heads": 40, "d_ff": 13824, "num_layers": 40},
        "llama-2-70b": {
            "d_model": 8192,
            "num_heads": 64,
            "num_kv_heads": 8,
            "d_ff": 28672,
            "num_layers": 80,
        },
        "llama-3-8b": _LLAMA_3,
        "llama-3-70b": {**_LLAMA_3, "d_model": 8192, "num_heads": 64, "d_ff": 28672, "num_layers": 80},
        "llama-3.1-8b": {**_LLAMA_3, **_long(8.0)},
        "llama-3.2-1b": {
            **_LLAMA_3,
            **_long(32.0),
            "d_model": 2048,
            "d_ff": 8192,
            "num_layers": 16,
            "tied": True,
        },
        "llama-3.2-3b": {
            **_LLAMA_3,
            **_long(32.0),
            "d_model": 3072,
            "num_heads": 24,
            "d_ff": 8192,
            "num_layers": 28,
            "tied": True,
        },
        "smollm2-135m": {
            **_SMOLLM2,
            "d_model": 576,
            "num_heads": 9,
            "num_kv_heads": 3,
            "d_ff": 1536,
            "num_layers": 30,
        },
        "smollm2-360m": {
            **_SMOLLM2,
            "d_model": 960,
            "num_heads": 15,
            "num_kv_heads": 5,
            "d_ff": 2560,
            "num_layers": 32,
        },
        "tinyllama-1.1b": {
            "d_model": 2048,
            "num_kv_heads": 4,
            "d_ff": 5632,
            "num_layers": 22,
            "max_len": 2048,
        },
    },
    tiny={
        "vocab_size": 101,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ff": 64,
        "num_layers": 2,
        "max_len": 64,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
)
