"""Text to token ids and back: the tokenizers that published model folders carry, and new ones to learn."""

from glassformer.text.languages import read_languages, written_languages
from glassformer.text.load import load_tokenizer
from glassformer.text.tags import encode_tagged, tag_ids, tag_place
from glassformer.text.tokenizer import Encoded, Side, SpecialInText, Tokenizer
from glassformer.text.train import TokenizerPlan, train_tokenizer
from glassformer.text.two_libraries import separate

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
