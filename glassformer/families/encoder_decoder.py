"""Spec builder, config keys and layer weight names shared by the post-norm encoder-decoders."""

from __future__ import annotations

import math
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import Builder, spec_options
from glassformer.families.keys import Head, Key, Keys, Options, Rule, activation, fixed
from glassformer.families.rows import layer_rows
from glassformer.weights.ops import Op, Reshape

OFFSET = 2  # rows of a learned position table before the row of the first position


def encoder_decoder(
    *,
    vocab_size: int = 58101,
    tgt_vocab_size: int | None = None,
    d_model: int = 512,
    num_heads: int = 8,
    d_ff: int = 2048,
    num_layers: int = 6,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    decoder_layers: int | None = None,
    max_len: int = 512,
    position: Literal["learned", "sinusoidal"] = "sinusoidal",
    activation: spec.Activation = "silu",
    scaled: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    pad_id: int | None = None,
    start_id: int | None = None,
    tied: tuple[Literal["source", "head"], ...] = ("source", "head"),
    head: spec.HeadSpec | None = None,
) -> spec.EncoderDecoderSpec:
    """Create the spec of an encoder-decoder; by default the decoder is as large as the encoder.

    By default, the last id of the vocabulary is both the pad id and the start id. With learned positions, the
    embeddings are normalized.
    tied: modules that share the target's token matrix; without "source", the target may have its own
    vocabulary.
    """
    target = tgt_vocab_size or vocab_size
    pad_id = min(vocab_size, target) - 1 if pad_id is None else pad_id
    head = head or spec.LanguageModelSpec(vocab_size=target, bias=True)
    learned = position == "learned"

    def tokens(size: int) -> spec.TokensSpec:
        return spec.TokensSpec(
            vocab_size=size,
            scale=math.sqrt(d_model) if scaled else 1.0,
            position=spec.LearnedSpec(max_len=max_len, offset=OFFSET)
            if learned
            else spec.SinusoidalSpec(max_len=max_len, layout="halves"),
            norm=spec.LayerNormSpec() if learned else None,
            dropout=dropout,
            pad_id=pad_id,
        )

    def stack(layers: int, heads: int, inner: int, causal: bool) -> spec.StackSpec:
        attention = spec.AttentionSpec(num_heads=heads, dropout=attention_dropout)
        block = spec.BlockSpec(
            attention=attention,
            cross_attention=attention if causal else None,
            feed_forward=spec.FeedForwardSpec(d_ff=inner, activation=activation, dropout=ffn_dropout),
            norm=spec.LayerNormSpec(),
            wiring="post",
            dropout=dropout,
        )
        return spec.StackSpec(d_model=d_model, num_layers=layers, block=block, causal=causal)

    layers = num_layers if decoder_layers is None else decoder_layers
    return spec.EncoderDecoderSpec(
        source=tokens(vocab_size),
        target=tokens(target),
        encoder=stack(num_layers, num_heads, d_ff, causal=False),
        decoder=stack(layers, decoder_heads or num_heads, decoder_d_ff or d_ff, causal=True),
        head=head,
        tied=tuple(name for name in tied if name != "head" or isinstance(head, spec.LanguageModelSpec)),
        start_id=pad_id if start_id is None else start_id,
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `encoder_decoder` that give a spec."""
    options, target = spec_options(model), model.target.vocab_size
    return options | {
        "tgt_vocab_size": None if target == model.source.vocab_size else target,
        "scaled": model.source.scale != 1.0,
        "tied": tuple(
            name for name, tied in (("source", "source" in model.tied), ("head", options["tied"])) if tied
        ),
    }


ENCODER_DECODER = Builder(encoder_decoder, _invert, shared=True)


KEYS: Keys = (
    Key("vocab_size"),
    Key("d_model", aliases=("hidden_size",)),
    Key("encoder_layers", "num_layers", aliases=("num_hidden_layers",)),
    Key("encoder_attention_heads", "num_heads", aliases=("num_attention_heads",)),
    Key("encoder_ffn_dim", "d_ff"),
    Key("max_position_embeddings", "max_len", 1024),
    activation("activation_function", "gelu"),
    Key("dropout", default=0.1),
    Key("attention_dropout", default=0.0),
    Key("activation_dropout", "ffn_dropout", 0.0),
    Key("decoder_layers"),
    Key("decoder_attention_heads", "decoder_heads"),
    Key("decoder_ffn_dim", "decoder_d_ff"),
    Key("scale_embedding", "scaled", False),
    *(
        fixed(name, False)
        for name in ("is_decoder", "normalize_before", "add_final_layer_norm", "add_bias_logits")
    ),
    Rule((), lambda config, _: {}, lambda _: {"is_encoder_decoder": True}),
)


def _read_language_model(config: Config, _: Options) -> dict[str, Any]:
    """Return the fields of the head; its bias is always saved, but may be missing in a file."""
    size = config.get("decoder_vocab_size", config.need("vocab_size", int))
    return {"vocab_size": size, "bias": not config.names or "final_logits_bias" in config.names}


LANGUAGE_MODEL = Head(spec.LanguageModelSpec, (Rule(("vocab_size", "bias"), _read_language_model),))


BLOCK = {  # published module names of a layer, and Glassformer's
    "self_attn.{q,k,v,out}_proj": "self_attn.{q,k,v,out}_proj",
    "self_attn_layer_norm": "norm_self",
    "fc1": "ffn.up",
    "fc2": "ffn.down",
    "final_layer_norm": "norm_ffn",
}
CROSS_ATTENTION = {
    "encoder_attn.{q,k,v,out}_proj": "cross_attn.{q,k,v,out}_proj",
    "encoder_attn_layer_norm": "norm_cross",
}


def block_rows(model: spec.EncoderDecoderSpec) -> tuple[Op, ...]:
    """Return the weight operations of the blocks of both stacks."""
    encoder, decoder = model.encoder.num_layers, model.decoder.num_layers
    return layer_rows("{base}encoder.layers.{i}", "encoder.blocks.{i}", encoder, BLOCK) + layer_rows(
        "{base}decoder.layers.{i}", "decoder.blocks.{i}", decoder, BLOCK | CROSS_ATTENTION
    )


def bias_row(head: spec.HeadSpec) -> tuple[Op, ...]:
    """Return the weight operation of the logits bias, published as (1, V); empty without a bias."""
    if not isinstance(head, spec.LanguageModelSpec) or not head.bias:
        return ()
    size = head.vocab_size
    return (Reshape("final_logits_bias", "head.bias", their_shape=(1, size), our_shape=(size,)),)
