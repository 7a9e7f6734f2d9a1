"""BART: post-norm encoder-decoder, learned positions from row 2 on, a norm after the embedding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family, bases, labels_of
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
from glassformer.weights.ops import Ignored, Op, Rename, Tied, expand

OFFSET = 2  # rows of the position table before that of the first position


def bart(
    *,
    vocab_size: int = 50265,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 6,
    decoder_heads: int | None = None,
    decoder_d_ff: int | None = None,
    decoder_layers: int | None = None,
    max_len: int = 1024,
    activation: spec.Activation = "gelu",
    scaled: bool = False,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    pad_id: int | None = 1,
    start_id: int | None = 2,
    head: spec.Head | None = None,
) -> spec.EncoderDecoder:
    """BART's spec; the defaults are the base model's. The decoder is as large as the encoder unless told."""
    tokens = spec.Tokens(
        vocab_size=vocab_size,
        scale=scale_of(d_model, scaled),
        position=spec.Learned(max_len=max_len, offset=OFFSET),
        norm=spec.LayerNorm(),
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
    head = head or spec.LanguageModel(vocab_size=vocab_size, bias=True)
    return spec.EncoderDecoder(
        source=tokens,
        target=tokens,
        encoder=encoder,
        decoder=decoder,
        head=head,
        tied=("source", "head") if isinstance(head, spec.LanguageModel) else ("source",),
        start_id=start_id,
        init=spec.Normal(std=0.02),
    )


def from_config(config: Config) -> spec.EncoderDecoder:
    words = read_words(config)
    config.only("tie_word_embeddings", True, default=True)
    config.only("normalize_embedding", True, default=True)
    config.only("static_position_embeddings", False, default=False)
    config.only("extra_pos_embeddings", OFFSET, default=OFFSET)
    dropout = config.get("classifier_dropout", 0.0, "classif_dropout")
    heads: dict[str, spec.Head] = {
        "BartForConditionalGeneration": spec.LanguageModel(
            vocab_size=words["vocab_size"], bias=logits_bias(config)
        ),
        "BartModel": spec.Features(),
        # the class says 3 labels where none are named, yet two are never named when it is saved
        "BartForSequenceClassification": spec.Classify(
            num_labels=config.num_labels,
            pool="end",
            hidden="tanh",
            dropout=dropout,
            end_id=config.get("eos_token_id", 2),
        ),
        "BartForQuestionAnswering": spec.Answer(),
    }
    return bart(
        **words,
        pad_id=config.get("pad_token_id", 1),
        start_id=config.get("decoder_start_token_id", 2),
        head=heads[config.architecture],
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoder)
    config = {
        "model_type": "bart",
        "architectures": [
            {
                spec.LanguageModel: "BartForConditionalGeneration",
                spec.Features: "BartModel",
                spec.Classify: "BartForSequenceClassification",
                spec.Answer: "BartForQuestionAnswering",
            }[type(model.head)]
        ],
        **write_words(model),
        "tie_word_embeddings": True,
        **labels_of(model.head),
    }
    if isinstance(model.head, spec.Classify):
        config["classifier_dropout"] = model.head.dropout
        config["eos_token_id"] = model.head.end_id
    return config


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderDecoder)
    token: tuple[str, ...] = ("{base}shared.weight", "{base}{encoder,decoder}.embed_tokens.weight")
    rows: tuple[Op, ...] = (
        Rename("{base}{encoder,decoder}.embed_positions.weight", "{src,tgt}_embed.position.weight"),
        Rename("{base}{encoder,decoder}.layernorm_embedding.{p}", "{src,tgt}_embed.norm.{p}"),
        Ignored("{base}{encoder,decoder}.version"),
    )
    match model.head:
        case spec.LanguageModel():
            token += ("lm_head.weight",)
            rows += bias_row(model.head)
        case spec.Classify():
            rows += (Rename("classification_head.{dense,out_proj}.{p}", "head.{dense,out}.{p}"),)
        case spec.Answer():
            rows += (Rename("qa_outputs.{p}", "head.out.{p}"),)
    rows = (Tied(token, "src_embed.token.weight"), *layer_rows(model), *expand(rows, p=("weight", "bias")))
    return Table(rows, base=bases(model.head, "model."))


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    architectures=(
        "BartForConditionalGeneration",
        "BartModel",
        "BartForSequenceClassification",
        "BartForQuestionAnswering",
    ),
    build=bart,
    presets={
        "bart-base": {},
        "bart-large": {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 12},
    },
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
        """encoder_layerdrop decoder_layerdrop init_std output_past force_bos_token_to_be_generated
        classifier_dropout classif_dropout""".split()
    ),
)
