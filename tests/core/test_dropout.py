"""The 16-bit dropout on a CPU has the right rate, mean and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from glassformer.core.backend import add_residual, dropout, relu_dropout

N = 400_003  # odd: the last 64-bit draw is not used up


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_dropout_rate_and_mean_are_correct(p: float) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(N), p, training=True)
    zeros = float((y == 0).float().mean())
    assert abs(zeros - p) < 5 * math.sqrt(p * (1 - p) / N) + 1 / 65536
    stored = y[y != 0].unique()
    assert len(stored) == 1 and abs(float(stored) - 1 / (1 - p)) < 1e-3 / (1 - p) ** 2
    assert abs(float(y.mean()) - 1) < 6 * math.sqrt(p / (1 - p) / N)


def test_dropout_of_neighbors_is_independent() -> None:
    """All four cuts of one draw: no pair of places agrees more often than chance."""
    torch.manual_seed(1)
    stored = (dropout(torch.ones(4 * 100_000), 0.5, training=True) != 0).float().view(-1, 4) - 0.5
    correlation = stored.T @ stored / len(stored) * 4
    assert (correlation - torch.eye(4)).abs().max() < 0.02


def test_relu_dropout_matches_dropout_after_relu() -> None:
    """The same draws give the same result and the same gradient as the two steps apart."""
    x = torch.randn(64, 50, requires_grad=True)
    weight = torch.randn(64, 50)
    actual = []
    for step in (lambda: relu_dropout(x, 0.2, True), lambda: dropout(F.relu(x), 0.2, True)):
        torch.manual_seed(3)
        y = step()
        actual.append((y.detach(), *torch.autograd.grad((y * weight).sum(), x)))
    torch.testing.assert_close(actual[0], actual[1])


def test_add_residual_with_dropout_matches_separate_steps() -> None:
    x, out = (torch.randn(40, 30, requires_grad=True) for _ in range(2))
    actual = []
    for step in (lambda: add_residual(x, out, 0.4, True), lambda: x + dropout(out, 0.4, True)):
        torch.manual_seed(4)
        y = step()
        actual.append((y.detach(), *torch.autograd.grad(y.square().sum(), (x, out))))
    torch.testing.assert_close(actual[0], actual[1])
