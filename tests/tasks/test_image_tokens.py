"""Models of image tokens: their sequences, and drawing with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.bundle import Bundle, load, save
from glassformer.core import spec as specs
from glassformer.core.build import build_model
from glassformer.core.image_tokens import ImageTokensModel
from glassformer.errors import (
    ConflictError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
)
from glassformer.families.sidecars import JobInfo
from glassformer.generation.generators import RowGenerators
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

CODES, CLASSES, SIDE = 24, ("cat", "dog", "house"), 16
CELLS = (SIDE // 2) ** 2
TEXTS = ["red house", "a blue cat sits on a house", "dog"]


def parts(words: int, max_text_len: int) -> dict[str, Any]:
    head = specs.LanguageModelSpec(vocab_size=CODES)
    options = {"vocab_size": CODES + 1 + words, "max_len": max_text_len + 1 + CELLS}
    decoder = replace(glassformer.tiny("llama", **options).spec, head=head)
    return {"decoder": decoder, "autoencoder": glassformer.tiny("vq_model", image_size=SIDE).spec}


def random_model(spec: Any) -> Any:
    torch.manual_seed(5)
    model = build_model(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.5 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn_like(parameter) * spread)
    return model.eval()


@pytest.fixture(scope="module")
def texts() -> Bundle:
    tokenizer = train_tokenizer(TEXTS * 3, TokenizerPlan(kind="word", vocab_size=40))
    spec = specs.ImageTokensModelSpec(**parts(tokenizer.vocab_size, 12))
    return Bundle(model=random_model(spec), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def classes() -> Bundle:
    spec = specs.ImageTokensModelSpec(**parts(len(CLASSES), 1), num_classes=len(CLASSES))
    return Bundle(model=random_model(spec), job=JobInfo(classes=CLASSES))


def test_codes_come_first_and_text_follows_the_start_of_image(texts: Bundle) -> None:
    spec: Any = texts.spec
    assert (spec.image_start_id, spec.offset, spec.grid, spec.num_cells) == (24, 25, (8, 8), 64)
    assert spec.prompt([0, 3]) == [25, 28, 24] and spec.prompt(()) == [24]
    assert spec.modalities == ("text",) and spec.yields == "images" and spec.max_text_len == 12
    assert list(spec.children()) == ["decoder", "autoencoder"]


def test_encoding_and_decoding_are_those_of_the_autoencoder(texts: Bundle) -> None:
    model: Any = texts.model
    images = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        codes = model.encode(images)
        assert codes.shape == (2, CELLS) and codes.unique().numel() > 3
        torch.testing.assert_close(model.decode(codes), model.autoencoder(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["texts", "classes"])
def test_folders_keep_the_model(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bundle = request.getfixturevalue(kind)
    save(bundle, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded.model, ImageTokensModel) and loaded.spec == bundle.spec
    assert (loaded.tokenizer is None) == (kind == "classes") and loaded.job == bundle.job
    ids = torch.tensor([bundle.spec.prompt([1]), bundle.spec.prompt([2])])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids), bundle.model(ids))


@pytest.mark.parametrize(("kind", "prompts"), [("texts", TEXTS), ("classes", ["dog", 0, "2"])])
def test_a_seed_draws_the_same_image_alone_and_in_a_batch(
    kind: str, prompts: list[Any], request: pytest.FixtureRequest
) -> None:
    bundle = request.getfixturevalue(kind)
    together = TokenImageGenerator(bundle, num_images_per_prompt=2, seed=7)(prompts)
    alone = TokenImageGenerator(bundle, num_images_per_prompt=2, seed=7, batch_size=1)
    levels = []
    for prompt, drawing in zip(prompts, together, strict=True):
        assert drawing.seeds == (7, 8) and drawing.images[0].size == (SIDE, SIDE)
        one = alone(prompt)
        levels += [np.asarray(image, np.int16) for image in drawing.images]
        for image, same in zip(drawing.images, one.images, strict=True):
            assert np.abs(np.asarray(image, np.int16) - np.asarray(same, np.int16)).max() <= 1
    distinct = {level.tobytes() for level in levels}
    assert len(distinct) == len(levels), "every prompt and seed gives another image"


@torch.no_grad()
def test_sampled_codes_follow_the_formula_of_guidance(texts: Bundle) -> None:
    """Without caches, code by code: logits of the full sequences, guidance, temperature, the row's noise."""
    task = TokenImageGenerator(texts, guidance_scale=2.5, temperature=1.3, top_k=9)
    rows = list(task.load(TEXTS))
    codes = task.sample(rows, [3, 4, 5])
    model: Any = texts.model
    for row, prompt in enumerate(rows):
        noise = RowGenerators([3 + row])
        for n in range(CELLS):
            sequences = [[*start, *codes[row, :n].tolist()] for start in (prompt, texts.spec.prompt(()))]  # type: ignore[attr-defined]
            conditional, free = (model(torch.tensor([one]))[0, -1].log_softmax(-1) for one in sequences)
            scores = (free + 2.5 * (conditional - free)) / 1.3
            scores[scores < scores.topk(9).values[-1]] = -torch.inf
            clocks = noise.exponential(scores[None])[0]
            assert int((scores.softmax(-1) / clocks).argmax()) == int(codes[row, n])


def test_guidance_and_negative_prompts_change_the_codes(texts: Bundle) -> None:
    def codes(**options: Any) -> torch.Tensor:
        task = TokenImageGenerator(texts, **options)
        return task.sample(list(task.load(TEXTS)), [1, 1, 1])

    plain, *others = [
        codes(guidance_scale=1.0), codes(guidance_scale=3.0), codes(negative_prompt="house"), codes(top_p=0.2)
    ]  # fmt: skip
    for n, one in enumerate(others):
        assert all((one != other).any(1).all() for other in (plain, *others[:n]))
    assert int(plain.max()) < CODES


def test_unusable_prompts_and_options_are_errors(texts: Bundle, classes: Bundle) -> None:
    with pytest.raises(InputTooLongError, match="32 tokens"):
        TokenImageGenerator(texts)("house " * 30)
    with pytest.raises(InvalidValueError, match="cat, dog, house"):
        TokenImageGenerator(classes)("bird")
    with pytest.raises(InvalidValueError, match="temperature"):
        TokenImageGenerator(texts, temperature=0)


def test_parts_that_do_not_fit_are_errors() -> None:
    known = parts(4, 5)
    gaussian = glassformer.tiny("autoencoder_kl", image_size=SIDE).spec
    with pytest.raises(MissingValueError, match="codebook"):
        specs.ImageTokensModelSpec(**{**known, "autoencoder": gaussian})
    other = glassformer.tiny("vq_model", image_size=SIDE, num_codes=30).spec
    with pytest.raises(ConflictError, match="24 codes of 30"):
        specs.ImageTokensModelSpec(**{**known, "autoencoder": other})
    with pytest.raises(InvalidValueError, match="vocab_size"):
        specs.ImageTokensModelSpec(**known, num_classes=3)
    with pytest.raises(InvalidValueError, match="max_len"):
        specs.ImageTokensModelSpec(**parts(4, 0))
