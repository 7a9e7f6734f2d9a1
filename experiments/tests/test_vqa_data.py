"""Tables of visual question answering: images, questions and answers belong together."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from experiments.caption_coco import features, nearest_captions, scores
from experiments.paths import data_folder
from experiments.vqa_data import easy_vqa, majority, nlvr, read_rows, swap_boxes
from glassformer.errors import FileMissingError

DATA = data_folder()


def test_easy_vqa_is_read_from_its_wheel(tmp_path):
    wheel = tmp_path / "data" / "easy-vqa" / "easy_vqa-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "0.png")
    with zipfile.ZipFile(wheel, "w") as file:
        for split in ("train", "test"):
            file.write(tmp_path / "0.png", f"easy_vqa/data/{split}/images/0.png")
            questions = [["what color is the shape?", "red", 0], ["is there a circle?", "no", 0]]
            file.writestr(f"easy_vqa/data/{split}/questions.json", json.dumps(questions))
    folder = easy_vqa(tmp_path / "data", tmp_path / "out")
    rows = read_rows(folder / "train.tsv")
    assert rows[0] == ("train/0.png", "what color is the shape?", "red")
    assert (folder / rows[0].image).is_file() and len(rows) == 2
    assert majority(rows, read_rows(folder / "test.tsv"))["majority of the question"] == 100.0
    with pytest.raises(FileMissingError, match="pip download"):
        easy_vqa(tmp_path, tmp_path / "other")


@pytest.mark.skipif(not (DATA / "easy-vqa").is_dir(), reason="easy-VQA is not in the data folder")
def test_easy_vqa_has_its_published_size(tmp_path):
    folder = easy_vqa(DATA, tmp_path / "out")
    assert [len(read_rows(folder / f"{split}.tsv")) for split in ("train", "test")] == [38575, 9673]


@pytest.mark.skipif(not (DATA / "nlvr").is_dir(), reason="NLVR is not in the data folder")
def test_nlvr_shows_each_picture_in_all_orders_of_its_boxes(tmp_path):
    folder = nlvr(DATA, tmp_path / "out")
    train, test = (read_rows(folder / f"{split}.tsv") for split in ("train", "test"))
    assert (len(train), len(test)) == (6 * 989, 985)
    assert len({row.question for row in train[:6]}) == 1 and {row.answer for row in test} == {"true", "false"}
    pictures = [np.asarray(Image.open(folder / row.image)) for row in train[:6]]
    assert (swap_boxes(pictures[0], (2, 1, 0)) == pictures[5]).all()
    assert majority(train, test)["majority"] == pytest.approx(100 * 546 / 985)


def test_the_nearest_photograph_has_similar_colors(tmp_path):
    entries = []
    for name, color in (
        ("sky", "skyblue"),
        ("grass", "green"),
        ("sea", "lightblue"),
        ("lawn", "forestgreen"),
    ):
        Image.new("RGB", (32, 24), color).save(tmp_path / f"{name}.png")
        entries.append({"file_name": f"{name}.png", "captions": [f"a photo of {name}"]})
    captions = nearest_captions(entries[:2], entries[2:], tmp_path)
    assert captions == ["a photo of sky", "a photo of grass"]
    assert np.linalg.norm(features(tmp_path / "sky.png")) == pytest.approx(1.0)
    assert scores(captions, entries[2:])["cider"] < scores(captions, entries[:2])["cider"]
