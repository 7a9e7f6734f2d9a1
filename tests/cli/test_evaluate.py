"""`glassformer evaluate` and `average`: the metrics of a run's own validation, and mean weights."""

import json
import shutil

import pytest
import sacrebleu
import torch

import glassformer
from glassformer.cli.main import main
from glassformer.weights.store import open_weights
from tests.cli.test_train import place, quick
from tests.recipes.made_up import text_files

__all__ = ["place"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that keeps its last two weights, whose model is that of its last step."""
    folder = tmp_path_factory.mktemp("finished")
    text_files(folder)
    words = ("training.steps=4", "training.validate_every=2", "training.average=2")
    files = ("--train", folder / "pairs.tsv", "--valid", folder / "test.tsv")
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in ("train", "translate", *files, *quick(*words), "--out", folder / "run")])
    assert not stop.value.code
    return folder / "run"


@pytest.fixture
def trained(finished, place):
    """The run as each test may change it."""
    shutil.copytree(finished, place / "runs/x")
    return place / "runs/x"


def document(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_metrics_equal_those_of_the_run(run, trained):
    """The same files give what the run logged of the same weights, whatever the batch."""
    lines = map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    logged = [line for line in lines if line["kind"] == "valid" and line["step"] == 4][-1]
    found = document(run("evaluate", trained / "averaged/step-00000004", "test.tsv", "--json"))
    assert found["job"] == "translate" and found["signatures"] == logged["signatures"]
    assert found["metrics"] == pytest.approx(logged["metrics"], rel=1e-5)
    small = document(
        run("evaluate", trained / "averaged/step-00000004", "test.tsv", "--json", "--batch", "64")
    )
    assert small["metrics"] == pytest.approx(found["metrics"], rel=1e-5)


def test_written_outputs_give_the_same_scores(run, trained, place):
    """All of them, in order; the reference tool finds the same BLEU and chrF in the file."""
    options = ("--tokenize", "char", "--lowercase", "--out", "answers.txt", "--json")
    found = document(run("evaluate", trained / "model", "test.tsv", *options))
    answers = (place / "answers.txt").read_text().splitlines()
    expected = [line.split("\t")[1] for line in (place / "test.tsv").read_text().splitlines()]
    assert len(answers) == len(expected) == 120
    metric = sacrebleu.metrics.BLEU(tokenize="char", lowercase=True)
    assert found["metrics"]["bleu"] == pytest.approx(metric.corpus_score(answers, [expected]).score)
    assert found["signatures"]["bleu"] == str(metric.get_signature())
    metric = sacrebleu.metrics.CHRF(lowercase=True)
    assert found["metrics"]["chrf"] == pytest.approx(metric.corpus_score(answers, [expected]).score)


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """A model that is told which of two languages to write."""
    folder = tmp_path_factory.mktemp("told")
    text_files(folder)
    files = ("--train", folder / "several.tsv", "--set", "data.to=to")
    words = ("train", "translate", *files, *quick("training.steps=4"), "--out", folder / "run")
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert not stop.value.code
    return folder / "run/model"


def test_target_language_is_like_a_column_that_names_it(run, multilingual, place):
    """A header, none, or two plain files; the mark in capitals too."""
    rows = (place / "test.tsv").read_text().splitlines()
    (place / "named.tsv").write_text("source\ttarget\tto\n" + "".join(f"{row}\tback\n" for row in rows))
    expected = document(run("evaluate", multilingual, "named.tsv", "--json"))
    for data in (["test.tsv"], ["train.en", "train.de"], ["test.tsv", "--columns", "1,2"]):
        found = document(run("evaluate", multilingual, *data, "--to", "BACK", "--json"))
        assert found["metrics"] == expected["metrics"] and found["data"] == [
            one for one in data if "." in one
        ]
    other = document(run("evaluate", multilingual, "test.tsv", "--to", "same", "--json"))
    assert other["metrics"] != expected["metrics"]


# arguments, and a name that the error must contain
BAD = {
    "no such folder": (["no/such", "test.tsv"], "no/such"),
    "no job known": (["tiny", "test.tsv"], "job"),
    "unknown job": (["runs/x/model", "test.tsv", "--job", "translat"], "did you mean 'translate'"),
    "missing file": (["runs/x/model", "no.tsv"], "no.tsv"),
    "not of the data": (["runs/x/model", "test.tsv", "--set", "training.lr=1"], "training.lr"),
    "setting for training": (["runs/x/model", "test.tsv", "--set", "data.valid=book.txt"], "data.valid"),
    "BLEU options": (["pocket-digits", "test.tsv", "--lowercase"], ""),
    "average of a run": (["average", "runs/x", "--out", "avg"], "--last"),
    "average of too many": (["average", "runs/x", "--last", "9", "--out", "avg"], "training.average=9"),
    "average both ways": (
        ["average", "runs/x", "--last", "1", "--best", "1", "--out", "avg"],
        "--last and --best",
    ),
    "average of other models": (["average", "runs/x/model", "tiny", "--out", "avg"], "tiny"),
    "average into a folder": (["average", "runs/x/model", "--out", "runs/x/best"], "runs/x/best"),
}


def test_invalid_use_is_an_error_of_one_line(run, trained, place):
    glassformer.save(glassformer.tiny("gpt2"), place / "tiny")
    before = sorted(place.rglob("*"))
    for case, (args, named) in BAD.items():
        done = run(*([] if args[0] == "average" else ["evaluate"]), *args)
        assert done.code == 2 and done.out == "", (case, done)
        line = done.err.splitlines()[-1]
        assert line.startswith("error: ") and named in line and "Traceback" not in done.err, (case, done)
        assert sorted(place.rglob("*")) == before, case


def test_average_is_the_mean(run, trained, place):
    """Of the folders named, of a run's last, of its best; the run's own model is such a one too."""
    kept = sorted((trained / "averaged").iterdir())
    assert len(kept) == 2
    one, other = map(open_weights, kept)
    for out, args in {"a": kept, "b": [trained, "--last", 2], "c": [trained, "--best", 2]}.items():
        done = run("average", *args, "--out", out)
        assert done.code == 0, done.err
        found = open_weights(place / out)
        for name in one:
            mean = ((one[name].double() + other[name].double()) / 2).to(one[name].dtype)
            assert torch.equal(found[name], mean), name
        model = glassformer.load(place / out).model
        ids = torch.tensor([[5, 6, 7]])
        assert torch.equal(model(ids, ids), glassformer.load(trained / "model").model(ids, ids))
