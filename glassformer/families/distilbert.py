"""DistilBERT: BERT with half the layers, without token types and without a pooler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, Family, bases, labels_of
from glassformer.families.text_encoder import TASKS, TOKEN, renamed, text_encoder, tie_of
from glassformer.weights.convert import Table
from glassformer.weights.ops import Computed, Ignored, Op, Rename, Tied, expand

NORM_EPS = 1e-12  # fixed: the published config has no word for it


def distilbert(
    *,
    vocab_size: int = 30522,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 6,
    max_len: int = 512,
    position: Literal["learned", "sinusoidal"] = "learned",
    activation: spec.Activation = "gelu",
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    pad_id: int | None = 0,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.EncoderOnly:
    """DistilBERT's spec; the defaults are the uncased base model's.

    In training dropout falls on the output of attention, too, as in BERT.
    """
    places: dict[str, spec.AddedPosition] = {
        "learned": spec.Learned(max_len=max_len),
        "sinusoidal": spec.Sinusoidal(max_len=max_len),
    }
    if position not in places:
        raise InvalidValueError("position", position, "learned or sinusoidal")
    masked = spec.MaskedLanguageModel(
        vocab_size=vocab_size, activation=activation, norm=spec.LayerNorm(eps=NORM_EPS)
    )
    return text_encoder(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff or 4 * d_model,
        num_layers=num_layers,
        position=places[position],
        types=None,
        activation=activation,
        norm_eps=NORM_EPS,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pad_id=pad_id,
        tied=tied,
        head=head or masked,
    )


def with_head(config: Config, head: spec.Head | None) -> spec.EncoderOnly:
    """The config's encoder under a head; None is the masked language model."""
    return distilbert(
        vocab_size=config.need("vocab_size", int),
        d_model=config.need("dim", int, "hidden_size"),
        num_heads=config.need("n_heads", int, "num_attention_heads"),
        d_ff=config.need("hidden_dim", int),
        num_layers=config.need("n_layers", int, "num_hidden_layers"),
        max_len=config.need("max_position_embeddings", int),
        position="sinusoidal" if config.get("sinusoidal_pos_embds", False) else "learned",
        activation=config.choose("activation", ACTIVATIONS, "gelu"),
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1),
        pad_id=config.maybe("pad_token_id", int),
        tied=config.get("tie_word_embeddings", True),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnly:
    labels = config.num_labels
    classify = config.get("seq_classif_dropout", 0.2)
    heads: dict[str, spec.Head | None] = {
        "DistilBertForMaskedLM": None,
        "DistilBertModel": spec.Features(),
        "DistilBertForSequenceClassification": spec.Classify(
            num_labels=labels, hidden="relu", dropout=classify, dropped=("out",)
        ),
        "DistilBertForTokenClassification": spec.TokenClassify(
            num_labels=labels, dropout=config.get("dropout", 0.1)
        ),
        "DistilBertForQuestionAnswering": spec.Answer(dropout=config.get("qa_dropout", 0.1)),
    }
    return with_head(config, heads[config.architecture])


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnly) and isinstance(model.input, spec.Tokens)
    assert isinstance(model.input.position, spec.Learned | spec.Sinusoidal)
    block, head = model.encoder.block, model.head
    config: dict[str, Any] = {
        "model_type": "distilbert",
        "architectures": [f"DistilBert{TASKS[type(head)]}"],
        "vocab_size": model.input.vocab_size,
        "dim": model.encoder.d_model,
        "n_heads": block.attention.num_heads,
        "hidden_dim": block.feed_forward.d_ff,
        "n_layers": model.encoder.num_layers,
        "max_position_embeddings": model.input.position.max_len,
        "sinusoidal_pos_embds": isinstance(model.input.position, spec.Sinusoidal),
        "activation": PUBLISHED[block.feed_forward.activation],
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": tie_of(model),
        **labels_of(head),
    }
    if isinstance(head, spec.Classify):
        config["seq_classif_dropout"] = head.dropout
    if isinstance(head, spec.Answer):
        config["qa_dropout"] = head.dropout
    return config


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.EncoderOnly) and isinstance(model.input, spec.Tokens)
    block, places = "{base}transformer.layer.{i}.", "{base}embeddings.position_embeddings.weight"
    rows: tuple[Op, ...] = expand(
        (
            Computed(places, "embed.position.table", written=True)
            if isinstance(model.input.position, spec.Sinusoidal)
            else Rename(places, "embed.position.weight"),
            Rename("{base}embeddings.LayerNorm.{p}", "embed.norm.{p}"),
            Rename(
                block + "attention.{q,k,v,out}_lin.{p}",
                "encoder.blocks.{i}.self_attn.{q,k,v,out}_proj.{p}",
            ),
            Rename(block + "sa_layer_norm.{p}", "encoder.blocks.{i}.norm_self.{p}"),
            Rename(block + "ffn.lin1.{p}", "encoder.blocks.{i}.ffn.up.{p}"),
            Rename(block + "ffn.lin2.{p}", "encoder.blocks.{i}.ffn.down.{p}"),
            Rename(block + "output_layer_norm.{p}", "encoder.blocks.{i}.norm_ffn.{p}"),
            Ignored("{base}embeddings.position_ids"),  # 0, 1, 2, ..., which older files carry
        ),
        i=model.encoder.num_layers,
        p=("weight", "bias"),
    )
    token, matrix = Rename(TOKEN, "embed.token.weight"), "vocab_projector.weight"
    match model.head:
        case spec.MaskedLanguageModel():
            rows += renamed(("vocab_transform", "head.dense"), ("vocab_layer_norm", "head.norm"))
            rows += (Rename("vocab_projector.bias", "head.bias"),)
            if model.tied:
                rows += (Tied((TOKEN, matrix), "embed.token.weight"),)
            else:
                rows += (token, Rename(matrix, "head.weight"))
        case spec.Features() | spec.Embed():
            rows += (token,)
        case spec.Classify():
            rows += (token, *renamed(("pre_classifier", "head.dense"), ("classifier", "head.out")))
        case spec.TokenClassify():
            rows += (token, *renamed(("classifier", "head.out")))
        case spec.Answer():
            rows += (token, *renamed(("qa_outputs", "head.out")))
    return Table(rows, base=bases(model.head, "distilbert."))


FAMILY = Family(
    name="distilbert",
    model_types=("distilbert",),
    architectures=tuple(f"DistilBert{task}" for task in TASKS.values()),
    build=distilbert,
    presets={
        "distilbert-base-uncased": {},
        "distilbert-base-cased": {"vocab_size": 28996},
        "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=frozenset({"tie_weights_"}),
)
