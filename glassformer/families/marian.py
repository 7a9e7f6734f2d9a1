"""Marian: post-norm encoder-decoder that translates, sinusoidal positions with sines left, cosines right."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.family import Config, Family, bases
from glassformer.families.two_stacks import (
    bias_row,
    layer_rows,
    logits_bias,
    read_words,
    scale_of,
    two_stacks,
    write_words,
)
from glassformer.weights.convert import Table
from glassformer.weights.ops import Computed, Ignored, Op, Rename, Tied


def marian(
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
    activation: spec.Activation = "silu",
    scaled: bool = True,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    pad_id: int | None = None,
    start_id: int | None = None,
    tied: tuple[str, ...] = ("source", "head"),
    head: spec.Head | None = None,
) -> spec.EncoderDecoder:
    """Marian's spec; the defaults are a published one-pair translator's.

    The last id of the vocabulary is the padding and starts the target, unless told. `tied` names what
    shares the target's token matrix; without "source" the target may have a vocabulary of its own.
    """
    target = tgt_vocab_size or vocab_size
    pad_id = min(vocab_size, target) - 1 if pad_id is None else pad_id

    def tokens(size: int) -> spec.Tokens:
        return spec.Tokens(
            vocab_size=size,
            scale=scale_of(d_model, scaled),
            position=spec.Sinusoidal(max_len=max_len, layout="halves"),
            dropout=dropout,
            pad_id=pad_id,
        )

    encoder, decoder = two_stacks(
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        decoder_heads=decoder_heads,
        decoder_d_ff=decoder_d_ff,
        decoder_layers=decoder_layers,
        activation=activation,
        dropout=dropout,
        attention_dropout=attention_dropout,
        ffn_dropout=ffn_dropout,
    )
    head = head or spec.LanguageModel(vocab_size=target, bias=True)
    scores = isinstance(head, spec.LanguageModel)
    shared: tuple[Any, ...] = tuple(name for name in tied if name != "head" or scores)
    return spec.EncoderDecoder(
        source=tokens(vocab_size),
        target=tokens(target),
        encoder=encoder,
        decoder=decoder,
        head=head,
        tied=shared,
        start_id=pad_id if start_id is None else start_id,
        init=spec.Normal(std=0.02),
    )


def from_config(config: Config) -> spec.EncoderDecoder:
    words = read_words(config)
    config.only("normalize_embedding", False, default=False)
    config.only("static_position_embeddings", True, default=True)
    source, target = words["vocab_size"], config.get("decoder_vocab_size", words["vocab_size"])
    if config.get("share_encoder_decoder_embeddings", True):
        if target != source:
            raise ConflictError(
                [f"{source} source tokens", f"{target} target tokens"],
                f"{config.where} shares one embedding matrix between both",
                hint="set share_encoder_decoder_embeddings to false or make the vocabularies equal",
            )
        config.only("tie_word_embeddings", True, default=True)
        tied: tuple[str, ...] = ("source", "head")
    else:
        tied = ("head",) if config.get("tie_word_embeddings", True) else ()
    heads: dict[str, spec.Head] = {
        "MarianMTModel": spec.LanguageModel(vocab_size=target, bias=logits_bias(config)),
        "MarianModel": spec.Features(),
    }
    pad = config.get("pad_token_id", 58100)
    return marian(
        **words,
        tgt_vocab_size=target,
        pad_id=pad,
        start_id=config.get("decoder_start_token_id", pad),
        tied=tied,
        head=heads[config.architecture],
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoder) and isinstance(model.target, spec.Tokens)
    scores = isinstance(model.head, spec.LanguageModel)
    return {
        "model_type": "marian",
        "architectures": [
            {spec.LanguageModel: "MarianMTModel", spec.Features: "MarianModel"}[type(model.head)]
        ],
        **write_words(model),
        "decoder_vocab_size": model.target.vocab_size,
        "share_encoder_decoder_embeddings": "source" in model.tied,
        "tie_word_embeddings": "head" in model.tied or not scores,
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderDecoder)
    bare = isinstance(model.head, spec.Features)
    encoder, decoder = "{base}encoder.embed_tokens.weight", "{base}decoder.embed_tokens.weight"
    head = () if bare else ("lm_head.weight",)
    rows: tuple[Op, ...]
    match "source" in model.tied, "head" in model.tied or bare:
        case True, _:
            rows = (Tied(("{base}shared.weight", encoder, decoder, *head), "src_embed.token.weight"),)
        case False, True:
            rows = (
                Rename(encoder, "src_embed.token.weight"),
                Tied((decoder, *head), "tgt_embed.token.weight"),
            )
        case _:
            rows = (
                Rename((encoder, decoder), "{src,tgt}_embed.token.weight"),
                Rename(head, "head.weight"),
            )
    rows += (
        Computed("{base}encoder.embed_positions.weight", "src_embed.position.table", written=bare),
        Computed("{base}decoder.embed_positions.weight", "tgt_embed.position.table", written=bare),
        Ignored("{base}{encoder,decoder}.version"),
    )
    rows += layer_rows(model) + bias_row(model.head)
    return Table(rows, base=bases(model.head, "model."))


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    architectures=("MarianMTModel", "MarianModel"),
    build=marian,
    presets={"opus-mt": {}},
    tiny={
        "vocab_size": 101,
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_layers": 2,
        "max_len": 64,
    },
    from_config=from_config,
    to_config=to_config,
    table=table,
    # layers skipped at random, and what a fresh model is drawn from, are matters of training
    immaterial=frozenset(
        """encoder_layerdrop decoder_layerdrop init_std classif_dropout classifier_dropout bad_words_ids
        extra_pos_embeddings""".split()
    ),
)
