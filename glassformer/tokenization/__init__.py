"""Tokenizers: load the tokenizer of a published model folder, or train a new one."""

from glassformer.tokenization.loading import load_tokenizer
from glassformer.tokenization.source_target import pair_tokenizers
from glassformer.tokenization.tokenizer import (
    Encoded,
    Side,
    Tokenizer,
    code_languages,
    encode_tagged,
    tag_ids,
    tag_languages,
    tag_position,
)
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

__all__ = [
    "Encoded",
    "Side",
    "Tokenizer",
    "TokenizerPlan",
    "encode_tagged",
    "load_tokenizer",
    "pair_tokenizers",
    "tag_languages",
    "tag_ids",
    "tag_position",
    "code_languages",
    "train_tokenizer",
]
