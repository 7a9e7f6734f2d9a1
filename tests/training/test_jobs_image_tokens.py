"""The job image_tokens: its sequences and its loss, and runs on colored shapes with captions or classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import glassformer
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.interpret.token_film import count_codes
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.training.evaluation import evaluate_files
from glassformer.training.jobs.image_tokens import ImageTokensLearner, drop_conditions, token_batch
from tests.tasks.test_image_tokens import CELLS, CODES, parts, random_model
from tests.training.test_jobs_autoencoder import tensor_files
from tests.training.test_jobs_contrastive import COLORS, SHAPES, make_shapes

SIDE = 16


def autoencoder(folder: Path) -> Path:
    """A codebook of random vectors, whose codes differ from image to image."""
    model = random_model(glassformer.tiny("vq_model", image_size=SIDE).spec)
    save(Bundle(model=model), folder / "vq")
    return folder / "vq"


def class_folders(folder: Path, count: int = 40) -> Path:
    make_shapes(folder, count)
    for n in range(count):
        target = folder / "classes" / COLORS[n % 4]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "images" / f"{n}.png", target)
    return folder / "classes"


def recipe_of(folder: Path, condition: str = "text", **training: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"flip_prob": 0.5}
    if condition == "text":
        table = str(make_shapes(folder, 40))
        data |= {"train": [table], "valid": [table], "max_len": 8}
    else:
        data |= {"train": [str(class_folders(folder))], "valid": 0.2}
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2}
    recipe: dict[str, Any] = {
        "job": "image_tokens",
        "data": data,
        "model": {"preset": "llama", **sizes, "autoencoder": str(autoencoder(folder))},
        "training": {
            **{"batch_size": 16, "lr": 0.004, "warmup_steps": 4, "eval_steps": 5, "device": "cpu"},
            **{"report_to": [], "lr_scheduler": "constant", "log_samples": 0, **training},
        },
    }
    return {**recipe, "tokenizer": {"kind": "word", "vocab_size": 60}} if condition == "text" else recipe


def quiet(line: str) -> None:
    """Log nothing."""


def test_only_codes_are_learned_and_only_conditions_are_dropped() -> None:
    spec = specs.ImageTokensModelSpec(**parts(10, 4))
    codes = np.arange(2 * CELLS).reshape(2, CELLS) % CODES
    batch = token_batch(spec, [[3, 1], [7]], codes, np.array([False, True]))
    assert batch["ids"].shape == batch["labels"].shape == (2, 4 + CELLS)
    assert batch["ids"][0, :5].tolist() == [28, 26, 24, *codes[0, :2]]
    assert batch["ids"][1, :3].tolist() == [24, *codes[1, :2]], "the dropped text leaves no gap"
    for row, start in enumerate((2, 0)):
        labels = batch["labels"][row]
        assert labels[start : start + CELLS].tolist() == codes[row].tolist()
        assert (np.delete(labels, slice(start, start + CELLS)) == -100).all()
    share = drop_conditions(np.arange(20_000), seed=1, epoch=0).mean()
    assert 0.09 < share < 0.11
    assert (
        drop_conditions(np.arange(50), seed=1, epoch=0).tolist()
        != drop_conditions(np.arange(50), seed=1, epoch=1).tolist()
    )


def test_the_loss_is_the_cross_entropy_of_the_codes() -> None:
    spec = specs.ImageTokensModelSpec(**parts(10, 4))
    model = random_model(spec).double()
    codes = np.random.default_rng(0).integers(0, CODES, (3, CELLS))
    conditions = [[3, 1, 2, 2], [7], []]
    batch = {name: torch.from_numpy(value) for name, value in token_batch(spec, conditions, codes).items()}
    expected = 0.0
    for condition, own in zip(conditions, codes.tolist(), strict=True):
        ids = [*spec.prompt(condition), *own]
        logits = model(torch.tensor([ids]))[0, len(condition) : len(condition) + CELLS]
        assert logits.shape == (CELLS, CODES)
        expected += F.cross_entropy(logits, torch.tensor(own), reduction="sum").item()
    loss = ImageTokensLearner(model)(**batch)
    torch.testing.assert_close(loss.item(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("condition", ["text", "class"])
def test_training_learns_what_the_prompt_says(condition: str, tmp_path: Path) -> None:
    """The right prompt makes the codes of an image more likely than another one, and no prompt."""
    recipe = recipe_of(tmp_path, condition, max_steps=60, eval_steps=30, log_samples=2)
    bundle = glassformer.train(recipe, tmp_path / "run", log=quiet)
    model: Any = bundle.model
    assert bundle.job.classes == (tuple(sorted(COLORS)) if condition == "class" else None)
    source = glassformer.load(tmp_path / "vq").model.state_dict()
    assert all(torch.equal(source[name], kept) for name, kept in model.autoencoder.state_dict().items())

    task = TokenImageGenerator(bundle, seed=3)
    colors, shapes = [COLORS[n % 4] for n in range(16)], [SHAPES[n // 4 % 2] for n in range(16)]
    texts = [f"a {color} {shape}" for color, shape in zip(colors, shapes, strict=True)]
    prompts = texts if condition == "text" else colors
    known = [[token - model.spec.offset for token in item[:-1]] for item in task.load(prompts)]
    pixels = [np.asarray(Image.open(tmp_path / f"images/{n}.png").resize((SIDE, SIDE), 3)) for n in range(16)]
    with torch.no_grad():
        codes = model.encode(torch.from_numpy(np.stack(pixels)).movedim(-1, 1) / 127.5 - 1).numpy()

        def loss(conditions: list[list[int]]) -> float:
            batch = token_batch(model.spec, conditions, codes)
            return float(ImageTokensLearner(model)(**{k: torch.from_numpy(v) for k, v in batch.items()}))

        assert loss(known) < min(loss([*known[1:], known[0]]), loss([[]] * 16)) - 10
    assert task(prompts[0]).images[0].size == (SIDE, SIDE)
    grid = Image.open(sorted((tmp_path / "run/samples").glob("*.png"))[-1])
    assert grid.size[0] > SIDE * 3

    pixels = [np.asarray(Image.open(tmp_path / f"images/{n}.png").resize((SIDE, SIDE), 3)) for n in range(40)]
    with torch.no_grad():
        codes = model.encode(torch.from_numpy(np.stack(pixels)).movedim(-1, 1) / 127.5 - 1)
    counts = count_codes(glassformer.load(tmp_path / "run"))  # for the explorer
    assert counts is not None and int(counts.sum()) == codes.numel()
    if condition == "text":  # images of classes are resized in another way
        assert torch.equal(counts.long(), codes.flatten().bincount(minlength=CODES))

    files = recipe["data"]["train"]
    scores = evaluate_files(tmp_path / "run", files, device="cpu", log=quiet)
    assert "perplexity" in str(scores)
    tuned = {**recipe, "model": {"folder": str(tmp_path / "run")}}
    tuned["training"] = {**recipe["training"], "max_steps": 2, "lr": 1e-5}
    assert glassformer.train(tuned, tmp_path / "tuned", log=quiet).spec == bundle.spec


@pytest.mark.parametrize("condition", ["text", "class"])
def test_resumed_runs_are_bit_identical_with_ema(condition: str, tmp_path: Path) -> None:
    long = recipe_of(tmp_path, condition, max_steps=10, ema=0.9)
    short = {**long, "training": {**long["training"], "max_steps": 5}}
    glassformer.train(short, tmp_path / "resumed", log=quiet)
    glassformer.train(long, tmp_path / "resumed", log=quiet)
    glassformer.train(long, tmp_path / "straight", log=quiet)
    resumed, straight = (tensor_files(tmp_path / name) for name in ("resumed", "straight"))
    assert len(resumed) >= 3 and any("ema" in str(path) for path in resumed)
    assert resumed == straight


def test_unusable_settings_are_rejected(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, max_steps=1)

    def train(**sections: Any) -> None:
        changed = {name: {**recipe[name], **change} for name, change in sections.items()}
        glassformer.train({**recipe, **changed}, tmp_path / f"run{len(list(tmp_path.iterdir()))}", log=quiet)

    gaussian = tmp_path / "kl"
    save(Bundle(model=glassformer.tiny("autoencoder_kl")), gaussian)
    with pytest.raises(MissingValueError, match="autoencoder"):
        train(model={"autoencoder": None})
    with pytest.raises(InvalidValueError, match="codebook"):
        train(model={"autoencoder": str(gaussian)})
    with pytest.raises(UnsupportedError, match="llama"):
        train(model={"preset": "bert"})
    with pytest.raises(ConflictError, match="flip_prob"):
        train(data={"max_shift": 2})
    with pytest.raises(InvalidValueError, match="16"):
        train(data={"image_size": [32, 32]})
