"""Text to token ids and back, for the tokenizers that published model folders carry."""

from glassformer.text.load import load_tokenizer
from glassformer.text.tokenizer import Encoded, Side, SpecialInText, Tokenizer

__all__ = ["Encoded", "Side", "SpecialInText", "Tokenizer", "load_tokenizer"]
