"""Simpler models under the same outward words, for the Transformer to be compared with."""

from glassformer.baselines import spec
from glassformer.baselines.build import build_baseline
from glassformer.baselines.lstm import LSTMEncoderDecoder, LSTMLanguageModel
from glassformer.baselines.spec import KINDS, from_dict, lstm_spec, to_dict

__all__ = [
    "spec",
    "KINDS",
    "lstm_spec",
    "to_dict",
    "from_dict",
    "LSTMEncoderDecoder",
    "LSTMLanguageModel",
    "build_baseline",
]
