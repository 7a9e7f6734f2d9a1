"""Non-finite model outputs are an error in evaluation, and NaN losses in training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.core.series.distributions import Gaussian, NegativeBinomial, StudentT
from glassformer.errors import NonFiniteError
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files


@pytest.mark.parametrize("name", ["pocket-lm", "pocket-series"])
def test_nan_metrics_are_an_error(name: str, tmp_path: Path) -> None:
    bundle = glassformer.load(name)
    matrix = "embed.token.weight" if name == "pocket-lm" else "embed.patch.weight"
    with torch.no_grad():
        bundle.model.get_parameter(matrix).fill_(math.nan)
    folder = glassformer.save(bundle, tmp_path / "model", layout="glassformer")
    data = tmp_path / ("text.txt" if name == "pocket-lm" else "series.csv")
    rows = [f"2024-01-{1 + n // 24:02} {n % 24:02}:00:00,{math.sin(n)}" for n in range(24 * 9)]
    data.write_text("Good day to you.\n" * 9 if name == "pocket-lm" else "\n".join(["ds,y", *rows]) + "\n")
    with pytest.raises(NonFiniteError):
        evaluate_files(folder, [str(data)], device="cpu", log=no_log)


def test_log_prob_matches_torch_and_keeps_nan() -> None:
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 50).double()
    counts = torch.randint(9, (50,)).double()
    for distribution in (
        StudentT.from_outputs(a, b, c),
        Gaussian.from_outputs(a, b),
        NegativeBinomial.from_outputs(a, b),
    ):
        torch.testing.assert_close(distribution.log_prob(counts), distribution.distribution.log_prob(counts))
        for name in distribution._fields:
            with_nan = distribution._replace(**{name: torch.full_like(a, math.nan)})
            assert with_nan.log_prob(counts).isnan().all()
