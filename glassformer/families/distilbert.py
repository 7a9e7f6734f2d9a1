"""DistilBERT: BERT with half the layers, without token types and without a pooler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.family import TINY, Family
from glassformer.families.keys import Head, Key, activation
from glassformer.families.text_encoder import TEXT_ENCODER, table_of, text_heads
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Computed, Rename

_DROPOUT = Key("dropout", default=0.1)
KEYS = (
    Key("vocab_size"),
    Key("dim", "d_model", aliases=("hidden_size",)),
    Key("n_heads", "num_heads", aliases=("num_attention_heads",)),
    Key("hidden_dim", "d_ff"),
    Key("n_layers", "num_layers", aliases=("num_hidden_layers",)),
    Key("max_position_embeddings", "max_len"),
    activation("activation", "gelu"),
    _DROPOUT,
    Key("attention_dropout", default=0.1),
    Key("tie_word_embeddings", "tied", True),
    Key("sinusoidal_pos_embds", "position", False, values={True: "sinusoidal", False: "learned"}),
    Key("pad_token_id", "pad_id", None),
)
LAYER = {
    "attention.{q,k,v,out}_lin": "self_attn.{q,k,v,out}_proj",
    "sa_layer_norm": "norm_self",
    "ffn.lin1": "ffn.up",
    "ffn.lin2": "ffn.down",
    "output_layer_norm": "norm_ffn",
}


def table(model: Any, names: Collection[str]) -> WeightTable:
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
    builder=TEXT_ENCODER,
    keys=KEYS,
    # The uncased base model. In training, dropout is also applied to the attention output, as in BERT.
    defaults={"num_layers": 6, "types": None},
    heads={
        **text_heads("DistilBert", dropped=()),
        "DistilBertModel": Head(spec.FeaturesSpec),
        "DistilBertForSequenceClassification": Head(
            spec.ClassifySpec,
            (Key("seq_classif_dropout", "dropout", 0.2),),
            {"hidden": "relu", "dropped": ("out",)},
        ),
        "DistilBertForTokenClassification": Head(spec.TokenClassifySpec, (_DROPOUT,)),
        "DistilBertForQuestionAnswering": Head(spec.AnswerSpec, (Key("qa_dropout", "dropout", 0.1),)),
    },
    presets={
        "distilbert-base-uncased": {},
        "distilbert-base-cased": {"vocab_size": 28996},
        "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    },
    tiny=TINY,
    weight_table=table,
)
