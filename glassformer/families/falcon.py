"""Falcon: attention and feed-forward side by side (or one after the other), shared key/value heads.

Published files fuse query, key and value rows by group: with G key/value heads, G times [H/G query heads,
one key head, one value head]. That one rule covers the old multi-query layout (G = 1), the old multi-head
one (G = H) and the new grouped one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

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
from glassformer.weights.ops import Ignored, Op, Rename, SplitGroups, expand


def falcon(
    *,
    vocab_size: int = 65024,
    d_model: int = 4544,
    num_heads: int = 71,
    num_kv_heads: int = 1,
    d_ff: int | None = None,
    num_layers: int = 32,
    max_len: int = 2048,
    wiring: Literal["pre", "parallel", "parallel_split"] = "parallel",
    position: Literal["rotary", "alibi"] = "rotary",
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-5,
    rope_base: float = 10000.0,
    rope_scaling: Scaling = None,
    bias: bool = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    pad_id: int | None = None,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.DecoderOnly:
    """Falcon's spec; the defaults are the 7B model's."""
    norm = spec.LayerNorm(eps=norm_eps)
    # the scores' bias is scaled like the scores, and was rounded in training
    alibi = spec.Alibi(scale=(d_model // num_heads) ** -0.5, rounding="bfloat16")
    rotary = spec.Rotary(base=rope_base, scaling=rope_scaling)
    return spec.DecoderOnly(
        input=spec.Tokens(vocab_size=vocab_size, pad_id=pad_id),
        decoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.Block(
                attention=spec.Attention(
                    num_heads=num_heads,
                    num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
                    biases=("q", "k", "v", "out") if bias else (),
                    dropout=attention_dropout,
                ),
                feed_forward=spec.FeedForward(
                    d_ff=d_ff or 4 * d_model,
                    activation=activation,
                    biases=("up", "down") if bias else (),
                ),
                norm=norm,
                wiring=wiring,
                dropout=dropout,
            ),
            causal=True,
            position=alibi if position == "alibi" else rotary,
            final_norm=norm,
        ),
        head=head or spec.LanguageModel(vocab_size=vocab_size),
        tied=("head",) if tied and head is None else (),
        max_len=max_len,
    )


def from_config(config: Config) -> spec.DecoderOnly:
    num_heads = config.need("num_attention_heads", int)
    kv_heads = config.get("num_kv_heads", num_heads)
    multi_query = config.get("multi_query", True)
    parallel = config.get("parallel_attn", True)
    wiring: Literal["pre", "parallel", "parallel_split"] = "parallel" if parallel else "pre"
    norms = config.only("num_ln_in_parallel_attn", None, 1, 2)
    if config.get("new_decoder_architecture", False):
        config.only("parallel_attn", True, default=True)
        wiring = "parallel" if norms == 1 else "parallel_split"
    else:
        if parallel:
            config.only("num_ln_in_parallel_attn", None, 1)
        if not multi_query:
            config.only("num_kv_heads", None, num_heads)
        kv_heads = 1 if multi_query else num_heads
    alibi = config.get("alibi", False)
    max_len = config.get("max_position_embeddings", 2048)
    rotary = spec.Rotary() if alibi else read_rotary(config, max_len=max_len)
    dropout = config.get("hidden_dropout", 0.0)
    head = read_head(config, "Falcon", dropout=dropout)
    return falcon(
        vocab_size=config.need("vocab_size", int),
        d_model=config.need("hidden_size", int, "n_embed"),
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        d_ff=config.get("ffn_hidden_size", 0) or None,
        num_layers=config.need("num_hidden_layers", int),
        max_len=max_len,
        wiring=wiring,
        position="alibi" if alibi else "rotary",
        activation=config.choose("activation", ACTIVATIONS, "gelu"),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        rope_base=rotary.base,
        rope_scaling=rotary.scaling,
        bias=config.get("bias", False),
        dropout=dropout,
        attention_dropout=config.get("attention_dropout", 0.0),
        pad_id=read_pad(config, head),
        tied=config.get("tie_word_embeddings", True),
        head=head,
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnly) and isinstance(model.input, spec.Tokens)
    stack, block = model.decoder, model.decoder.block
    attention, ffn = block.attention, block.feed_forward
    assert isinstance(block.norm, spec.LayerNorm)
    kv_heads = attention.num_kv_heads or attention.num_heads
    grouped = kv_heads not in (1, attention.num_heads)
    return {
        "model_type": "falcon",
        **write_head(model.head, "Falcon"),
        "vocab_size": model.input.vocab_size,
        "hidden_size": stack.d_model,
        "num_attention_heads": attention.num_heads,
        "num_kv_heads": kv_heads,
        "num_hidden_layers": stack.num_layers,
        "ffn_hidden_size": ffn.d_ff,
        "max_position_embeddings": model.max_len,
        "new_decoder_architecture": block.wiring == "parallel_split" or grouped,
        "multi_query": kv_heads == 1,
        "parallel_attn": block.wiring != "pre",
        "num_ln_in_parallel_attn": {"pre": None, "parallel": 1, "parallel_split": 2}[block.wiring],
        "alibi": isinstance(stack.position, spec.Alibi),
        "activation": PUBLISHED[ffn.activation],
        "layer_norm_epsilon": block.norm.eps,
        **(write_rotary(stack.position) if isinstance(stack.position, spec.Rotary) else {}),
        "bias": bool(attention.biases),
        "hidden_dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": bool(model.tied) or not isinstance(model.head, spec.LanguageModel),
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.DecoderOnly)
    stack, block = model.decoder, model.decoder.block
    heads = block.attention.num_heads
    groups = block.attention.num_kv_heads or heads
    theirs, ours = "{base}h.{i}", "decoder.blocks.{i}"
    first, second = {
        "pre": ("input_layernorm", "post_attention_layernorm"),
        "parallel": ("input_layernorm", None),
        "parallel_split": ("ln_attn", "ln_mlp"),
    }[block.wiring]
    norms: tuple[Op, ...] = (Rename(f"{theirs}.{first}.{{p}}", f"{ours}.norm_self.{{p}}"),)
    if second:
        norms += (Rename(f"{theirs}.{second}.{{p}}", f"{ours}.norm_ffn.{{p}}"),)
    layers = expand(
        (
            *norms,
            SplitGroups(
                f"{theirs}.self_attention.query_key_value.{{a}}",
                f"{ours}.self_attn.{{q,k,v}}_proj.{{a}}",
                groups=groups,
                queries=heads // groups,
                head_dim=stack.d_model // heads,
            ),
            Rename(f"{theirs}.self_attention.dense.{{a}}", f"{ours}.self_attn.out_proj.{{a}}"),
            Rename(f"{theirs}.mlp.dense_h_to_4h.{{a}}", f"{ours}.ffn.up.{{a}}"),
            Rename(f"{theirs}.mlp.dense_4h_to_h.{{a}}", f"{ours}.ffn.down.{{a}}"),
            Rename("{base}ln_f.{p}", "decoder.final_norm.{p}"),
            Ignored("{base}h.*.self_attention.*.inv_freq"),  # a formula that older files carry
        ),
        i=stack.num_layers,
        p=("weight", "bias"),
        a=("weight", "bias") if block.attention.biases else ("weight",),
    )
    ends = head_rows(model, token="{base}word_embeddings.weight", each_token="classifier")
    return Table((*layers, *ends), base=bases(model.head, "transformer."))


FAMILY = Family(
    name="falcon",
    model_types=("falcon",),
    architectures=architectures("Falcon"),
    build=falcon,
    presets={
        "falcon-7b": {},
        "falcon-40b": {
            "d_model": 8192,
            "num_heads": 128,
            "num_kv_heads": 8,
            "num_layers": 60,
            "wiring": "parallel_split",
        },
        "falcon-rw-1b": {
            "vocab_size": 50304,
            "d_model": 2048,
            "num_heads": 32,
            "num_kv_heads": 32,
            "num_layers": 24,
            "wiring": "pre",
            "position": "alibi",
            "bias": True,
        },
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=frozenset({"rope_parameters", "rope_theta", "rope_scaling"}),  # read unless alibi
)
