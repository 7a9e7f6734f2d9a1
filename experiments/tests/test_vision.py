"""The vision experiments on tiny data: every run trains, is measured and recorded."""

import csv
import gzip
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments import contrastive_emoji, images_fashion_mnist
from experiments.__main__ import main
from experiments.rows import ROWS
from glassformer import tiny
from glassformer.bundle import Bundle, save
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from tests.recipes.synthetic_data import object_files

NUCLEI = ["data.image_size=[32,32]", "model.d_model=16", "model.num_heads=2", "model.num_layers=1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Archives and emoji with the names of the data sets, and tiny encoders of images and texts."""
    folder = tmp_path_factory.mktemp("data")
    object_files(folder)
    shutil.copy(folder / "BCCD/ImageSets/Main/val.txt", folder / "BCCD/ImageSets/Main/test.txt")
    for end in ("", "_mask"):
        shutil.copytree(folder / f"camvid/val{end}", folder / f"camvid/test{end}")
    for archive, inner in (
        ("bccd/BCCD.tar.gz", "BCCD"),
        ("nuclei/nuclei.tar", "nuclei"),
        ("camvid/camvid.tar", "camvid"),
    ):
        (folder / archive).parent.mkdir(exist_ok=True)
        with tarfile.open(folder / archive, "w:gz" if archive.endswith("gz") else "w") as file:
            file.add(folder / inner, inner)
    save(Bundle(model=tiny("dinov2")), folder / "dinov2-small")
    tokenizer = train_tokenizer(["face head"], TokenizerPlan(kind="char", vocab_size=40))
    save(Bundle(model=tiny("sentence"), tokenizer=tokenizer), folder / "minilm")
    emoji = folder / "emoji-captions"
    emoji.mkdir()
    fields = ["name_en", "name_ko", "keywords_en", "keywords_ko"]
    with gzip.open(emoji / "emoji.tsv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows([fields, *([f"face {n}", f"얼굴 {n}", "face | head", ""] for n in range(12))])
    images = np.random.default_rng(0).integers(0, 256, (12, 64, 64, 4)).astype(np.uint8)
    for style in contrastive_emoji.STYLES:
        np.savez(emoji / f"{style}.npz", images=images, row=np.arange(12))
    fashion = folder / "fashion-mnist"
    fashion.mkdir()
    for part in ("train", "t10k"):
        digits = {
            "images-idx3": images[:, :28, :28, 0].tobytes(),
            "labels-idx1": bytes(n % 3 for n in range(12)),
        }
        for kind, content in digits.items():
            sizes = (12, 28, 28) if kind == "images-idx3" else (12,)
            header = bytes((0, 0, 8, len(sizes))) + b"".join(size.to_bytes(4) for size in sizes)
            (fashion / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + content))
    return folder


def run(data: Path, work: Path, row: str, name: str, *changes: str) -> dict[str, float]:
    overrides = [word for change in ("training.batch_size=4", *changes) for word in ("--set", change)]
    places = ("--data", data, "--work", work, "--figures", work / "figures", "--device", "cpu")
    main([row, "--only", name, "--seconds", "2", *map(str, places), *overrides])
    record = json.loads((work / "figures" / row / f"{name.replace('/', '-')}.json").read_text())
    assert (work / row / name / "model").is_dir() and record["curve"] and record["parameters"]
    return record["figures"]


@pytest.mark.parametrize(
    ("row", "name", "metrics", "changes"),
    [
        ("detection-bccd", "scenes/1", {"ap50", "valid ap50"}, ["data.image_size=[32,32]"]),
        ("segmentation-nuclei", "1", {"ap50", "pq"}, NUCLEI),
        ("segmentation-camvid", "1", {"miou", "pixel_accuracy"}, ["data.image_size=[28,28]"]),
        ("fashion", "swin/1", {"accuracy"}, ["model.embed_dim=8"]),
        ("fashion", "vit/1", {"accuracy"}, ["model.num_layers=1"]),
        ("contrastive-emoji", "pocket/1", {"en emoji to name", "ko picture to name"}, []),
        ("contrastive-emoji", "minilm/1", {"en name to emoji", "seen en emoji to name"}, ["data.inner=true"]),
    ],
)
def test_experiment_trains_and_records(data, tmp_path, monkeypatch, row, name, metrics, changes):
    monkeypatch.setattr(images_fashion_mnist, "HELD_OUT", 4)
    for constant in ("HELD_OUT", "INNER"):
        monkeypatch.setattr(contrastive_emoji, constant, 4)
    assert name in ROWS[row].runs
    assert metrics <= set(run(data, tmp_path, row, name, *changes))
