"""The job caption: its loss beside transformers, and runs on colored shapes in two languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

import glassformer
from glassformer.data.captions import CaptionSource
from glassformer.data.row_errors import RowErrors
from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.training.evaluation import evaluate_files
from glassformer.training.learner import PairLearner
from tests.tasks.folders import blip, captioner
from tests.training.test_jobs_contrastive import COLORS, SHAPES, make_shapes

GERMAN = {"red": "roter", "green": "grüner", "blue": "blauer", "white": "weißer"}
FORMS = {"circle": "Kreis", "square": "Würfel"}


def two_languages(folder: Path, count: int = 64) -> Path:
    """A table of pictures of one colored shape, with English and German captions."""
    english = make_shapes(folder, count).read_text().splitlines()[1:]
    lines = ["image\tcaption\tlanguage"]
    for line in english:
        _, color, shape = line.partition("\t")[2].split()
        lines += [f"{line}\ten", f"{line.partition(chr(9))[0]}\tein {GERMAN[color]} {FORMS[shape]}\tde"]
    path = folder / "both.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def recipe_of(table: Path, **training: Any) -> dict[str, Any]:
    size = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2, "patch_size": 4, "decoder_layers": 1}
    return {
        "job": "caption",
        "data": {"train": [str(table)], "valid": [str(table)], "image_size": [16, 16]},
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "model": {"preset": "vit-gpt2", **size, "max_len": 20, "decoder_dropout": 0.0},
        "training": {"batch_size": 32, "lr": 0.004, "warmup_steps": 5, "device": "cpu", **training},
    }


def test_loss_matches_transformers(tmp_path: Path) -> None:
    """The mean over the tokens of captions of different lengths."""
    reference, folder = captioner(tmp_path)
    model = glassformer.load(folder).model
    images = torch.randn(2, 3, 16, 12)
    labels = torch.tensor([[20, 21, 22, 3], [25, 3, -100, -100]])
    target = torch.tensor([[2, 20, 21, 22], [2, 25, 3, 0]])
    with torch.no_grad():
        expected = reference(pixel_values=images, decoder_input_ids=target, labels=labels).loss
        ours = PairLearner(model)(images, target, labels)
    assert (ours / 6 - expected).abs() < 1e-5


def test_training_describes_shapes_in_two_languages(tmp_path: Path) -> None:
    """A short run learns both languages; the saved model is described, evaluated and fine-tuned."""
    table = two_languages(tmp_path)
    recipe = recipe_of(table, max_steps=120, eval_steps=60)
    recipe["data"]["language_column"] = "language"
    logged: list[str] = []
    pipeline = glassformer.train(recipe, tmp_path / "run", log=logged.append)
    assert pipeline.job.languages == ("de", "en") and pipeline.family == "vision_encoder_decoder"
    pictures = [tmp_path / "images" / f"{n}.png" for n in range(16)]
    english, german = (pipeline.caption(pictures, to=language) for language in ("en", "de"))
    colors = [COLORS[n % 4] for n in range(16)]
    assert sum(one.startswith(f"a {color} ") for color, one in zip(colors, english, strict=True)) >= 12
    assert sum(one.startswith(f"ein {GERMAN[c]} ") for c, one in zip(colors, german, strict=True)) >= 12
    assert all(one.split()[-1] in SHAPES for one in english)
    assert all(one.split()[-1] in FORMS.values() for one in german)
    with pytest.raises(MissingValueError, match="de, en"):
        pipeline.caption(pictures[0])
    with pytest.raises(GlassformerError, match="fr"):
        pipeline.caption(pictures[0], to="fr")
    with pytest.raises(GlassformerError, match="language"):
        evaluate_files(tmp_path / "run", [str(tmp_path / "captions.tsv")], device="cpu", log=lambda _: None)
    scores = evaluate_files(tmp_path / "run", [str(table)], device="cpu", log=lambda _: None)
    assert "CIDEr-D|n:4|sigma:6|tok:words" in str(scores)

    tuned = {**recipe, "model": {"folder": str(tmp_path / "run")}, "data": {**recipe["data"]}}
    del tuned["data"]["language_column"]  # remembered
    tuned["training"] = {**recipe["training"], "max_steps": 2, "lr": 1e-5}
    again = glassformer.train(tuned, tmp_path / "tuned", log=logged.append)
    assert again.spec == pipeline.spec and again.job.languages == ("de", "en")


@pytest.mark.parametrize("published", [False, True])
def test_transformers_describes_images_with_a_trained_blip(tmp_path: Path, published: bool) -> None:
    """It starts and stops with the tokens of the training, which BLIP's config holds.

    The published model keeps its own: a tokenizer without an end token, and images of 17 x 17 pixels, which
    no whole number of equal patches covers.
    """
    recipe = recipe_of(make_shapes(tmp_path, 32), max_steps=60, eval_steps=60, report_to=[])
    recipe["model"]["preset"] = "blip-image-captioning-base"
    if published:
        (tmp_path / "base").mkdir()
        blip("BlipForConditionalGeneration", tmp_path / "base")
        recipe |= {"model": {"folder": str(tmp_path / "base")}, "tokenizer": {}}
        del recipe["data"]["image_size"]
    pipeline = glassformer.train(recipe, tmp_path / "run", log=lambda _: None)
    folder = tmp_path / "run/model"
    reference = transformers.BlipForConditionalGeneration.from_pretrained(folder)
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    picture = tmp_path / "images/0.png"
    pixels = processor(Image.open(picture), return_tensors="pt").pixel_values
    (ids,) = reference.generate(pixels, max_new_tokens=30).tolist()
    start, *words, end = ids
    assert (start, end) == (4, 3) if published else start == end == pipeline.generation["eos_token_id"]
    assert words and pipeline.tokenizer.special_ids.isdisjoint(words)
    assert [pipeline.tokenizer.decode(words)] == pipeline.caption([picture])


def test_resume_within_an_epoch_is_bit_identical(tmp_path: Path) -> None:
    long = recipe_of(make_shapes(tmp_path, 40), max_steps=8, eval_steps=4, report_to=[])
    long["training"] |= {"lr_scheduler": "constant", "batch_size": 16}
    long["data"]["max_shift"] = 2
    short = {**long, "training": {**long["training"], "max_steps": 4}}
    glassformer.train(short, tmp_path / "resumed", log=lambda _: None)
    resumed = glassformer.train(long, tmp_path / "resumed", log=lambda _: None)
    straight = glassformer.train(long, tmp_path / "straight", log=lambda _: None)
    pairs = zip(resumed.model.state_dict().items(), straight.model.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_unusable_models_and_data_are_rejected(tmp_path: Path) -> None:
    table = make_shapes(tmp_path, 8)
    recipe = recipe_of(table, max_steps=1)
    with pytest.raises(UnsupportedError):
        glassformer.train({**recipe, "model": {"preset": "vit"}}, tmp_path / "vit", log=lambda _: None)
    lines = table.read_text().splitlines()
    (tmp_path / "one.tsv").write_text("\n".join(lines[:2]) + "\n")
    recipe["data"]["valid"] = [str(tmp_path / "one.tsv")]
    with pytest.raises(MissingValueError, match="second image"):
        glassformer.train(recipe, tmp_path / "one", log=lambda _: None)
    recipe["data"] |= {"train": [str(tmp_path / "one.tsv")], "valid": 0.1}
    with pytest.raises(InvalidValueError, match=r"images is 1; expected at least 3, .* data\.valid"):
        glassformer.train(recipe, tmp_path / "single", log=lambda _: None)
    (tmp_path / "coco.json").write_text('{"images": [{"id": 1, "file_name": "1.png", "captions": ["a"]}]}')
    with pytest.raises(GlassformerError, match="without languages"):
        list(CaptionSource(tmp_path / "coco.json", to="language").rows(RowErrors()))
