"""The job summarize: prefixes, truncation, ROUGE, and the commands that run its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import glassformer
from glassformer.metrics.text import rouge
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

MODEL = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1}


def test_summarizer_is_trained_evaluated_and_run_with_its_prefix_and_columns(tmp_path: Path) -> None:
    table = tmp_path / "articles.csv"
    rows = [f"{n},Paper {n},the long story of paper {n} and its end" for n in range(60)]
    table.write_text("id,title,abstract\n" + "\n".join(rows) + "\n")
    recipe = parse_recipe(
        {
            "job": "summarize",
            "data": {"train": str(table), "valid": str(table), "max_len": 12, "prefix": "tl: "},
            "tokenizer": {"kind": "char"},
            "model": {**MODEL, "preset": "t5"},
            "training": {"device": "cpu", "max_steps": 2, "batch_tokens": 900, "eval_steps": 2},
        }
    )
    run(recipe, tmp_path / "run", log=no_log)
    folder = tmp_path / "run" / "model"
    job = json.loads((folder / "job.json").read_text())
    columns = {"source": "abstract", "target": "title"}
    assert job == {"job": "summarize", "data_columns": columns, "max_len": 12, "prefix": "tl: "}
    result = evaluate_files(folder, [str(table)], log=no_log)
    history = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    validated = [
        row for row in map(json.loads, history) if "rougeL" in row or "rougeL" in row.get("metrics", {})
    ]
    found = validated[-1].get("metrics", validated[-1])
    for name, value in result.validation.metrics.items():
        assert value == pytest.approx(found[name], rel=1e-4), name
    model = glassformer.load(folder)
    assert model.summarize("a b", num_beams=1) == model.summarize("a b", prefix="tl: ", num_beams=1)
    with pytest.raises(glassformer.GlassformerError):
        model.translate("a b")


def test_rouge_matches_hand_worked_cases() -> None:
    # 5 of 6 and 6 words in common; pairs: the-cat, on-the, the-mat of 5; subsequence: the cat on the mat
    scores = rouge(["The cat lay on the mat"], ["the cat sat on the mat!"])
    assert scores == pytest.approx({"rouge1": 500 / 6, "rouge2": 60.0, "rougeL": 500 / 6})
    # 3 of 3 words, in another order: no pair, and a subsequence of 1 of 3
    assert rouge(["c b a"], ["a b c"]) == pytest.approx({"rouge1": 100.0, "rouge2": 0.0, "rougeL": 100 / 3})
    # repeated words count as often as they occur in both: precision 1/4, recall 1/2
    assert rouge(["바다 바다 바다 바다"], ["바다 하늘"])["rouge1"] == pytest.approx(100 / 3)
    assert rouge([""], ["a"]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
