"""What the post-norm encoder-decoders share: two stacks, the config's words for them, the layers' names.

Encoder and decoder have one width but their own numbers of layers, heads and inner features.
"""

from __future__ import annotations

import math
from typing import Any

from glassformer.core import spec
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config
from glassformer.weights.ops import Op, Rename, Reshape, expand, within


def two_stacks(
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    decoder_heads: int | None,
    decoder_d_ff: int | None,
    decoder_layers: int | None,
    activation: spec.Activation,
    dropout: float,
    attention_dropout: float,
    ffn_dropout: float,
) -> tuple[spec.Stack, spec.Stack]:
    """The encoder and the decoder; what the decoder is not given, it has of the encoder."""

    def stack(layers: int, heads: int, inner: int, causal: bool) -> spec.Stack:
        attention = spec.Attention(num_heads=heads, dropout=attention_dropout)
        block = spec.Block(
            attention=attention,
            cross_attention=attention if causal else None,
            feed_forward=spec.FeedForward(d_ff=inner, activation=activation, dropout=ffn_dropout),
            norm=spec.LayerNorm(),
            wiring="post",
            dropout=dropout,
        )
        return spec.Stack(d_model=d_model, num_layers=layers, block=block, causal=causal)

    layers = num_layers if decoder_layers is None else decoder_layers
    return (
        stack(num_layers, num_heads, d_ff, causal=False),
        stack(layers, decoder_heads or num_heads, decoder_d_ff or d_ff, causal=True),
    )


def read_words(config: Config) -> dict[str, Any]:
    """The words for both stacks and their inputs, from a published config."""
    config.only("is_decoder", False, default=False)
    config.only("normalize_before", False, default=False)
    config.only("add_final_layer_norm", False, default=False)
    config.only("add_bias_logits", False, default=False)
    return {
        "vocab_size": config.need("vocab_size", int),
        "d_model": config.need("d_model", int, "hidden_size"),
        "num_layers": config.need("encoder_layers", int, "num_hidden_layers"),
        "num_heads": config.need("encoder_attention_heads", int, "num_attention_heads"),
        "d_ff": config.need("encoder_ffn_dim", int),
        "decoder_layers": config.need("decoder_layers", int),
        "decoder_heads": config.need("decoder_attention_heads", int),
        "decoder_d_ff": config.need("decoder_ffn_dim", int),
        "max_len": config.get("max_position_embeddings", 1024),
        "activation": config.choose("activation_function", ACTIVATIONS, "gelu"),
        "scaled": config.get("scale_embedding", False),
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "ffn_dropout": config.get("activation_dropout", 0.0),
    }


def write_words(model: spec.Model) -> dict[str, Any]:
    """The published config's words for both stacks and their inputs."""
    assert isinstance(model, spec.EncoderDecoder)
    source, encoder, decoder = model.source, model.encoder, model.decoder
    assert isinstance(source, spec.Tokens) and source.position is not None
    return {
        "is_encoder_decoder": True,
        "vocab_size": source.vocab_size,
        "d_model": encoder.d_model,
        "encoder_layers": encoder.num_layers,
        "encoder_attention_heads": encoder.block.attention.num_heads,
        "encoder_ffn_dim": encoder.block.feed_forward.d_ff,
        "decoder_layers": decoder.num_layers,
        "decoder_attention_heads": decoder.block.attention.num_heads,
        "decoder_ffn_dim": decoder.block.feed_forward.d_ff,
        "max_position_embeddings": source.position.max_len,
        "activation_function": PUBLISHED[encoder.block.feed_forward.activation],
        "scale_embedding": source.scale != 1.0,
        "dropout": source.dropout,
        "attention_dropout": encoder.block.attention.dropout,
        "activation_dropout": encoder.block.feed_forward.dropout,
        "pad_token_id": source.pad_id,
        "decoder_start_token_id": model.start_id,
    }


def logits_bias(config: Config) -> bool:
    """Whether the scores get a bias: always written, yet a file without it means none."""
    return not config.names or "final_logits_bias" in config.names


def scale_of(d_model: int, scaled: bool) -> float:
    """What token vectors are multiplied by."""
    return math.sqrt(d_model) if scaled else 1.0


def layer_rows(model: spec.EncoderDecoder) -> tuple[Op, ...]:
    """The rows for the blocks of both stacks."""
    own: tuple[Op, ...] = (
        Rename("self_attn.{q,k,v,out}_proj.{p}", "self_attn.{q,k,v,out}_proj.{p}"),
        Rename("self_attn_layer_norm.{p}", "norm_self.{p}"),
        Rename("fc1.{p}", "ffn.up.{p}"),
        Rename("fc2.{p}", "ffn.down.{p}"),
        Rename("final_layer_norm.{p}", "norm_ffn.{p}"),
    )
    across: tuple[Op, ...] = (
        Rename("encoder_attn.{q,k,v,out}_proj.{p}", "cross_attn.{q,k,v,out}_proj.{p}"),
        Rename("encoder_attn_layer_norm.{p}", "norm_cross.{p}"),
    )
    return expand(
        within("{base}encoder.layers.{e}.", "encoder.blocks.{e}.", own)
        + within("{base}decoder.layers.{d}.", "decoder.blocks.{d}.", own + across),
        e=model.encoder.num_layers,
        d=model.decoder.num_layers,
        p=("weight", "bias"),
    )


def bias_row(head: spec.Head) -> tuple[Op, ...]:
    """The row for the scores' bias, kept as (1, V), where the head has one."""
    if not isinstance(head, spec.LanguageModel) or not head.bias:
        return ()
    size = head.vocab_size
    return (Reshape("final_logits_bias", "head.bias", their_shape=(1, size), our_shape=(size,)),)
