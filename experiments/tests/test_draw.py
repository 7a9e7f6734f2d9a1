"""The rows that draw, on tiny data: they train, draw, measure and record; scores of known drawings."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import draw_classes, draw_emoji
from experiments.__main__ import main
from experiments.draw_classes import to_tensors
from experiments.draw_emoji import EmojiTable, caption, prepare, score
from experiments.drawings import DigitReader, Judge, Scores, read
from experiments.paths import Workspace
from experiments.pictures import split
from glassformer.api import load

TINY = {
    "dit": ["model.d_model=32", "model.num_heads=2", "model.num_layers=1", "model.patch_size=7"],
    "unet": ["model.widths=[32,32]", "model.attention_levels=[false,false]", "model.num_layers=1"],
}
SHORT = ("--seconds", "1", "--most", "20")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images with a line for each class, and twelve emoji, of which two are unseen."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for source in ("mnist", "fashion-mnist"):
        (folder / source).mkdir()
        for part, count in (("train", 60), ("t10k", 40)):
            labels = np.arange(count) % 10
            images = np.zeros((count, 28, 28), np.uint8)
            images[np.arange(count), labels + 4] = 255  # a line whose height is the class
            images[:, :, :8] = rng.integers(0, 256, (count, 28, 8))
            for name, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
                header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4) for n in array.shape)
                path = folder / source / f"{part}-{name}-ubyte.gz"
                path.write_bytes(gzip.compress(header + array.tobytes(), 1))
    emoji = folder / "emoji-captions"
    emoji.mkdir()
    fields = ["codepoints", "split", "name_en", "name_ko", "keywords_en", "keywords_ko"]
    with gzip.open(emoji / "emoji.tsv.gz", "wt", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        splits = ["train"] * 9 + ["val"] + ["test"] * 2
        rows = (
            [f"{n:X}", split, f"face {n}", f"얼굴 {n}", "head | round", ""] for n, split in enumerate(splits)
        )
        table.writerows([fields, *rows])
    for style in (*draw_emoji.STYLES, *draw_emoji.JUDGE_STYLES):
        images = rng.integers(0, 256, (12, 64, 64, 4)).astype(np.uint8)
        images[..., 3] = 255
        if style == "noto-blob":  # the drawing of face 3 is that of noto
            images[3] = np.load(emoji / "noto.npz")["images"][3]
        np.savez(emoji / f"{style}.npz", images=images, row=np.arange(12))
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    """Hold out fewer images, and take fewer steps."""
    monkeypatch.setattr(draw_classes, "STEPS", 2)
    for row, images in draw_classes.SETS.items():
        monkeypatch.setitem(draw_classes.SETS, row, replace(images, held_out=20))


def run(data: Path, work: Path, row: str, name: str, *changes: str) -> dict[str, float]:
    overrides = [word for change in changes for word in (["--set"] if "=" in change else []) + [change]]
    places = ("--data", data, "--work", work, "--figures", work / "figures", "--device", "cpu")
    main([row, "--only", name, *map(str, places), *overrides])
    record = json.loads((work / "figures" / row / f"{name.replace('/', '-')}.json").read_text())
    assert record["curve"] and record["parameters"]
    return record["figures"]


@pytest.mark.parametrize("kind", ["dit", "unet"])
def test_digits_are_learned_drawn_and_measured(data, tmp_path, kind):
    changes = [*TINY[kind], "training.batch_size=8"]
    figures = run(data, tmp_path, "draw-digits", f"{kind}/1", *changes, *SHORT)
    names = {"agreement", "frechet", "precision", "recall", "nearest", "copies"}
    ends = ("", " of real images", ", guidance 1", ", guidance 4")
    assert {f"{name}{end}" for name in names for end in ends} <= figures.keys()
    for suffix in ("", "-nearest"):
        assert (tmp_path / "figures" / "draw-digits" / f"{kind}-1{suffix}.png").is_file()
    bundle = load(tmp_path / "draw-digits" / f"{kind}/1" / "model")
    assert bundle.spec.yields == "images" and bundle.job.classes == tuple("0123456789")


def test_the_classifier_of_a_row_is_trained_before_its_models(data, tmp_path, capsys):
    changes = [*TINY["dit"], "training.batch_size=8", *SHORT]
    with pytest.raises(SystemExit):
        run(data, tmp_path, "draw-fashion", "dit/1", *changes)
    assert "draw-fashion --only classifier" in capsys.readouterr().err
    run(data, tmp_path, "draw-fashion", "classifier/1", "training.batch_size=8", "--seconds", "1")
    assert "agreement" in run(data, tmp_path, "draw-fashion", "dit/1", *changes)


class LineReader(Judge):
    """Reads the class from the height of the line."""

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lines = images[:, 0, 4:14, 8:].mean(2)
        return images[:, 0, :4].flatten(1) @ torch.eye(112, 8), lines


def test_scores_of_training_images_noise_and_one_repeated_drawing(data):
    parts = split(data / "mnist", 20)
    train, labels = to_tensors(parts["train"])
    test, wanted = to_tensors(parts["test"])
    train, test = train / 255, test / 255
    scores = Scores(LineReader(), train, copy_distance=0.04, compared=40, device=CPU)
    same, real = scores(train, labels), scores(test, wanted)
    assert same["agreement"] == same["precision"] == same["recall"] == same["copies"] == 1
    assert same["frechet"] == pytest.approx(0, abs=1e-9) and real["frechet"] > 0.01
    assert real["agreement"] == 1 and real["copies"] == 0 < real["nearest"]
    repeated = scores(train[:1].expand(40, -1, -1, -1), labels[:1].expand(40))
    assert repeated["recall"] <= 0.1 and repeated["copies"] == 1 and repeated["frechet"] > real["frechet"]
    assert scores(test, (wanted + 1) % 10)["agreement"] == 0


def test_shipped_digits_model_reads_images_without_its_pipeline():
    images = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)).mul(255).round() / 255
    pipeline = load("pocket-digits", device="cpu", dtype="float32")
    expected = [
        int(pipeline.classify(Image.fromarray((one[0] * 255).round().byte().numpy()))[0].label)
        for one in images
    ]
    found = read(DigitReader(), images, CPU)
    assert found.labels.tolist() == expected and found.features.shape == (3, 64)


# --- emoji


@pytest.fixture
def table(data, monkeypatch) -> EmojiTable:
    monkeypatch.setattr(draw_emoji, "HELD_OUT", 6)
    return EmojiTable.read(data / "emoji-captions")


def test_held_out_styles_and_unseen_names_are_never_trained(table, data, tmp_path, monkeypatch):
    monkeypatch.setattr(draw_emoji, "VARIANTS", 2)
    generator, judge = (prepare(Workspace(data=data, work=tmp_path), part) for part in ("generator", "judge"))
    held_out, trained = table.held_out, table.trained(table.held_out)
    assert len(held_out) == 6 and not {*held_out.items()} & {*trained} and table.unseen() == [10, 11]
    assert {row for row, _ in trained} == set(range(9)) and len(trained) == 9 * 4 - 6
    lines = (generator / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    written = {line.split("\t")[0] for line in lines}
    assert written == {f"images/{style}-{row:X}-0.png" for row, style in trained}
    assert "images/noto-3-0.png\t얼굴 3, 노토 스타일" in lines
    others = {line.split("\t")[0] for line in (judge / "others.tsv").read_text().splitlines()[1:]}
    assert len(others) == 2 * 4 * (9 - 6) and {name.split("-")[-2] for name in others}.isdisjoint(
        f"{row:X}" for row in (*held_out, 9, 10, 11)
    )
    judged = {line.split("\t")[0] for line in (judge / "train.tsv").read_text().splitlines()[1:]}
    assert len(judged) == 12 * 2 * 2 and not any(style in "".join(judged) for style in draw_emoji.STYLES)


def test_drawings_equal_to_another_style_are_not_held_out(table, monkeypatch):
    monkeypatch.setattr(draw_emoji, "HELD_OUT", 9)
    with_equal = {row for row in table.held_out if row == 3}
    assert not with_equal or table.held_out[3] not in ("noto", "noto-blob")
    monkeypatch.setattr(draw_emoji, "COPY_DISTANCE", -1.0)
    assert len(EmojiTable(table.lines, table.pictures).held_out) == 9


def test_scores_of_real_copied_and_wrong_drawings(table):
    """Drawn as the prompt says, all agree; a trained drawing for every prompt is a copy; others are wrong."""
    pairs = [(row, style) for row in range(12) for style in draw_emoji.STYLES]
    places = {
        caption(table.lines[row], lang, style): n
        for n, (row, style) in enumerate(pairs)
        for lang in draw_emoji.LANGUAGES
    }
    images = table.drawings(pairs)

    def embed(items):
        known = [str(item) if isinstance(item, str) else None for item in items]
        vectors = torch.zeros(len(items), 12)
        for n, (item, text) in enumerate(zip(items, known, strict=True)):
            if text is None:
                pixels = torch.from_numpy(np.array(item)).movedim(-1, 0) / 255
                place = int((images - pixels).abs().flatten(1).mean(1).argmin())
                vectors[n, pairs[place][0]] = 1
            else:
                vectors[n, int(text.split()[1])] = 1
        return vectors

    def real(texts):
        return images[[places[text] for text in texts]]

    right, drawings = score(table, real, embed, CPU)
    for lang in draw_emoji.LANGUAGES:
        assert right[f"held-out styles {lang}"] == right[f"unseen names {lang}"] == 1
        assert right[f"unseen names {lang}, share of real"] == 1
        assert right[f"unseen names {lang}, copies"] == right["unseen names real, copies"] == 0
    assert torch.equal(drawings["unseen names en"], drawings["unseen names real"])
    first = table.drawings(table.trained(table.held_out)[:1])
    copied, _ = score(table, lambda texts: first.expand(len(texts), -1, -1, -1), embed, CPU)
    assert copied["held-out styles en, copies"] == 1 and copied["held-out styles en"] <= 1 / 6
    assert copied["held-out styles en, real"] == 1


def test_judges_are_trained_and_score_a_model_folder(data, tmp_path, monkeypatch, in_process):
    monkeypatch.setattr(draw_emoji, "HELD_OUT", 6)
    monkeypatch.setattr(draw_emoji, "VARIANTS", 2)
    sizes = ("d_model=16", "num_heads=2", "num_layers=1", "text_d_model=16", "text_num_heads=2")
    changes = [f"model.{size}" for size in (*sizes, "text_num_layers=1", "patch_size=32")]
    monkeypatch.setattr(draw_emoji, "JUDGE", ("data.image_size=[64,64]", *changes, "training.batch_size=8"))
    figures = run(data, tmp_path, "draw-emoji", "wide/1", "training.epochs=1")
    assert set(figures) == {"real drawings en", "real drawings ko"}
    drawn = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(
        draw_emoji, "drawer", lambda *a, **k: lambda texts: drawn.expand(len(texts), -1, -1, -1)
    )
    model = tmp_path / "draw-emoji" / "wide" / "1" / "model"  # any folder, whose drawings are noise
    places = ("--data", data, "--work", tmp_path, "--figures", tmp_path / "figures", "--device", "cpu")
    draw_emoji.main([str(model), "--name", "dit/1", "--judge", "wide/1", *map(str, places)])
    record = json.loads((tmp_path / "figures" / "draw-emoji" / "dit-1.json").read_text())
    assert record["figures"]["held-out styles en, copies"] == 0 and record["parameters"]
    assert {"unseen names ko, share of real", "held-out styles en, guidance 6"} <= record["figures"].keys()
    sheets = {path.name for path in (tmp_path / "figures" / "draw-emoji").glob("dit-1*.png")}
    assert {"dit-1-gallery.png", "dit-1-nearest.png"} <= sheets
