"""The experiment with jobs on text: a run with a few steps, a run that fails, and the split of questions."""

import gzip
import json
from pathlib import Path

import pytest

from experiments.fine_tuning import main, prepare


def test_failing_runs_do_not_end_the_others(tmp_path: Path) -> None:
    words = ["Anna\tB-PER", "in\tO", "Paris\tB-LOC", "is\tO", "Bo\tB-PER", "there\tO"]
    sentences = ["\n".join([*words[n % 3 : n % 3 + 4], f"{n}\tO"]) for n in range(200)]
    folder = tmp_path / "data" / "wikiann"
    folder.mkdir(parents=True)
    for part in ("train", "dev"):
        with gzip.open(folder / f"ko.{part}.txt.gz", "wt", encoding="utf-8") as file:
            file.write("\n\n".join(sentences) + "\n")
    out = tmp_path / "out.json"
    folders = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--out", str(out)]
    small = ["--set", "model.d_model=16", "--set", "model.num_layers=1", "--set", "tokenizer.vocab_size=60"]
    with pytest.raises(SystemExit):  # there are no comments
        main([*folders, *small, *"--only ner-ko hate --seeds 1 --steps 2 --device cpu".split()])
    document = json.loads(out.read_text())
    run = document["runs"]["ner-ko/1"]
    assert run["steps"] == 2 and run["outcome"] == "finished" and run["valid"][-1][0] == 2
    assert 0 <= run["test"]["dev"]["f1"] <= 1
    assert document["rows"]["ner-ko"]["dev"]["f1"]["mean"] == run["test"]["dev"]["f1"]
    assert "FileMissingError" in document["runs"]["hate/1"]["error"]


def test_no_context_is_in_both_parts(tmp_path: Path) -> None:
    (tmp_path / "qa-en-ko").mkdir()
    articles = [{"paragraphs": [{"context": f"text {n % 50}", "qas": []}]} for n in range(200)]
    with gzip.open(tmp_path / "qa-en-ko" / "tydiqa.goldp.en.train.json.gz", "wt", encoding="utf-8") as file:
        json.dump({"data": articles}, file)
    prepare("qa-en", tmp_path, tmp_path)
    parts = (json.loads((tmp_path / f"tydi.{part}.json").read_text()) for part in ("train", "test"))
    train, test = ([one["context"] for one in part["data"][0]["paragraphs"]] for part in parts)
    assert len(train) + len(test) == 200 and train and test and not set(train) & set(test)
