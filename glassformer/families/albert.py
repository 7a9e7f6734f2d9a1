"""ALBERT: BERT with narrower embeddings, and layers that share their parameters."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, fixed, with_defaults
from glassformer.families.text_encoder import KEYS, MAX_LEN, TEXT_ENCODER, table_of, text_heads

_KEYS = (
    *with_defaults(KEYS, activation="gelu_new", dropout=0.0, attention_dropout=0.0),
    MAX_LEN,
    Key("embedding_size", "embedding_dim", 128),
    Key("num_hidden_groups", "num_groups", 1),
    fixed("inner_group_num", 1),
)
_LAYER = {
    "attention.{query,key,value}": "self_attn.{q,k,v}_proj",
    "attention.dense": "self_attn.out_proj",
    "attention.LayerNorm": "norm_self",
    "ffn": "ffn.up",
    "ffn_output": "ffn.down",
    "full_layer_layer_norm": "norm_ffn",
}


FAMILY = Family(
    name="albert",
    builder=TEXT_ENCODER,
    keys=_KEYS,
    # the second version of the base model
    defaults={
        "vocab_size": 30000,
        "embedding_dim": 128,
        "num_groups": 1,
        "activation": "gelu_tanh",
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    heads=text_heads("Albert", dropped=("out",), dropout=Key("classifier_dropout_prob", "dropout", 0.1)),
    presets={
        "albert-base-v2": {},
        "albert-large-v2": preset(1024, 16, 24, 4096),
        "albert-xlarge-v2": preset(2048, 16, 24, 8192),
        "albert-xxlarge-v2": preset(4096, 64, 12, 16384),
    },
    tiny={**TINY, "embedding_dim": 16},
    weight_table=partial(
        table_of,
        base="albert.",
        heads={
            spec.MaskedLanguageModelSpec: (
                ("predictions.dense", "head.dense"),
                ("predictions.LayerNorm", "head.norm"),
            ),
            spec.ClassifySpec: (("{base}pooler", "head.dense"), ("classifier", "head.out")),
        },
        matrix="predictions.decoder.weight",
        biases=("predictions.bias", "predictions.decoder.bias"),
        layer=_LAYER,
        layers="encoder.albert_layer_groups.{i}.albert_layers.0",
        projection="{base}encoder.embedding_hidden_mapping_in",
        pooler="{base}pooler",
    ),
)
