"""ELECTRA: BERT with narrower embeddings, a discriminator for replaced tokens, and no pooler."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Head, Options, Rule, activation
from glassformer.families.text_encoder import KEYS, MAX_LEN, TEXT_ENCODER, table_of, text_heads


def _read_width(config: Config, options: Options) -> dict[str, Any]:
    width = config.get("embedding_size", 128)
    return {"embedding_dim": None if width == options["d_model"] else width}


def _write_width(options: Options) -> dict[str, Any]:
    return {"embedding_size": options["embedding_dim"] or options["d_model"]}


FAMILY = Family(
    name="electra",
    builder=TEXT_ENCODER,
    keys=(*KEYS, MAX_LEN, Rule(("embedding_dim",), _read_width, _write_width)),
    # the small discriminator
    defaults={**preset(256, 4, 12, 1024), "embedding_dim": 128, "mlm_activation": "gelu"},
    heads={
        **text_heads("Electra", dropped=("hidden", "out"), hidden="gelu", pooler=False),
        "ElectraForPreTraining": Head(spec.ReplacedTokenSpec, (activation("hidden_act", "gelu"),)),
    },
    presets={
        "electra-small": {},
        "electra-base": preset(768, 12, 12, 3072, embedding_dim=None),
        "electra-large": preset(1024, 16, 24, 4096, embedding_dim=None),
    },
    tiny={**TINY, "d_ff": 64, "embedding_dim": 16},
    weight_table=partial(
        table_of,
        base="electra.",
        heads={
            spec.MaskedLanguageModelSpec: (
                ("generator_predictions.dense", "head.dense"),
                ("generator_predictions.LayerNorm", "head.norm"),
            ),
            spec.ReplacedTokenSpec: (
                ("discriminator_predictions.dense", "head.dense"),
                ("discriminator_predictions.dense_prediction", "head.out"),
            ),
            spec.ClassifySpec: (("classifier.dense", "head.dense"), ("classifier.out_proj", "head.out")),
        },
        matrix="generator_lm_head.weight",
        biases=("generator_lm_head.bias",),
        projection="{base}embeddings_project",
    ),
)
