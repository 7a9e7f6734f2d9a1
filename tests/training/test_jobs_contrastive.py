"""The job contrastive: its loss beside transformers, readers of captions, and a run on colored shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import glassformer
from glassformer.data.captions import CaptionSource
from glassformer.data.row_errors import RowErrors
from glassformer.data.split import fraction_with_a_row, split_source
from glassformer.errors import FileMissingError, FileProblemError
from glassformer.metrics.embedding import retrieval_recall
from glassformer.training.evaluation import evaluate_files, remembered_columns
from glassformer.training.learner import ContrastiveLearner
from glassformer.training.losses import contrastive_loss
from tests.families import harness

COLORS = ("red", "green", "blue", "white")
SHAPES = ("circle", "square")
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}


def make_shapes(folder: Path, count: int = 96) -> Path:
    """A table of pictures of one colored shape, with their captions."""
    rng, lines = np.random.default_rng(0), ["image\tcaption"]
    (folder / "images").mkdir()
    for n in range(count):
        color, shape = COLORS[n % 4], SHAPES[n // 4 % 2]
        image = Image.new("RGB", (32, 32))
        x, y, r = (int(v) for v in rng.integers((10, 10, 6), (22, 22, 10)))
        draw = ImageDraw.Draw(image)
        box = (x - r, y - r, x + r, y + r)
        (draw.ellipse if shape == "circle" else draw.rectangle)(box, fill=color)
        image.save(folder / "images" / f"{n}.png")
        lines.append(f"images/{n}.png\ta {color} {shape}")
    path = folder / "captions.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["CLIPModel", "SiglipModel"])
def test_loss_matches_transformers(name: str, tmp_path: Path) -> None:
    """The mean of the summed loss, for pairs with different captions and images."""
    text = {"vocab_size": 61, **SIZES, "max_position_embeddings": 19, "eos_token_id": 60}
    settings: dict[str, Any] = {
        "text_config": text,
        "vision_config": {"image_size": 12, "patch_size": 4, **SIZES},
    }
    if name == "SiglipModel":
        settings["text_config"] = {**text, "projection_size": 24}
    reference = harness.reference(name, settings)
    model = glassformer.load(harness.save_reference(reference, tmp_path)).model
    ids, _ = harness.text_batch(model.text, "none")
    pixels = torch.randn(len(ids), 3, 12, 12)
    with torch.no_grad():
        expected = reference(pixel_values=pixels, input_ids=ids, return_loss=True).loss
        ours = ContrastiveLearner(model)(pixels, ids, torch.arange(len(ids)))
    assert (ours / len(ids) - expected).abs() < 1e-5


def test_equal_captions_are_not_negatives() -> None:
    logits = torch.randn(3, 3)
    same = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    alone = [
        torch.nn.functional.cross_entropy(logits[0, [0, 2]], torch.tensor(0)),
        torch.nn.functional.cross_entropy(logits[1, [1, 2]], torch.tensor(0)),
        torch.nn.functional.cross_entropy(logits[2], torch.tensor(2)),
    ]
    assert torch.allclose(contrastive_loss(logits, torch.arange(3), same), torch.stack(alone).sum())
    pairs = torch.nn.functional.logsigmoid(torch.where(torch.eye(3) > 0, logits, -logits))
    left = pairs.masked_fill(same & (torch.eye(3) == 0), 0).sum()
    assert torch.allclose(contrastive_loss(logits, torch.arange(3), same, sigmoid=True), -left)


def test_recall_counts_any_caption_of_the_image() -> None:
    images, owner = np.eye(3), np.array([0, 0, 1, 2])
    texts = np.array([[0, 1, 0.5], [1, 0, 0], [0.2, 1, 0], [0, 0, 1]])
    assert retrieval_recall(images, texts, np.arange(3), owner)[1] == pytest.approx(2 / 3)  # stable order
    assert retrieval_recall(texts, images, owner, np.arange(3), (1, 3)) == {1: 0.75, 3: 1.0}


def test_caption_files(tmp_path: Path) -> None:
    """COCO's caption format, with the images in a subfolder, gives the same pairs as a table."""
    table = make_shapes(tmp_path, 4)
    rows = list(CaptionSource(table).rows(RowErrors()))
    assert rows[1] == (str(tmp_path / "images/1.png"), "a green circle")
    coco = {
        "images": [{"id": 10 + n, "file_name": f"{n}.png"} for n in range(4)],
        "annotations": [{"image_id": 10 + n, "caption": row[1]} for n, row in enumerate(rows)],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert list(CaptionSource(tmp_path / "coco.json").rows(RowErrors())) == rows
    for name in ("../secret.png", str(tmp_path / "images/1.png")):
        (tmp_path / "outside.csv").write_text(f"image,caption\n{name},a green circle\n")
        with pytest.raises(FileProblemError):
            list(CaptionSource(tmp_path / "outside.csv").rows(RowErrors()))
    (tmp_path / "other.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(FileProblemError):
        CaptionSource(tmp_path / "other.json")
    (tmp_path / "bad.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(FileProblemError):
        CaptionSource(tmp_path / "bad.tsv")


@pytest.mark.parametrize("preset", ["clip", "siglip"])
def test_training_finds_colored_shapes(preset: str, tmp_path: Path) -> None:
    """A short run separates eight kinds of pictures; the saved model classifies them and is fine-tuned."""
    table = make_shapes(tmp_path)
    with table.open("a") as file:
        file.write("images/missing.png\ta lost square\n")
    logged: list[str] = []
    recipe: dict[str, Any] = {
        "job": "contrastive",
        "data": {"train": [str(table)], "valid": [str(table)], "image_size": [16, 16], "max_shift": 1},
        "tokenizer": {"kind": "word", "vocab_size": 40},
        "model": {"preset": preset, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2}
        | {"patch_size": 4, "text_d_model": 32, "text_num_heads": 4, "text_d_ff": 64, "text_num_layers": 1},
        "training": {
            "max_steps": 180 if preset == "clip" else 20,
            "batch_size": 48,
            "lr": 0.004,
            "warmup_steps": 5,
            "device": "cpu",
            "eval_steps": 20,
        },
    }
    if preset == "clip":
        recipe["model"]["projection_dim"] = 32
    pipeline = glassformer.train(recipe, tmp_path / "run", log=logged.append)
    assert [line for line in logged if "missing.png" in line]
    assert pipeline.family == preset
    labels = [f"{color} {shape}" for color in COLORS for shape in SHAPES]
    pictures = [tmp_path / "images" / f"{n}.png" for n in range(16)]
    found = pipeline.classify(pictures, labels=labels, template="a {}", top=1)
    right = [row[0].label == f"{COLORS[n % 4]} {SHAPES[n // 4 % 2]}" for n, row in enumerate(found)]
    if preset == "clip":  # a sigmoid learns little in so few steps
        assert np.mean(right) > 0.5  # chance is 1/8

    tuned = {**recipe, "model": {"folder": str(tmp_path / "run")}}
    tuned["training"] = {**recipe["training"], "max_steps": 2, "lr": 1e-4}
    again = glassformer.train(tuned, tmp_path / "tuned", log=logged.append)
    assert again.spec == pipeline.spec


def test_a_small_set_holds_out_a_pair(tmp_path: Path) -> None:
    """Whatever the seed, and also with the fraction that the first preparation saves in the recipe."""
    table = make_shapes(tmp_path, 15)
    source = CaptionSource(table)
    for seed in range(20):
        fraction = fraction_with_a_row(source, 0.01, seed=seed)
        train, valid = (
            len(list(side.rows(RowErrors()))) for side in split_source(source, fraction, seed=seed)
        )
        assert train + valid == 15 and valid >= 1 and fraction >= 0.01
        assert fraction_with_a_row(source, fraction, seed=seed) == fraction
        assert valid == 1 or fraction == 0.01
        more = fraction_with_a_row(source, 0.01, seed=seed, count=3)
        assert len(list(split_source(source, more, seed=seed)[1].rows(RowErrors()))) >= 3


def test_evaluation_reads_the_header_of_captions(tmp_path: Path) -> None:
    table = make_shapes(tmp_path, 15)
    tower = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}
    recipe: dict[str, Any] = {
        "job": "contrastive",
        "data": {"train": [str(table)], "image_size": [16, 16]},
        "tokenizer": {"kind": "word", "vocab_size": 40},
        "model": {"preset": "clip", "patch_size": 4, **tower, **{f"text_{k}": v for k, v in tower.items()}},
        "training": {"max_steps": 1, "device": "cpu", "report_to": []},
    }
    glassformer.train(recipe, tmp_path / "run", log=lambda _: None)
    lines: list[str] = []
    evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=lines.append)
    assert lines == []
    assert remembered_columns(tmp_path / "run/model", "contrastive", [str(table)]) == ["image", "caption"]
    with pytest.raises(FileMissingError):
        CaptionSource(table, images=tmp_path / "absent")
