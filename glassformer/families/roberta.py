"""RoBERTa, and XLM-RoBERTa and CamemBERT, which are the same maths: BERT with positions after the pad id."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
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

PREFIXES = ("Roberta", "XLMRoberta", "Camembert")


def roberta(
    *,
    vocab_size: int = 50265,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 12,
    max_len: int = 512,
    types: int = 1,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-5,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    pad_id: int = 1,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.EncoderOnly:
    """RoBERTa's spec; the defaults are the base model's. Row `pad_id + 1` is the first position's."""
    masked = spec.MaskedLanguageModel(
        vocab_size=vocab_size, activation="gelu", norm=spec.LayerNorm(eps=norm_eps)
    )
    return text_encoder(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        num_layers=num_layers,
        position=spec.Learned(max_len=max_len, offset=pad_id + 1),
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
    pad_id, rows = config.get("pad_token_id", 1), config.need("max_position_embeddings", int)
    if pad_id < 0 or rows <= pad_id + 1:
        raise InvalidValueError(
            f"{config.where}: max_position_embeddings", rows, f"more than pad_token_id + 1 ({pad_id + 1})"
        )
    return roberta(**words_of(config), max_len=rows - pad_id - 1, pad_id=pad_id, head=head)


def from_config(config: Config) -> spec.EncoderOnly:
    task = next(config.architecture.removeprefix(p) for p in PREFIXES if config.architecture.startswith(p))
    return with_head(config, head_of(config, task, dropped=("hidden", "out")))


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnly) and isinstance(model.input, spec.Tokens)
    assert isinstance(model.input.position, spec.Learned)
    return {
        "model_type": "roberta",
        "architectures": [f"Roberta{TASKS[type(model.head)]}"],
        "max_position_embeddings": model.input.position.max_len + model.input.position.offset,
        **config_of(model),
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderOnly)
    rows: tuple[Op, ...] = body_rows(model.encoder.num_layers)
    idle = Ignored("{base}pooler.*")  # left beside heads that do not read it
    token = Rename(TOKEN, "embed.token.weight")
    match model.head:
        case spec.MaskedLanguageModel():
            rows += renamed(("lm_head.dense", "head.dense"), ("lm_head.layer_norm", "head.norm"))
            rows += (*vocabulary_rows(model, names, "lm_head."), idle)
        case spec.Features(pooler=True) | spec.Embed(pooler=True):
            rows += (token, *renamed(("{base}pooler.dense", "head.pooler")))
        case spec.Features() | spec.Embed():
            rows += (token,)
        case spec.Classify():
            pairs = (("classifier.dense", "head.dense"), ("classifier.out_proj", "head.out"))
            rows += (token, *renamed(*pairs), idle)
        case spec.TokenClassify():
            rows += (token, *renamed(("classifier", "head.out")), idle)
        case spec.Answer():
            rows += (token, *renamed(("qa_outputs", "head.out")), idle)
    return Table(rows, base=bases(model.head, "roberta."))


_LARGE = {"d_model": 1024, "num_heads": 16, "num_layers": 24}

FAMILY = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    architectures=tuple(f"{prefix}{task}" for prefix in PREFIXES for task in TASKS.values()),
    build=roberta,
    presets={
        "roberta-base": {},
        "roberta-large": _LARGE,
        "distilroberta-base": {"num_layers": 6},
        "xlm-roberta-base": {"vocab_size": 250002},
        "xlm-roberta-large": {**_LARGE, "vocab_size": 250002},
        "camembert-base": {"vocab_size": 32005},
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
)
