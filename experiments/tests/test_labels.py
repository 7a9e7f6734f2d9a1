"""The classification rows: their splits and baselines."""

import gzip

import numpy as np
import pytest
import torch

from experiments import convolution, ngrams, pictures, reviews
from experiments.paths import Workspace
from experiments.rows import ROWS
from glassformer.data.images import prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.recipes import recipe_path
from glassformer.training.recipe import read_recipe


def test_split_keeps_every_image_and_is_readable(tmp_path):
    records = np.random.default_rng(0).integers(0, 256, (60, 3073)).astype(np.uint8)
    records[:, 0] = np.arange(60) % 3
    source = tmp_path / "source"
    source.mkdir()
    for name, part in (("train_50", records[:50]), ("test_10", records[50:])):
        (source / f"{name}.bin.gz").write_bytes(gzip.compress(part.tobytes()))
    parts = pictures.split(source, 20)
    assert [len(images) for images, _ in parts.values()] == [30, 20, 10]
    assert (parts["valid"][0].transpose(0, 3, 1, 2).reshape(20, -1) == records[30:50, 1:]).all()
    folder = pictures.prepare(source, 20, Workspace(data=tmp_path, work=tmp_path / "work"), "row")
    assert sorted(path.name for path in folder.iterdir()) == ["test", "train", "valid"]
    store = prepare_images(folder / "train", tmp_path / "store", errors=RowErrors())
    images, labels = parts["train"]
    order = np.argsort(labels, kind="stable")
    assert (store.images(np.arange(30)) == images[order]).all()
    assert (store.labels(np.arange(30)) == labels[order]).all()


@pytest.mark.parametrize(
    ("recipe", "rows"), [("images-digits", 55_000), ("images-fashion", 59_000), ("images-cifar", 7_600)]
)
def test_every_batch_is_full_so_that_one_compiled_step_serves_all(recipe, rows):
    batch = read_recipe(recipe_path(recipe)).training.batch_size
    pools = [20_000] * (rows // 20_000) + [rows % 20_000]
    assert all(pool % batch == 0 for pool in pools)


def test_unseen_reviews_are_not_in_the_training_set(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name, texts in (("train", ["good", "a film"]), ("test", ["a film", "other", "good ", "good"])):
        rows = "".join(f"{n}\t{text}\t{n % 2}\n" for n, text in enumerate(texts))
        (data / f"{name}.tsv.gz").write_bytes(gzip.compress(f"id\tdocument\tlabel\n{rows}".encode()))
    path = reviews.unseen(data, tmp_path)
    assert path.read_text().splitlines() == ["id\tdocument\tlabel", "1\tother\t1", "2\tgood \t0"]
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("unseen")] == ["unseen.tsv"]


def test_every_variant_is_a_run():
    assert {name.split("/")[0] for name in ROWS["nsmc"].runs} == {*reviews.WAYS, "ngrams"}


def test_linear_model_learns_character_n_grams():
    texts = [f"{word}{end} 영화" for word in ("재밌", "좋") for end in ("다", "어요", "네", "음")] * 5
    texts += [text.replace("재밌", "지루하").replace("좋", "별로") for text in texts]
    labels = [1] * 40 + [0] * 40
    assert ngrams.learn(texts, labels).accuracy(["재밌구나", "지루하구나"], [1, 0]) == 1


def test_residual_network_has_the_size_of_the_transformer():
    model = convolution.network()
    assert 2.6e6 < sum(one.numel() for one in model.parameters()) < 3.0e6
    x = torch.randn(2, 3, 32, 32)
    assert model[:-3](x).shape == (2, 256, 8, 8) and model(x).shape == (2, 10)
