"""Simpler models with the interface of the core's, for the Transformer to be compared with."""

from typing import Any

from glassformer.baselines import spec
from glassformer.baselines.forecast import Linear, RepeatLast, SeasonalRepeat
from glassformer.baselines.lstm import LSTMEncoderDecoder, LSTMLanguageModel
from glassformer.baselines.spec import KINDS, from_dict, lstm_spec, to_dict

__all__ = [
    "KINDS",
    "LSTMEncoderDecoder",
    "LSTMLanguageModel",
    "build_baseline",
    "from_dict",
    "lstm_spec",
    "spec",
    "to_dict",
]
_MODELS: tuple[Any, ...] = (LSTMEncoderDecoder, LSTMLanguageModel, RepeatLast, SeasonalRepeat, Linear)


def build_baseline(spec: spec.BaselineSpec) -> Any:
    """A fresh model from its spec.

    >>> import torch
    >>> from glassformer.baselines.spec import RepeatLastSpec
    >>> build_baseline(RepeatLastSpec(prediction_length=3))(torch.ones(2, 8, 5)).shape
    torch.Size([2, 3, 5])
    """
    return next(model for model in _MODELS if model.__name__ == spec.kind)(spec)
