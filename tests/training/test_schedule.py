"""Schedules against their formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest

from glassformer.errors import GlassformerError
from glassformer.training.optimizer import Constant, Cosine, InverseSqrt, Linear, paper_peak


def test_the_papers_schedule_is_the_papers_formula() -> None:
    d_model, warmup = 512, 4000
    ours, peak = InverseSqrt(warmup=warmup), paper_peak(d_model, warmup)
    for step in (1, 2, 100, 3999, 4000, 4001, 10_000, 300_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert ours.at(step) * peak == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("kind", [Linear, Cosine])
def test_a_decaying_schedule_peaks_after_the_warm_up_falls_and_stays_at_its_floor(kind: type) -> None:
    schedule = kind(warmup=10, steps=100, floor=0.05)
    rates = [schedule.at(step) for step in range(1, 150)]
    assert max(rates) == rates[9] == 1.0
    assert all(a < b for a, b in pairwise(rates[:10]))
    assert all(a > b for a, b in pairwise(rates[9:99]))
    assert rates[99:] == pytest.approx([0.05] * 50)


def test_no_warm_up_begins_at_the_top_and_bad_numbers_are_sentences() -> None:
    assert Constant().at(1) == InverseSqrt().at(1) == 1.0
    with pytest.raises(GlassformerError, match="warmup is -1"):
        Constant(warmup=-1)
    with pytest.raises(GlassformerError, match="steps count from 1"):
        Constant().at(0)
