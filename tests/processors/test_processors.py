"""Processors: one way from raw inputs to a model, alone or together, with only the code of one modality."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer.core.inputs import tensor_of
from glassformer.errors import GlassformerError, InvalidValueError, NonFiniteError
from glassformer.processors.base import ForwardInputs, Processor
from glassformer.processors.image import FixedSizeVisionProcessor, VisionProcessor
from glassformer.processors.series import ForecastProcessor
from glassformer.processors.text import TextProcessor
from glassformer.tasks import Classifier, RejectedInputError
from glassformer.tasks.base import Callbacks
from tests.tasks.folders import TEXTS, bert

TEXT_MODULES = "translation chat classification embedding fill_mask token_classification"
OTHER_MODALITIES = ("image", "series", "forecast", "annotation", "detection", "segmentation", "windows")


@pytest.mark.parametrize("name", TEXT_MODULES.split())
def test_tasks_on_texts_import_no_other_modality(name: str) -> None:
    code = f"import sys, glassformer.tasks.{name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = [module for module in done.stdout.split() if module.startswith("glassformer.")]
    ours = [module for module in ours if not module.startswith("glassformer.core")]
    assert f"glassformer.tasks.{name}" in ours
    assert [module for module in ours if any(word in module for word in OTHER_MODALITIES)] == []


def test_pad_token_in_a_text_is_read(tmp_path: Path) -> None:
    """As any other token: alone, in a batch, and in transformers."""
    _, folder = bert("BertForMaskedLM", tmp_path)
    text, longer = "the [PAD] cat sat [PAD] on [MASK]", "[MASK] dog and a cat ran on the mat where is it"
    bundle = glassformer.load(folder)
    alone, together = bundle.fill(text), bundle.fill([text, longer])[0]
    expected = transformers.pipeline("fill-mask", model=str(folder), device="cpu")(text, top_k=5)
    for filled in (alone, together):
        assert [token.token for token in filled.masks[0]] == [token["token"] for token in expected]
        scores = [token.score for token in filled.masks[0]]
        assert scores == pytest.approx([token["score"] for token in expected], abs=1e-5)


def texts(folder: Path) -> tuple[Processor[Any, Any], list[Any]]:
    _, folder = bert("BertModel", folder)
    return TextProcessor.from_bundle(glassformer.load(folder)), [text for text in TEXTS if text]


def photos() -> list[Any]:
    generator, sizes = np.random.default_rng(0), ((40, 60), (60, 40), (80, 80), (9, 9))
    return [generator.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


def digits(folder: Path) -> tuple[Processor[Any, Any], list[Any]]:
    return FixedSizeVisionProcessor.from_bundle(glassformer.load("pocket-digits")), photos()


def scenes(folder: Path) -> tuple[Processor[Any, Any], list[Any]]:
    return VisionProcessor.from_bundle(glassformer.load("pocket-detector")), photos()


def tables(folder: Path) -> tuple[Processor[Any, Any], list[Any]]:
    processor = ForecastProcessor.from_bundle(glassformer.load("pocket-series"))
    steps = np.arange(processor.context + 5)
    return processor, [{"y": (10 * n + np.sin(steps / (n + 1))).tolist()} for n in range(3)]


@pytest.mark.parametrize("make", [texts, digits, scenes, tables])
def test_a_batch_contains_the_same_inputs_as_its_items_alone(make: Any, tmp_path: Path) -> None:
    processor, sources = make(tmp_path)
    items = [processor.load(source) for source in sources]
    assert all(processor.size(item) > 0 for item in items)
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(processor.group(item), []).append(item)
    for group in groups.values():
        batch = processor.collate(group)
        for row, item in enumerate(group):
            alone = processor.collate([item])
            assert torch.equal(row_of(batch, row), row_of(alone, 0))


def row_of(inputs: ForwardInputs, row: int) -> torch.Tensor:
    """The row of a batch without its padding."""
    values, mask = tensor_of(inputs["inputs"])[row], getattr(inputs["inputs"], "mask", None)
    return values if mask is None or mask.padding is None else values[mask.padding[row]]


def test_inputs_of_a_wrong_type_are_rejected_by_number(tmp_path: Path) -> None:
    _, folder = bert("BertForSequenceClassification", tmp_path)
    task, rejected = Classifier(glassformer.load(folder)), dict[int, GlassformerError]()
    inputs: list[Any] = ["the cat", 5, "\udcff", ("a", "b", "c"), "a dog"]
    results = list(task.run(inputs, Callbacks(on_reject=rejected.__setitem__)))
    assert sorted(rejected) == [2, 3, 4]
    assert all(isinstance(error, InvalidValueError) for error in rejected.values())
    assert [bool(result.labels) for result in results] == [True, False, False, False, True]
    with pytest.raises(RejectedInputError) as error:
        task(inputs)
    assert error.value.number == 2


def test_the_error_of_an_image_leaves_the_others_alone() -> None:
    task, rejected = Classifier(glassformer.load("pocket-digits")), dict[int, GlassformerError]()
    first, last = photos()[:2]
    results = list(task.run([first, b"no image", last], Callbacks(on_reject=rejected.__setitem__)))
    assert list(rejected) == [2] and results[1].labels == []
    assert [results[0], results[2]] == task([first, last])


def test_values_that_are_missing_in_all_steps_are_rejected() -> None:
    from glassformer.data.labeled_series import SeriesPreparation
    from glassformer.processors.series import SeriesProcessor

    processor = SeriesProcessor.__new__(SeriesProcessor)
    processor.preparation = SeriesPreparation(length=4, difference=False, mean=(0.0,), std=(1.0,))
    good, bad, short = processor.load_batch([np.arange(5.0), np.full(5, np.nan), np.arange(1.0)])
    assert isinstance(good, np.ndarray) and good.shape == (5, 1)
    assert isinstance(bad, NonFiniteError) and isinstance(short, InvalidValueError)
