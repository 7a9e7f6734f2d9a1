"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that start after the pad id."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.config import Config
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, Options, Rule
from glassformer.families.text_encoder import KEYS, TEXT_ENCODER, table_of, text_heads

PREFIXES = ("Roberta", "XLMRoberta", "Camembert")


def _read_max_len(config: Config, options: Options) -> dict[str, Any]:
    pad_id, rows = options["pad_id"], config.need("max_position_embeddings", int)
    if pad_id < 0 or rows <= pad_id + 1:
        raise InvalidValueError(
            f"{config.where}: max_position_embeddings", rows, f"more than pad_token_id + 1 ({pad_id + 1})"
        )
    return {"max_len": rows - pad_id - 1}


def _write_max_len(options: Options) -> dict[str, Any]:
    return {"max_position_embeddings": options["max_len"] + options["pad_id"] + 1}


_KEYS = (
    *KEYS[:-1],
    Key("pad_token_id", "pad_id", 1),
    Rule(("max_len",), _read_max_len, _write_max_len),
)

FAMILY = Family(
    name="roberta",
    builder=TEXT_ENCODER,
    keys=_KEYS,
    # the base model
    defaults={
        "vocab_size": 50265,
        "position": "after_pad",
        "types": 1,
        "mlm_activation": "gelu",
        "norm_eps": 1e-5,
        "pad_id": 1,
    },
    heads={
        name: head
        for prefix in PREFIXES
        for name, head in text_heads(prefix, dropped=("hidden", "out")).items()
    },
    presets={
        "roberta-base": {},
        "roberta-large": preset(1024, 16, 24, 4096),
        "distilroberta-base": {"num_layers": 6},
        "xlm-roberta-base": {"vocab_size": 250002},
        "xlm-roberta-large": preset(1024, 16, 24, 4096, vocab_size=250002),
        "camembert-base": {"vocab_size": 32005},
    },
    tiny=TINY,
    weight_table=partial(
        table_of,
        base="roberta.",
        heads={
            spec.MaskedLanguageModelSpec: (
                ("lm_head.dense", "head.dense"),
                ("lm_head.layer_norm", "head.norm"),
            ),
            spec.ClassifySpec: (("classifier.dense", "head.dense"), ("classifier.out_proj", "head.out")),
        },
        matrix="lm_head.decoder.weight",
        biases=("lm_head.bias", "lm_head.decoder.bias"),
    ),
)
