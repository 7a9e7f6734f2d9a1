"""Simpler models under the same outward words, for the Transformer to be compared with."""

from glassformer.baselines import spec
from glassformer.baselines.lstm import LSTMEncoderDecoder, LSTMLanguageModel, build_baseline
from glassformer.baselines.spec import from_dict, to_dict

__all__ = ["spec", "LSTMEncoderDecoder", "LSTMLanguageModel", "build_baseline", "to_dict", "from_dict"]
