"""From a baseline's spec to the baseline."""

from __future__ import annotations

from glassformer.baselines import spec as specs
from glassformer.baselines.forecast import Linear, RepeatLast, SeasonalRepeat
from glassformer.baselines.lstm import LSTMEncoderDecoder, LSTMLanguageModel
from glassformer.errors import GlassformerError

Baseline = LSTMEncoderDecoder | LSTMLanguageModel | RepeatLast | SeasonalRepeat | Linear


def build_baseline(spec: specs.Baseline) -> Baseline:
    """A fresh model from its spec.

    >>> import torch
    >>> build_baseline(specs.LSTMLanguageModel(vocab_size=50, d_model=16))(torch.ones(2, 7).long()).shape
    torch.Size([2, 7, 50])
    >>> build_baseline(specs.RepeatLast(prediction_length=3))(torch.ones(2, 8, 5)).shape
    torch.Size([2, 3, 5])
    """
    match spec:
        case specs.LSTMEncoderDecoder():
            return LSTMEncoderDecoder(spec)
        case specs.LSTMLanguageModel():
            return LSTMLanguageModel(spec)
        case specs.RepeatLast():
            return RepeatLast(spec)
        case specs.SeasonalRepeat():
            return SeasonalRepeat(spec)
        case specs.Linear():
            return Linear(spec)
    raise GlassformerError(f"no baseline is built from a {type(spec).__name__}")
