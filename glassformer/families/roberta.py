"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that start after the pad id."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.text_encoder import TASKS, read, read_head, table_of, text_encoder, write

PREFIXES = ("Roberta", "XLMRoberta", "Camembert")

# the base model
roberta = variant(
    text_encoder,
    "embedding_dim num_groups position mlm_activation pool normalize",
    vocab_size=50265,
    position="after_pad",
    types=1,
    mlm_activation="gelu",
    norm_eps=1e-5,
    pad_id=1,
)


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    pad_id, rows = config.get("pad_token_id", 1), config.need("max_position_embeddings", int)
    if pad_id < 0 or rows <= pad_id + 1:
        raise InvalidValueError(
            f"{config.where}: max_position_embeddings", rows, f"more than pad_token_id + 1 ({pad_id + 1})"
        )
    return roberta(**read(config), max_len=rows - pad_id - 1, pad_id=pad_id, head=head)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    task = next(config.architecture.removeprefix(p) for p in PREFIXES if config.architecture.startswith(p))
    return with_head(config, read_head(config, task, dropped=("hidden", "out")))


FAMILY = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    architectures=tuple(f"{prefix}{task}" for prefix in PREFIXES for task in TASKS.values()),
    build=roberta,
    presets={
        "roberta-base": {},
        "roberta-large": preset(1024, 16, 24, 4096),
        "distilroberta-base": {"num_layers": 6},
        "xlm-roberta-base": {"vocab_size": 250002},
        "xlm-roberta-large": preset(1024, 16, 24, 4096, vocab_size=250002),
        "camembert-base": {"vocab_size": 32005},
    },
    tiny=TINY,
    from_config=from_config,
    to_config=partial(write, model_type="roberta", stem="Roberta"),
    table=partial(
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
