"""`glassformer evaluate` and `average`: the metrics of a run's own validation, and mean weights."""

import json
import shutil

import pytest
import sacrebleu
import torch
from PIL import Image

import glassformer
from glassformer.weights.store import open_weights
from tests.cli.conftest import quick, train
from tests.cli.test_train import place

__all__ = ["place"]


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
        run("evaluate", trained / "averaged/step-00000004", "test.tsv", "--json", "--batch-size", "64")
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


def test_target_language_option_equals_a_language_column(run, place, tmp_path_factory):
    """A header, none, or two plain files; the tag in capitals too."""
    options = ("--train", "several.tsv", "--set", "data.language_column=to", *quick())
    multilingual = train(tmp_path_factory.mktemp("multilingual"), *options) / "model"
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


def test_average_is_the_mean_of_the_weights(run, trained, place):
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


def test_images_of_a_detector_are_read_from_another_folder(run, tmp_path):
    (tmp_path / "pictures").mkdir()
    images = [{"id": n, "file_name": f"{n}.png", "width": 32, "height": 32} for n in range(4)]
    for entry in images:
        Image.new("RGB", (32, 32), (60 * entry["id"], 0, 0)).save(tmp_path / "pictures" / entry["file_name"])
    notes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [4, 4, 9, 9]} for n in range(4)]
    data = tmp_path / "notes" / "boxes.json"
    data.parent.mkdir()
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    data.write_text(json.dumps({"images": images, "annotations": notes, "categories": categories}))
    recipe = {
        "job": "detect",
        "data": {"train": [str(data)], "images": str(tmp_path / "pictures")},
        "model": {"preset": "yolos-tiny", "patch_size": 8, "d_model": 16, "num_heads": 2, "d_ff": 16}
        | {"num_layers": 1, "num_queries": 4},
        "training": {"max_steps": 1, "report_to": [], "device": "cpu"},
    }
    glassformer.train(recipe, tmp_path / "run", log=lambda _: None)
    evaluate = ("evaluate", tmp_path / "run", data, "--images", tmp_path / "pictures")
    found = document(run(*evaluate, "--json"))
    assert found["job"] == "detect" and "ap" in found["metrics"]
    assert found["classes"][0]["ap"] is not None
    assert found["classes"][1] == {"name": "dog", "ap": None, "ap50": None}  # not in the data
    printed = run(*evaluate).out
    assert "cat" in printed and "dog" not in printed and "nan" not in printed
    done = run("evaluate", tmp_path / "run", data, "--images", tmp_path / "absent")
    assert done.code == 2 and str(tmp_path / "absent") in " ".join(done.err.split())
