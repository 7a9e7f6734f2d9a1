"""ALBERT: BERT with narrower embeddings, and layers that share their parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.text_encoder import TASKS, read, read_head, table_of, text_encoder, write

# the second version of the base model
albert = variant(
    text_encoder,
    "position mlm_activation pool normalize",
    vocab_size=30000,
    embedding_dim=128,
    num_groups=1,
    activation="gelu_tanh",
    dropout=0.0,
    attention_dropout=0.0,
)
_LAYER = {
    "attention.{query,key,value}": "self_attn.{q,k,v}_proj",
    "attention.dense": "self_attn.out_proj",
    "attention.LayerNorm": "norm_self",
    "ffn": "ffn.up",
    "ffn_output": "ffn.down",
    "full_layer_layer_norm": "norm_ffn",
}


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    config.only("inner_group_num", 1, default=1)
    return albert(
        **read(config, activation="gelu_new", dropout=0.0, attention_dropout=0.0),
        embedding_dim=config.get("embedding_size", 128),
        num_groups=config.get("num_hidden_groups", 1),
        max_len=config.need("max_position_embeddings", int),
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnlySpec:
    task, dropout = config.architecture.removeprefix("Albert"), config.get("classifier_dropout_prob", 0.1)
    return with_head(config, read_head(config, task, dropped=("out",), dropout=dropout))


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    assert isinstance(model.encoder, spec.StackSpec)
    config = write(model, "albert", "Albert")
    if "classifier_dropout" in config:
        config["classifier_dropout_prob"] = config.pop("classifier_dropout")
    config["embedding_size"] = model.input.embedding_dim
    config["num_hidden_groups"] = model.encoder.num_groups
    return config


FAMILY = Family(
    name="albert",
    model_types=("albert",),
    architectures=tuple(f"Albert{task}" for task in TASKS.values()),
    build=albert,
    presets={
        "albert-base-v2": {},
        "albert-large-v2": preset(1024, 16, 24, 4096),
        "albert-xlarge-v2": preset(2048, 16, 24, 8192),
        "albert-xxlarge-v2": preset(4096, 64, 12, 16384),
    },
    tiny={**TINY, "embedding_dim": 16},
    from_config=from_config,
    to_config=to_config,
    table=partial(
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
    ignored_keys=frozenset("gap_size net_structure_type num_memory_blocks down_scale_factor".split()),
)
