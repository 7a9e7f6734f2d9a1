"""DistilBERT: BERT with half the layers, without token types and without a pooler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import (
    TINY,
    Config,
    Family,
    Key,
    label_config,
    read_options,
    spec_options,
    variant,
    write_options,
)
from glassformer.families.text_encoder import TASKS, table_of, text_encoder
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Computed, Rename

# The uncased base model. In training, dropout is also applied to the attention output, as in BERT.
distilbert = variant(
    text_encoder,
    "embedding_dim num_groups types norm_eps mlm_activation pool normalize",
    num_layers=6,
    types=None,
)

KEYS = (
    Key("vocab_size"),
    Key("dim", "d_model", aliases=("hidden_size",)),
    Key("n_heads", "num_heads", aliases=("num_attention_heads",)),
    Key("hidden_dim", "d_ff"),
    Key("n_layers", "num_layers", aliases=("num_hidden_layers",)),
    Key("max_position_embeddings", "max_len"),
    Key("activation", default="gelu"),
    Key("dropout", default=0.1),
    Key("attention_dropout", default=0.1),
    Key("tie_word_embeddings", "tied", True),
)
LAYER = {
    "attention.{q,k,v,out}_lin": "self_attn.{q,k,v,out}_proj",
    "sa_layer_norm": "norm_self",
    "ffn.lin1": "ffn.up",
    "ffn.lin2": "ffn.down",
    "output_layer_norm": "norm_ffn",
}


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    return distilbert(
        **read_options(config, KEYS),
        position="sinusoidal" if config.get("sinusoidal_pos_embds", False) else "learned",
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnlySpec:
    labels = config.num_labels
    classify = config.get("seq_classif_dropout", 0.2)
    heads: dict[str, spec.HeadSpec | None] = {
        "ForMaskedLM": None,
        "Model": spec.FeaturesSpec(),
        "ForSequenceClassification": spec.ClassifySpec(
            num_labels=labels, hidden="relu", dropout=classify, dropped=("out",)
        ),
        "ForTokenClassification": spec.TokenClassifySpec(
            num_labels=labels, dropout=config.get("dropout", 0.1)
        ),
        "ForQuestionAnswering": spec.AnswerSpec(dropout=config.get("qa_dropout", 0.1)),
    }
    return with_head(config, heads[config.architecture.removeprefix("DistilBert")])


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    config = {
        "model_type": "distilbert",
        "architectures": [f"DistilBert{TASKS[type(model.head)]}"],
        **write_options(model, KEYS),
        "sinusoidal_pos_embds": isinstance(model.input.position, spec.SinusoidalSpec),
        "pad_token_id": spec_options(model)["pad_id"],
        **label_config(model.head),
    }
    if isinstance(model.head, spec.ClassifySpec):
        config["seq_classif_dropout"] = model.head.dropout
    if isinstance(model.head, spec.AnswerSpec):
        config["qa_dropout"] = model.head.dropout
    return config


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    positions = "{base}embeddings.position_embeddings.weight"
    return table_of(
        model,
        names,
        base="distilbert.",
        heads={
            spec.MaskedLanguageModelSpec: (
                ("vocab_transform", "head.dense"),
                ("vocab_layer_norm", "head.norm"),
            ),
            spec.ClassifySpec: (("pre_classifier", "head.dense"), ("classifier", "head.out")),
        },
        matrix="vocab_projector.weight",
        biases=("vocab_projector.bias",),
        layer=LAYER,
        layers="transformer.layer.{i}",
        embeddings=(
            Computed(positions, "embed.position.table", persistent=True)
            if isinstance(model.input.position, spec.SinusoidalSpec)
            else Rename(positions, "embed.position.weight"),
        ),
    )


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
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset({"tie_weights_"}),
)
