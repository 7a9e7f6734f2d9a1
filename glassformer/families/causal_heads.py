"""The heads of decoder-only families that publish them under one scheme of class and tensor names.

A stem such as "Xyz" makes XyzForCausalLM, XyzModel, XyzForSequenceClassification and so on.
"""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, labels_of
from glassformer.weights.ops import Op, Rename, Tied, expand

KINDS: dict[str, type[spec.Head]] = {
    "ForCausalLM": spec.LanguageModel,
    "Model": spec.Features,
    "ForSequenceClassification": spec.Classify,
    "ForTokenClassification": spec.TokenClassify,
    "ForQuestionAnswering": spec.Answer,
}


def architectures(stem: str) -> tuple[str, ...]:
    return tuple(stem + kind for kind in KINDS)


def read_head(config: Config, stem: str, *, dropout: float = 0.1) -> spec.Head | None:
    """The head that the architecture names; None is the language model, which the family builds itself.

    `dropout` falls before the token classifier where the config says nothing of it.
    """
    dropout = config.get("classifier_dropout", dropout)
    bias = config.get("token_classification_bias", True)
    heads: dict[str, spec.Head] = {
        "Model": spec.Features(),
        "ForSequenceClassification": spec.Classify(num_labels=config.num_labels, pool="last", bias=False),
        "ForTokenClassification": spec.TokenClassify(
            num_labels=config.num_labels, bias=bias, dropout=dropout
        ),
        "ForQuestionAnswering": spec.Answer(),
    }
    return heads.get(config.architecture.removeprefix(stem))


def write_head(head: spec.Head, stem: str) -> dict[str, Any]:
    """What a config says of the head: `read_head` backwards."""
    kinds = {kind: name for name, kind in KINDS.items()}
    config: dict[str, Any] = {"architectures": [stem + kinds[type(head)]], **labels_of(head)}
    if isinstance(head, spec.TokenClassify):
        config["classifier_dropout"] = head.dropout
        if not head.bias:
            config["token_classification_bias"] = False
    return config


def read_pad(config: Config, head: spec.Head | None) -> int | None:
    """The pad id, unless it also begins or ends texts: then a token of that id may well be real.

    Chat models often pad with the token that ends each turn, and their prompts are full of it. A
    sequence classifier keeps it all the same, for it must find where a text ends.
    """
    pad = config.maybe("pad_token_id", int)
    marks = (config.values.get("bos_token_id"), config.values.get("eos_token_id"))
    used = {each for mark in marks for each in (mark if isinstance(mark, list) else [mark])}
    return None if pad in used and not isinstance(head, spec.Classify) else pad


def head_rows(
    model: spec.DecoderOnly, *, token: str = "{base}embed_tokens.weight", each_token: str = "score"
) -> tuple[Op, ...]:
    """The rows of the head and of the token matrix, which a language model may share.

    `token` and `each_token` are the published names of the token matrix and of the token classifier.
    """
    rows: tuple[Op, ...] = (Rename(token, "embed.token.weight"),)
    match model.head:
        case spec.LanguageModel() if model.tied:
            return (Tied((token, "lm_head.weight"), "embed.token.weight"),)
        case spec.LanguageModel():
            return (*rows, Rename("lm_head.weight", "head.weight"))
        case spec.Classify():
            return (*rows, Rename("score.weight", "head.out.weight"))
        case spec.TokenClassify(bias=bias):
            parts = ("weight", "bias") if bias else ("weight",)
            return (*rows, *expand((Rename(f"{each_token}.{{p}}", "head.out.{p}"),), p=parts))
        case spec.Answer():
            return (*rows, *expand((Rename("qa_outputs.{p}", "head.out.{p}"),), p=("weight", "bias")))
    return rows
