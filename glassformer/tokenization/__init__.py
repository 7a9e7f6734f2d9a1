"""Text to token ids and back: the tokenizers that published model folders carry, and new ones to learn."""

from glassformer.tokenization.languages import read_languages, written_languages
from glassformer.tokenization.load import load_tokenizer
from glassformer.tokenization.tags import encode_tagged, tag_ids, tag_place
from glassformer.tokenization.tokenizer import Encoded, Side, SpecialInText, Tokenizer
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from glassformer.tokenization.two_libraries import separate

__all__ = [
    "Encoded",
    "Side",
    "SpecialInText",
    "Tokenizer",
    "load_tokenizer",
    "TokenizerPlan",
    "train_tokenizer",
    "separate",
    "encode_tagged",
    "tag_ids",
    "tag_place",
    "read_languages",
    "written_languages",
]
