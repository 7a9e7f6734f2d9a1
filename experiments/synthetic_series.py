"""Synthetic time series of many kinds, generated from a seed.

Each is a sum or a product of a trend (level, slope, growth, turning points), seasons of any period and
shape, and noise of several kinds, now and then with shifts of level and outliers; or a walk, a wave that
wanders, or counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
USUAL = (4, 5, 6, 7, 7, 12, 12, 24, 24, 24, 48, 52)  # periods that calendars and clocks have


@dataclass(frozen=True, kw_only=True)
class SyntheticSeries:
    """A series (steps,) of about mean 0 and std 1, and its main period; 1 if it has none."""

    values: Floats
    period: int


def generate_series(seed: int, count: int, steps: int) -> list[SyntheticSeries]:
    """`count` series, the same for the same seed."""
    return [_one(np.random.default_rng([seed, number]), steps) for number in range(count)]


def _one(rng: np.random.Generator, steps: int) -> SyntheticSeries:
    kind = rng.choice(4, p=(0.76, 0.1, 0.08, 0.06))
    if kind == 0:
        values, period = _composed(rng, steps)
    else:
        values, period = (_walk, _wandering, _counts)[kind - 1](rng, steps)
    return SyntheticSeries(values=(values - values.mean()) / max(float(values.std()), 1e-3), period=period)


def _composed(rng: np.random.Generator, steps: int) -> tuple[Floats, int]:
    """Course, seasons and noise, added or multiplied."""
    periods = _periods(rng)
    season = np.zeros(steps)
    for rank, period in enumerate(periods):
        season += _season(rng, steps, period) * (1.0 if rank == 0 else rng.uniform(0.2, 0.8))
    if periods and rng.random() < 0.25:  # seasons that swell or fade
        season = season * np.exp(_smooth(rng, steps, rng.uniform(0.05, 0.4)))
    course = _course(rng, steps) * rng.choice((0.0, 0.3, 1.0, 2.0), p=(0.25, 0.3, 0.3, 0.15))
    noise = _noise(rng, steps) * (np.exp(rng.uniform(-3.5, -0.3)) if periods else rng.uniform(0.1, 1.0))
    if periods and rng.random() < 0.3:
        values = np.exp(0.5 * course + rng.uniform(0.3, 1.2) * season + 0.5 * noise)
    else:
        values = course + season + noise
    if rng.random() < 0.12:
        values = values + _shifts(rng, steps) * values.std()
    if rng.random() < 0.1:
        hit = rng.random(steps) < rng.uniform(0.002, 0.02)
        values = values + hit * rng.standard_t(3, steps) * 3 * values.std()
    return values, periods[0] if periods else 1


def _periods(rng: np.random.Generator) -> list[int]:
    """The main period first; none in one series of seven."""
    if rng.random() < 1 / 7:
        return []
    first = int(rng.choice(USUAL)) if rng.random() < 0.65 else round(float(np.exp(rng.uniform(1.1, 4.1))))
    if rng.random() < 0.7:
        return [first]
    longer = {24: 168, 12: 52, 7: 30, 48: 336}.get(first, round(first * rng.uniform(2, 8)))
    return [first, longer]


def _season(rng: np.random.Generator, steps: int, period: int) -> Floats:
    """A shape that repeats every period, of std 1."""
    phase = (np.arange(steps) + rng.uniform(0, period)) / period  # in turns
    match rng.integers(5):
        case 0:
            wave = np.sin(2 * np.pi * phase)
        case 1:  # a few overtones
            wave = sum(
                rng.normal()
                / over ** rng.uniform(0.5, 1.5)
                * np.sin(2 * np.pi * (over * phase + rng.random()))
                for over in range(1, 5)
            )
        case 2:  # one bump, narrow or wide, as a rush hour or an epidemic
            wave = np.exp(rng.uniform(1, 6) * (np.cos(2 * np.pi * phase) - 1)) * rng.choice((-1, 1))
        case 3:  # on and off, or up and over
            share = rng.uniform(0.15, 0.85)
            turn = phase % 1
            wave = (turn < share).astype(float) if rng.random() < 0.5 else np.where(turn < share, turn, 0.0)
        case _:  # any profile, smoothed
            size = max(2, period)
            profile = np.convolve(np.tile(rng.normal(size=size), 3), np.ones(3) / 3, "same")[size : 2 * size]
            wave = profile[(np.floor(phase * size) % size).astype(int)]
    spread = float(np.std(wave))
    return np.asarray(wave - np.mean(wave)) / spread if spread > 1e-6 else np.zeros(steps)


def _course(rng: np.random.Generator, steps: int) -> Floats:
    """The trend, of about size 1."""
    time = np.linspace(-1, 1, steps)
    match rng.integers(5):
        case 0:
            return rng.normal() * time
        case 1:  # turns of a straight line
            bends = np.sort(rng.uniform(-1, 1, rng.integers(1, 4)))
            return rng.normal() * time + sum(rng.normal() * np.maximum(time - bend, 0) for bend in bends)
        case 2:  # growth or decay
            grown = np.exp(rng.uniform(0.5, 2.5) * time * rng.choice((-1, 1)))
            return np.asarray(grown / grown.max() * 2 * rng.choice((-1, 1)))
        case 3:  # filling up
            return np.asarray(2 / (1 + np.exp(-rng.uniform(2, 8) * (time - rng.uniform(-0.7, 0.7)))))
        case _:
            return _smooth(rng, steps, 1.0)


def _smooth(rng: np.random.Generator, steps: int, size: float) -> Floats:
    """A slow drift: a walk averaged over a while."""
    width = int(rng.integers(10, 60))
    walk = np.cumsum(rng.normal(size=steps + width))
    drift = np.convolve(walk, np.ones(width) / width, "valid")[:steps]
    return np.asarray((drift - drift.mean()) / max(float(drift.std()), 1e-6) * size)


def _noise(rng: np.random.Generator, steps: int) -> Floats:
    """Noise of std about 1: Gaussian, heavy-tailed, autocorrelated or heteroscedastic."""
    match rng.integers(4):
        case 0:
            return rng.normal(size=steps)
        case 1:
            return np.clip(rng.standard_t(4, steps), -8, 8) / 1.4
        case 2:
            return _recurrent(rng.normal(size=steps), (rng.uniform(0.3, 0.95),))
        case _:
            return np.asarray(rng.normal(size=steps) * np.exp(_smooth(rng, steps, 0.5)))


def _recurrent(shocks: Floats, weights: tuple[float, ...]) -> Floats:
    """An autoregressive process, scaled to std 1."""
    values = np.zeros(len(shocks) + len(weights))
    for n, shock in enumerate(shocks):
        at = n + len(weights)
        values[at] = shock + sum(weight * values[at - lag] for lag, weight in enumerate(weights, 1))
    result = values[len(weights) :]
    return np.asarray(result / max(float(result.std()), 1e-6))


def _shifts(rng: np.random.Generator, steps: int) -> Floats:
    """The level moved for good, once or twice."""
    total = np.zeros(steps)
    for at in rng.integers(0, steps, rng.integers(1, 3)):
        total[at:] += rng.normal() * 1.5
    return total


def _walk(rng: np.random.Generator, steps: int) -> tuple[Floats, int]:
    """A random walk, sometimes with a drift: the best forecast is its last value."""
    return np.cumsum(rng.normal(size=steps) + rng.choice((0.0, rng.normal() * 0.1))), 1


def _wandering(rng: np.random.Generator, steps: int) -> tuple[Floats, int]:
    """A wave whose phase and size wander."""
    period, lasting = float(np.exp(rng.uniform(1.6, 4.0))), rng.uniform(0.93, 0.998)
    weights = (2 * lasting * np.cos(2 * np.pi / period), -(lasting**2))
    return _recurrent(rng.normal(size=steps), weights), round(period)


def _counts(rng: np.random.Generator, steps: int) -> tuple[Floats, int]:
    """Whole numbers about a rate with a season."""
    period = int(rng.choice(USUAL))
    rate = np.exp(rng.uniform(-0.5, 3.0) + rng.uniform(0.2, 0.8) * _season(rng, steps, period))
    return rng.poisson(np.minimum(rate, 1e4)).astype(float), period
