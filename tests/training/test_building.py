"""Words of a model that cannot be are refused before any data is read; those that can be are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.errors import GlassformerError
from glassformer.families.registry import NAMES
from glassformer.training.model_setup import refuse_words
from glassformer.training.recipe import recipe_from
from glassformer.training.run import begin
from glassformer.training.text_encoding import quiet

BAD = {
    "not divisible by num_heads 7": {"num_heads": 7},
    "GB of weights": {"d_model": 10_000_000},
    "whole number from 1": {"d_ff": -3},
    "at least 0 and less than 1": {"dropout": 3},
    "did you mean 'd_model'": {"d_modle": 16},
    "is not known": {"preset": "nothing-like-it"},
}


@pytest.mark.parametrize("says", BAD)
def test_what_makes_no_model_is_refused_before_anything_is_prepared(says: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b\tb a\n" * 50)
    asked: dict[str, Any] = {"job": "translate", "data": {"train": [str(tmp_path / "pairs.tsv")]}}
    recipe = recipe_from({**asked, "model": BAD[says]})
    with pytest.raises(GlassformerError, match=says):
        begin(recipe, tmp_path / "run", torch.device("cpu"), quiet)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", NAMES)
def test_sizes_that_go_with_some_choice_of_the_rest_pass(family: str) -> None:
    for words in ({"d_model": 60}, {"num_heads": 3}, {"d_ff": 40, "num_layers": 1}, {}):
        refuse_words(family, words)


def test_counts_of_steps_have_an_upper_bound() -> None:
    for name in ("steps", "warmup", "validate_every", "patience", "film"):
        asked = {"job": "lm", "data": {"train": ["a"]}, "training": {name: 10**22}}
        with pytest.raises(
            GlassformerError, match=f"training.{name} is 10,000,000,000,000,000,000,000; it must"
        ):
            recipe_from(asked)
