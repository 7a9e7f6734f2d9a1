"""Baselines to compare a Transformer with: LSTMs and simple forecasters with the interface of core models."""

from typing import Any

from glassformer.baselines import spec
from glassformer.baselines.forecast import LinearForecaster, RepeatLast, SeasonalRepeat
from glassformer.baselines.lstm import LSTMEncoderDecoder, LSTMLanguageModel
from glassformer.baselines.spec import BaselineSpec, lstm_spec

__all__ = ["BaselineSpec", "LSTMEncoderDecoder", "LSTMLanguageModel", "build_baseline", "lstm_spec", "spec"]
_MODELS: dict[type[spec.BaselineSpec], Any] = {
    spec.LSTMEncoderDecoderSpec: LSTMEncoderDecoder,
    spec.LSTMLanguageModelSpec: LSTMLanguageModel,
    spec.RepeatLastSpec: RepeatLast,
    spec.SeasonalRepeatSpec: SeasonalRepeat,
    spec.LinearSpec: LinearForecaster,
}


def build_baseline(spec: spec.BaselineSpec) -> Any:
    """Build a baseline with newly initialized weights from its spec.

    >>> import torch
    >>> from glassformer.baselines.spec import RepeatLastSpec
    >>> build_baseline(RepeatLastSpec(prediction_length=3))(torch.ones(2, 8, 5)).shape
    torch.Size([2, 3, 5])
    """
    return _MODELS[type(spec)](spec)
