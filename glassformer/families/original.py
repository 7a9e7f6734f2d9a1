"""The Transformer of 2017: encoder-decoder, post-norm, sinusoidal positions, ReLU.

It has no published layout, so it is saved in Glassformer's layout, with a `spec.json`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from glassformer.core import spec
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.families.family import Builder, Family, preset

Activation = spec.Activation | Literal["swiglu"]
Position = Literal["sinusoidal", "sinusoidal_halves", "learned", "rotary", "relative", "alibi", "none"]
POSITIONS = get_args(Position)


def original(
    d_model: int = 512,
    num_heads: int = 8,
    d_ff: int = 2048,
    num_layers: int = 6,
    src_vocab_size: int = 37000,
    tgt_vocab_size: int | None = None,
    max_len: int = 5000,
    dropout: float = 0.1,
    *,
    decoder_layers: int | None = None,
    norm: Literal["pre", "post"] = "post",
    activation: Activation = "relu",
    position: Position = "sinusoidal",
    norm_eps: float = 1e-5,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    pad_id: int | None = 0,
    start_id: int | None = None,
    end_id: int | None = None,
    tied: tuple[Literal["source", "head"], ...] = (),
) -> spec.EncoderDecoderSpec:
    """Create the spec of the original Transformer; the defaults are the paper's base model.

    num_layers: number of layers of each stack, unless `decoder_layers` is set.
    norm, activation, position: the paper's by default; later variants are options. activation "swiglu" is a
    gated feed-forward layer with SiLU and without biases.

    Dropout is applied as in the paper: to the output of each sublayer and to the summed embeddings.
    """
    if position not in POSITIONS:
        raise InvalidValueError("position", position, f"one of {', '.join(POSITIONS)}")
    added: dict[str, spec.InputPositionSpec] = {
        "sinusoidal": spec.SinusoidalSpec(max_len=max_len),
        "sinusoidal_halves": spec.SinusoidalSpec(max_len=max_len, layout="halves"),
        "learned": spec.LearnedSpec(max_len=max_len),
    }
    inside: dict[str, spec.AttentionPositionSpec] = {
        "rotary": spec.RotarySpec(),
        "relative": spec.RelativeSpec(),
        "alibi": spec.AlibiSpec(),
    }
    attention = spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout)
    ffn = (
        spec.GatedFeedForwardSpec(d_ff=d_ff, dropout=ffn_dropout)
        if activation == "swiglu"
        else spec.FeedForwardSpec(d_ff=d_ff, activation=activation, dropout=ffn_dropout)
    )
    layer_norm = spec.LayerNormSpec(eps=norm_eps)

    def tokens(vocab_size: int) -> spec.TokensSpec:
        return spec.TokensSpec(
            vocab_size=vocab_size,
            scale=math.sqrt(d_model),
            position=added.get(position),
            dropout=dropout,
            pad_id=pad_id,
        )

    def stack(layers: int, causal: bool, cross: spec.AttentionSpec | None) -> spec.StackSpec:
        return spec.StackSpec(
            d_model=d_model,
            num_layers=layers,
            block=spec.BlockSpec(
                attention=attention,
                cross_attention=cross,
                feed_forward=ffn,
                norm=layer_norm,
                wiring=norm,
                dropout=dropout,
            ),
            causal=causal,
            position=inside.get(position),
            final_norm=layer_norm if norm == "pre" else None,
        )

    target = tgt_vocab_size or src_vocab_size
    return spec.EncoderDecoderSpec(
        source=tokens(src_vocab_size),
        target=tokens(target),
        encoder=stack(num_layers, causal=False, cross=None),
        decoder=stack(num_layers if decoder_layers is None else decoder_layers, causal=True, cross=attention),
        head=spec.LanguageModelSpec(vocab_size=target, bias="head" not in tied),
        tied=tied,
        start_id=start_id,
        end_id=end_id,
        init=spec.XavierSpec(),
    )


def _no_published_layout(*_: Any) -> Any:
    raise UnsupportedError(
        "the original Transformer", "a published folder layout", hint="save it in the layout glassformer"
    )


FAMILY = Family(
    name="original",
    builder=Builder(original, _no_published_layout),
    heads={},
    presets={
        "original": {},
        "original-big": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
    },
    tiny=preset(32, 4, 2, 64, src_vocab_size=101, tgt_vocab_size=89, max_len=64),
    reader=_no_published_layout,
    writer=_no_published_layout,
    weight_table=_no_published_layout,
)
