"""Simple forecasters to compare a Transformer with: past (B, L, C) -> future (B, N, C).

B series, L past steps, N future steps, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.baselines import spec as specs
from glassformer.errors import ShapeError


class RepeatLast(nn.Module):
    """Repeat the last value of each channel.

    >>> RepeatLast(specs.RepeatLastSpec(prediction_length=2))(torch.tensor([[[1.0], [7.0]]])).tolist()
    [[[7.0], [7.0]]]
    """

    def __init__(self, spec: specs.RepeatLastSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, -1:].expand(-1, self.spec.prediction_length, -1)


class SeasonalRepeat(nn.Module):
    """Repeat the last season of each channel.

    >>> repeat = SeasonalRepeat(specs.SeasonalRepeatSpec(prediction_length=3, season=2))
    >>> repeat(torch.tensor([[[9.0], [1.0], [7.0]]])).flatten().tolist()
    [1.0, 7.0, 1.0]
    """

    def __init__(self, spec: specs.SeasonalRepeatSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, inputs: Tensor) -> Tensor:
        season = self.spec.season
        if inputs.shape[1] < season:
            raise ShapeError("past", inputs.shape, f"at least one season of {season} steps")
        steps = torch.arange(self.spec.prediction_length, device=inputs.device) % season
        return inputs[:, -season:].index_select(1, steps)


class LinearForecaster(nn.Module):
    """Predict the future by a linear map of the past minus its last value, shared by all channels (NLinear).

    Before training it repeats the last value.

    >>> LinearForecaster(specs.LinearSpec(context_length=8, prediction_length=3))(torch.ones(2, 8, 5)).shape
    torch.Size([2, 3, 5])
    """

    def __init__(self, spec: specs.LinearSpec) -> None:
        super().__init__()
        self.spec = spec
        self.out = nn.Linear(spec.context_length, spec.prediction_length)
        if not self.out.weight.is_meta:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        last = inputs[:, -1:]  # (B, 1, C)
        change: Tensor = self.out((inputs - last).transpose(1, 2))  # (B, C, N)
        return change.transpose(1, 2) + last
