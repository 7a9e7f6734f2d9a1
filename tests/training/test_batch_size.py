"""`batch_size` counts examples in every job, `batch_tokens` the tokens of a batch of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glassformer.errors import ConflictError, UnsupportedError
from glassformer.training.data_cache import no_log
from glassformer.training.data_loader import make_batches
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import prepare_job, run
from tests.training.test_jobs_classification import ENCODER, reviews

CPU = torch.device("cpu")


def text_recipe(file: Path, **training: Any) -> Any:
    return parse_recipe(
        {
            "job": "classify",
            "data": {"train": [str(file)], "valid": 0.2, "max_len": 16},
            "tokenizer": {"kind": "word"},
            "model": ENCODER,
            "training": {"device": "cpu", "max_steps": 2, **training},
        }
    )


@pytest.mark.parametrize(
    ("limits", "rows", "tokens"),
    [
        ({"batch_size": 7}, 7, None),
        ({"batch_tokens": 90}, None, 90),
        ({"batch_size": 7, "batch_tokens": 60}, 7, 60),
    ],
)
def test_batches_of_texts_keep_the_limits_that_are_set(
    tmp_path: Path, limits: dict[str, int], rows: int | None, tokens: int | None
) -> None:
    lines: list[str] = []
    request = text_recipe(reviews(tmp_path / "reviews.tsv", 200), epochs=1, **{**limits, "max_steps": None})
    job = prepare_job(request, tmp_path / "run", CPU, lines.append)
    training = job.recipe.training
    assert (training.batch_size, training.batch_tokens) == (rows, tokens)
    task = job.plan()
    batches, examples = make_batches(task.train, training, seed=1, row_width=None)
    epoch = [batch.rows for batch in batches.epoch()]
    sizes = [(len(batch), len(batch) * int(examples.lengths(batch).max())) for batch in epoch]
    assert all(rows is None or count <= rows for count, _ in sizes)
    assert all(tokens is None or padded <= tokens for _, padded in sizes)
    assert sum(count for count, _ in sizes) == len(examples) and training.max_steps == len(sizes)
    if tokens is None:  # only the last batch may be smaller
        assert sorted(count for count, _ in sizes)[1:] == [rows] * (len(sizes) - 1)
    assert not any("counts examples" in line for line in lines)


def test_large_batch_size_of_texts_is_reported(tmp_path: Path) -> None:
    file, lines = reviews(tmp_path / "reviews.tsv", 60), list[str]()
    prepare_job(text_recipe(file, batch_size=1025), tmp_path / "texts", CPU, lines.append)
    assert text_recipe(file, batch_size=1025).batch_warning in lines
    assert not text_recipe(file, batch_size=1024).batch_warning
    images = {
        "job": "classify",
        "data": {"input": "image", "train": ["photos"]},
        "training": {"batch_size": 2000},
    }
    assert not parse_recipe(images).batch_warning
    with pytest.raises(UnsupportedError):
        parse_recipe({**images, "training": {"batch_tokens": 2000}})
    with pytest.raises(ConflictError):
        text_recipe(file, batch_size=32, packing=True)


def test_run_started_with_a_token_budget_resumes_with_it_and_refuses_examples(tmp_path: Path) -> None:
    file, folder = reviews(tmp_path / "reviews.tsv", 60), tmp_path / "run"
    run(text_recipe(file, batch_tokens=100), folder, log=no_log)
    stored = yaml.safe_load((folder / "recipe.yaml").read_text())["training"]
    assert (stored["batch_tokens"], stored["batch_size"]) == (100, None)
    assert json.loads((folder / "request.json").read_text())["training"]["batch_tokens"] == 100
    assert run(text_recipe(file, batch_tokens=100, max_steps=3), folder, log=no_log).step == 3
    with pytest.raises(ConflictError) as error:
        run(text_recipe(file, batch_size=100), folder, log=no_log)
    assert error.value.names[0] in ("training.batch_size", "training.batch_tokens")
