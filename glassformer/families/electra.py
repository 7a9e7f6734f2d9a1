"""ELECTRA: BERT with narrower embeddings, a discriminator for replaced tokens, and no pooler."""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.text_encoder import TASKS, read, read_head, table_of, text_encoder, write

# the small discriminator
electra = variant(
    text_encoder,
    "num_groups position mlm_activation pool normalize",
    **preset(256, 4, 12, 1024),
    embedding_dim=128,
    mlm_activation="gelu",
)
_TASKS = {**TASKS, spec.ReplacedTokenSpec: "ForPreTraining"}


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    options = read(config)
    width = config.get("embedding_size", 128)
    return electra(
        **options,
        embedding_dim=None if width == options["d_model"] else width,
        max_len=config.need("max_position_embeddings", int),
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnlySpec:
    task = config.architecture.removeprefix("Electra")
    head = read_head(config, task, dropped=("hidden", "out"), hidden="gelu", pooler=False)
    if task == "ForPreTraining":
        head = spec.ReplacedTokenSpec(activation=read(config)["activation"])
    return with_head(config, head)


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    config = write(model, "electra", "Electra", tasks=_TASKS)
    return {**config, "embedding_size": model.input.embedding_dim or model.encoder.d_model}


FAMILY = Family(
    name="electra",
    model_types=("electra",),
    architectures=tuple(f"Electra{task}" for task in _TASKS.values()),
    build=electra,
    presets={
        "electra-small": {},
        "electra-base": preset(768, 12, 12, 3072, embedding_dim=None),
        "electra-large": preset(1024, 16, 24, 4096, embedding_dim=None),
    },
    tiny={**TINY, "d_ff": 64, "embedding_dim": 16},
    from_config=from_config,
    to_config=to_config,
    table=partial(
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
    ignored_keys=frozenset("summary_type summary_use_proj summary_activation summary_last_dropout".split()),
)
