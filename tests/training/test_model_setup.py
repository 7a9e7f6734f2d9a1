"""Model overrides that fit no model are errors before any data is read."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.errors import GlassformerError
from glassformer.families.registry import NAMES, families
from glassformer.training.data_cache import no_log
from glassformer.training.hardware import Hardware
from glassformer.training.model_setup import check_overrides, choose_size
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
    known = inspect.signature(families()[family].build).parameters
    by_stage = {"depths", "widths"} & known.keys()  # stages have sizes of their own
    for overrides in ({"d_model": 60}, {"num_heads": 3}, {"d_ff": 40, "num_layers": 1}, {}):
        if overrides.keys() <= known.keys() and not by_stage:
            check_overrides(family, overrides)


def test_size_and_length_do_not_depend_on_the_measured_speed() -> None:
    device, sizes = torch.device("cpu"), (40_000, 2_000_000, 50_000_000)
    chosen = []
    for speed in (1e6, 1e15):
        hardware = Hardware(device=device)
        hardware.measured_flops = speed  # a very busy machine, or a very fast one
        chosen.append([choose_size(hardware, units=units, vocab_size=8000)[:2] for units in sizes])
    assert chosen[0] == chosen[1]
    widths = [size.d_model for size, _ in chosen[0]]
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_little_data_gets_dropout_and_early_stopping(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"a {n} b\tb {n} a\n" for n in range(300)))
    plain: dict[str, Any] = {"job": "translate", "data": {"train": [str(tmp_path / "pairs.tsv")]}}
    cpu = torch.device("cpu")
    recipe = prepare_job(parse_recipe(plain), tmp_path / "run", cpu, no_log).recipe
    assert 0.2 <= recipe.model.overrides["dropout"] <= 0.3
    assert recipe.training.early_stopping_patience
    messages: list[str] = []
    both = {**plain, "training": {"max_steps": 30, "epochs": 4}}
    recipe = prepare_job(parse_recipe(both), tmp_path / "set", cpu, messages.append).recipe
    assert recipe.training.early_stopping_patience == 0, "a length that the recipe sets is kept"
    assert (recipe.training.max_steps, recipe.training.eval_steps) == (30, 10)
    assert any("max_steps" in message and "epochs" in message for message in messages)
