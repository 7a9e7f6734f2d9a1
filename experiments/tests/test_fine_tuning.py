"""The experiment with jobs on text: a run with a few steps, a run that fails, and the split of questions."""

import gzip
import json
from pathlib import Path

import pytest

from experiments.fine_tuning import JOBS, main, prepare
from experiments.labels import TEXT_JOBS, TEXT_METRICS
from experiments.tables import NOT_RUN, TEXT_TESTS, text_jobs


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


def test_table_of_seeds_beside_the_untouched_model(tmp_path: Path) -> None:
    assert text_jobs(tmp_path) == NOT_RUN
    assert set(TEXT_JOBS) == set(JOBS)
    assert all(
        set(job.metrics) <= set(TEXT_METRICS) and set(job.tests) <= set(TEXT_TESTS) for job in JOBS.values()
    )
    runs = {
        f"sts-en/{seed}": {"parameters": 22_700_000, "test": {"test": {"spearman": score}}}
        for seed, score in ((1, 0.8), (2, 0.9))
    }
    runs |= {"sts-en/3": {"error": "lost"}, "sts-en/untouched": {"test": {"test": {"spearman": 0.7}}}}
    runs["qa-en/1"] = {"parameters": 1_000_000, "test": {"XQuAD": {"exact_match": 20.0, "f1": 30.0}}}
    (tmp_path / "fine_tuning.json").write_text(json.dumps({"runs": runs}))
    lines = text_jobs(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == [
        "exact match 20.0, F1 30.0 |",
        "Spearman 70.0 |",
        "Spearman 85.0 ± 7.1 |",
    ]
