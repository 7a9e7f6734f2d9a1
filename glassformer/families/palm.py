"""PaLM-style decoder: attention and gated feed-forward side by side on one norm, multi-query, no biases.

PaLM itself was never published; the layout read and written here is Cohere's, the same block in public.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.causal_heads import head_rows, read_head, read_pad, write_head
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, Family, bases
from glassformer.families.rope import Scaling, read_rotary, write_rotary
from glassformer.weights.convert import Table
from glassformer.weights.ops import PermuteRotary, Rename, expand


def palm(
    *,
    vocab_size: int = 256000,
    d_model: int = 4096,
    num_heads: int = 16,
    num_kv_heads: int = 1,
    head_dim: int | None = None,
    d_ff: int | None = None,
    num_layers: int = 32,
    max_len: int = 2048,
    activation: spec.Activation = "silu",
    norm_eps: float = 1e-5,
    rope_base: float = 10000.0,
    rope_scaling: Scaling = None,
    attention_bias: bool = False,
    attention_dropout: float = 0.0,
    logit_scale: float = 1.0,
    pad_id: int | None = None,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.DecoderOnly:
    """PaLM's spec; the defaults are the 8B model's.

    The paper draws the shared token matrix with a spread of 1 and divides the scores by sqrt(d_model).
    Fresh numbers here have a spread of 0.02, which needs no division: `logit_scale` stays 1.
    """
    norm = spec.LayerNorm(eps=norm_eps, bias=False)
    return spec.DecoderOnly(
        input=spec.Tokens(vocab_size=vocab_size, pad_id=pad_id),
        decoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.Block(
                attention=spec.Attention(
                    num_heads=num_heads,
                    num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
                    head_dim=None if head_dim and head_dim * num_heads == d_model else head_dim,
                    biases=("q", "k", "v", "out") if attention_bias else (),
                    dropout=attention_dropout,
                ),
                feed_forward=spec.GatedFeedForward(d_ff=d_ff or 4 * d_model, activation=activation),
                norm=norm,
                wiring="parallel",
            ),
            causal=True,
            position=spec.Rotary(base=rope_base, scaling=rope_scaling),
            final_norm=norm,
        ),
        head=head or spec.LanguageModel(vocab_size=vocab_size, scale=logit_scale),
        tied=("head",) if tied and head is None else (),
        max_len=max_len,
    )


def from_config(config: Config) -> spec.DecoderOnly:
    config.only("use_qk_norm", False, None)
    head = read_head(config, "Cohere")
    num_heads = config.need("num_attention_heads", int)
    max_len = config.get("max_position_embeddings", 8192)
    rotary = read_rotary(config, base=500000.0, max_len=max_len)
    return palm(
        vocab_size=config.need("vocab_size", int),
        d_model=config.need("hidden_size", int),
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads", num_heads),
        head_dim=config.get("head_dim", 0) or None,
        d_ff=config.need("intermediate_size", int),
        num_layers=config.need("num_hidden_layers", int),
        max_len=max_len,
        activation=config.choose("hidden_act", ACTIVATIONS, "silu"),
        norm_eps=config.get("layer_norm_eps", 1e-5),
        rope_base=rotary.base,
        rope_scaling=rotary.scaling,
        attention_bias=config.get("attention_bias", False),
        attention_dropout=config.get("attention_dropout", 0.0),
        logit_scale=config.get("logit_scale", 0.0625),
        pad_id=read_pad(config, head),
        tied=config.get("tie_word_embeddings", True),
        head=head,
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnly) and isinstance(model.input, spec.Tokens)
    stack, attention, ffn = model.decoder, model.decoder.block.attention, model.decoder.block.feed_forward
    assert isinstance(stack.block.norm, spec.LayerNorm) and isinstance(stack.position, spec.Rotary)
    return {
        "model_type": "cohere",
        **write_head(model.head, "Cohere"),
        "vocab_size": model.input.vocab_size,
        "hidden_size": stack.d_model,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_dim or stack.d_model // attention.num_heads,
        "intermediate_size": ffn.d_ff,
        "num_hidden_layers": stack.num_layers,
        "max_position_embeddings": model.max_len,
        "hidden_act": PUBLISHED[ffn.activation],
        "layer_norm_eps": stack.block.norm.eps,
        **write_rotary(stack.position),
        "attention_bias": bool(attention.biases),
        "attention_dropout": attention.dropout,
        "logit_scale": model.head.scale if isinstance(model.head, spec.LanguageModel) else 1.0,
        "use_qk_norm": False,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": bool(model.tied) or not isinstance(model.head, spec.LanguageModel),
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.DecoderOnly)
    stack, attention = model.decoder, model.decoder.block.attention
    width = attention.head_dim or stack.d_model // attention.num_heads
    theirs, ours = "{base}layers.{i}", "decoder.blocks.{i}"

    def turned(which: str, heads: int) -> PermuteRotary:
        """Query or key rows: published with the turning pairs side by side, ours half a head apart."""
        return PermuteRotary(
            f"{theirs}.self_attn.{which}_proj.{{a}}",
            f"{ours}.self_attn.{which}_proj.{{a}}",
            num_heads=heads,
            head_dim=width,
        )

    layers = expand(
        (
            Rename(f"{theirs}.input_layernorm.weight", f"{ours}.norm_self.weight"),
            turned("q", attention.num_heads),
            turned("k", attention.num_kv_heads or attention.num_heads),
            Rename(f"{theirs}.self_attn.v_proj.{{a}}", f"{ours}.self_attn.v_proj.{{a}}"),
            Rename(f"{theirs}.self_attn.o_proj.{{a}}", f"{ours}.self_attn.out_proj.{{a}}"),
            Rename(f"{theirs}.mlp.{{gate,up,down}}_proj.weight", f"{ours}.ffn.{{gate,up,down}}.weight"),
        ),
        i=stack.num_layers,
        a=("weight", "bias") if attention.biases else ("weight",),
    )
    final = Rename("{base}norm.weight", "decoder.final_norm.weight")
    return Table((*layers, final, *head_rows(model)), base=bases(model.head, "model."))


FAMILY = Family(
    name="palm",
    model_types=("cohere",),
    architectures=("CohereForCausalLM", "CohereModel"),
    build=palm,
    presets={
        "palm-8b": {},
        "palm-62b": {"d_model": 8192, "num_heads": 32, "num_layers": 64},
        "palm-540b": {"d_model": 18432, "num_heads": 48, "head_dim": 256, "num_layers": 118},
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
