"""BERT: post-norm encoder with learned positions, two token types and a masked-language-model head."""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.family import TINY, Config, Family, preset, variant
from glassformer.families.text_encoder import TASKS, read, read_head, table_of, text_encoder, write

bert = variant(text_encoder, "embedding_dim num_groups position mlm_activation pool normalize")


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    max_len, pad_id = config.need("max_position_embeddings", int), config.maybe("pad_token_id", int)
    return bert(**read(config), max_len=max_len, pad_id=pad_id, head=head)


def from_config(config: Config) -> spec.EncoderOnlySpec:
    return with_head(config, read_head(config, config.architecture.removeprefix("Bert"), dropped=("out",)))


_TRANSFORM = "cls.predictions.transform."

FAMILY = Family(
    name="bert",
    model_types=("bert",),
    architectures=tuple(f"Bert{task}" for task in TASKS.values()),
    build=bert,
    presets={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-large-uncased": preset(1024, 16, 24, 4096),
        "bert-large-cased": preset(1024, 16, 24, 4096, vocab_size=28996),
    },
    tiny=TINY,
    from_config=from_config,
    to_config=partial(write, model_type="bert", stem="Bert"),
    table=partial(
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
    ),
    ignored_keys=frozenset(
        """directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type""".split()
    ),
)
