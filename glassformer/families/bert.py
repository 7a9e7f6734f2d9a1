"""BERT: post-norm encoder, learned positions, two token types, a masked language model on top."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, Family, bases
from glassformer.families.text_encoder import (
    TASKS,
    TOKEN,
    body_rows,
    config_of,
    head_of,
    renamed,
    text_encoder,
    vocabulary_rows,
    words_of,
)
from glassformer.weights.convert import Table
from glassformer.weights.ops import Ignored, Op, Rename


def bert(
    *,
    vocab_size: int = 30522,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 12,
    max_len: int = 512,
    types: int = 2,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-12,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    pad_id: int | None = 0,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.EncoderOnly:
    """BERT's spec; the defaults are the uncased base model's."""
    masked = spec.MaskedLanguageModel(
        vocab_size=vocab_size, activation=activation, norm=spec.LayerNorm(eps=norm_eps)
    )
    return text_encoder(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        num_layers=num_layers,
        position=spec.Learned(max_len=max_len),
        types=types,
        activation=activation,
        norm_eps=norm_eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pad_id=pad_id,
        tied=tied,
        head=head or masked,
    )


def with_head(config: Config, head: spec.Head | None) -> spec.EncoderOnly:
    """The config's encoder under a head; None is the masked language model."""
    return bert(
        **words_of(config),
        max_len=config.need("max_position_embeddings", int),
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnly:
    return with_head(config, head_of(config, config.architecture.removeprefix("Bert"), dropped=("out",)))


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnly) and isinstance(model.input, spec.Tokens)
    assert isinstance(model.input.position, spec.Learned)
    return {
        "model_type": "bert",
        "architectures": [f"Bert{TASKS[type(model.head)]}"],
        "max_position_embeddings": model.input.position.max_len,
        **config_of(model),
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderOnly)
    rows: tuple[Op, ...] = body_rows(model.encoder.num_layers)
    idle: tuple[Op, ...] = (Ignored("{base}pooler.*"),)  # left beside heads that do not read it
    token = Rename(TOKEN, "embed.token.weight")
    match model.head:
        case spec.MaskedLanguageModel():
            transform = "cls.predictions.transform."
            rows += renamed((f"{transform}dense", "head.dense"), (f"{transform}LayerNorm", "head.norm"))
            rows += vocabulary_rows(model, names, "cls.predictions.")
            rows += (*idle, Ignored("cls.seq_relationship.*"))
        case spec.Features(pooler=True) | spec.Embed(pooler=True):
            rows += (token, *renamed(("{base}pooler.dense", "head.pooler")))
        case spec.Features() | spec.Embed():
            rows += (token,)
        case spec.Classify():
            rows += (token, *renamed(("{base}pooler.dense", "head.dense"), ("classifier", "head.out")))
        case spec.TokenClassify():
            rows += (token, *renamed(("classifier", "head.out")), *idle)
        case spec.Answer():
            rows += (token, *renamed(("qa_outputs", "head.out")), *idle)
    return Table(rows, base=bases(model.head, "bert."))


_LARGE = {"d_model": 1024, "num_heads": 16, "num_layers": 24}

FAMILY = Family(
    name="bert",
    model_types=("bert",),
    architectures=tuple(f"Bert{task}" for task in TASKS.values()),
    build=bert,
    presets={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-large-uncased": _LARGE,
        "bert-large-cased": {**_LARGE, "vocab_size": 28996},
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=frozenset(
        """directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type""".split()
    ),
)
