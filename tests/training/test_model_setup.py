"""Model overrides that fit no model are errors before any data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.errors import GlassformerError
from glassformer.families.registry import NAMES
from glassformer.training.data_cache import no_log
from glassformer.training.model_setup import check_overrides
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import prepare_job

BAD: list[dict[str, Any]] = [
    {"num_heads": 7},
    {"d_ff": -3},
    {"dropout": 3},
    {"d_modle": 16},
    {"preset": "nothing-like-it"},
]


@pytest.mark.parametrize("model", BAD)
def test_impossible_models_are_errors_before_data_is_prepared(model: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b\tb a\n" * 50)
    data = {"train": [str(tmp_path / "pairs.tsv")]}
    with pytest.raises(GlassformerError):
        recipe = parse_recipe({"job": "translate", "data": data, "model": model})
        prepare_job(recipe, tmp_path / "run", torch.device("cpu"), no_log)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", NAMES)
def test_overrides_that_fit_some_size_pass(family: str) -> None:
    for overrides in ({"d_model": 60}, {"num_heads": 3}, {"d_ff": 40, "num_layers": 1}, {}):
        check_overrides(family, overrides)
