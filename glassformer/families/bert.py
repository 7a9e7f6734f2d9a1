"""BERT: post-norm encoder with learned positions, two token types and a masked-language-model head."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.family import TINY, Family, preset
from glassformer.families.text_encoder import KEYS, MAX_LEN, TEXT_ENCODER, table_of, text_heads

_TRANSFORM = "cls.predictions.transform."

table = partial(
    table_of,
    base="bert.",
    heads={
        spec.MaskedLanguageModelSpec: (
            (f"{_TRANSFORM}dense", "head.dense"),
            (f"{_TRANSFORM}LayerNorm", "head.norm"),
        ),
        spec.ClassifySpec: (("{base}pooler.dense", "head.dense"), ("classifier", "head.out")),
    },
    matrix="cls.predictions.decoder.weight",
    biases=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)

FAMILY = Family(
    name="bert",
    builder=TEXT_ENCODER,
    keys=(*KEYS, MAX_LEN),
    heads=text_heads("Bert", dropped=("out",)),
    presets={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-large-uncased": preset(1024, 16, 24, 4096),
        "bert-large-cased": preset(1024, 16, 24, 4096, vocab_size=28996),
    },
    tiny=TINY,
    weight_table=table,
)
