"""Measure the shipped models as they are, with int8 or bfloat16 weights, for the model cards.

Runs need no training and no GPU. "pocket-data" and "pocket-lm-data" count the training data of two models.
"digits", "series", "detector", "captioner" and "vqa" use the test data of their rows, "phrases"
the phrasebook of `pocket`, "scenes" and "photographs" the objects of `experiments.promptable_segmentation`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch

import glassformer
from experiments import (
    caption_scenes,
    detection_scenes,
    pictures,
    pocket_lm,
    pocket_series,
    promptable_segmentation,
    vqa_scenes,
)
from experiments.paths import Workspace
from experiments.pictures import DIGITS, accuracy_of
from experiments.pocket_data import phrasebook, prepare
from experiments.records import RunRecord, hardware, keep
from experiments.scene_questions import QuestionComposer
from experiments.scenes import SceneComposer, SceneOptions, read_emoji
from glassformer.pretrained import folder_of
from glassformer.processors.text import require_tokenizer

ROW = "shipped"
PHRASES = 250  # the first lines of the phrasebook: greetings, thanks and wishes
DETECTED = 500  # the first scenes of the test
IMAGES = 60  # scenes, and photographs
Figures = Mapping[str, float]


def run(workspace: Workspace, name: str) -> None:
    """Measure one model and record the figures."""
    model, measure = RUNS[name]
    start = time.perf_counter()
    figures = measure(workspace)
    pipeline = glassformer.load(model, device="cpu")
    keep(
        workspace,
        RunRecord(
            row=ROW,
            name=name,
            seed=0,
            parameters=sum(parameter.numel() for parameter in pipeline.model.parameters()),
            seconds=round(time.perf_counter() - start, 1),
            figures={key: round(float(v), 6) for key, v in figures.items() if not math.isnan(v)},
            hardware=hardware("cpu"),
            torch=torch.__version__,
            date=time.strftime("%Y-%m-%d"),
        ),
    )


def pocket_data(workspace: Workspace) -> Figures:
    """The pairs and English words of each source of `pocket`."""
    return prepare(workspace.data, workspace.prepared("pocket"))


def pocket_lm_data(workspace: Workspace) -> Figures:
    """The documents and words of each source of `pocket-lm`."""
    figures: dict[str, float] = {}
    unique: set[str] = set()
    for name, documents in pocket_lm.sources(workspace.data).items():
        texts = list(documents)
        words = sum(len(text.split()) for text in texts)
        figures |= {f"{name} documents": len(texts), f"{name} words": words}
        unique.update(texts)
    return figures | {"documents": len(unique)}


def digits(workspace: Workspace) -> Figures:
    """Accuracy on the test images of MNIST."""
    folder = pictures.prepare(workspace.data / "mnist", DIGITS, workspace, "mnist")
    return {"accuracy": accuracy_of(folder_of("pocket-digits"), folder / "test", workspace)}


def series(workspace: Workspace) -> Figures:
    """The errors of forecasts, as in the row `pocket-series`."""
    return pocket_series.measure(folder_of("pocket-series"), workspace)


def detector(workspace: Workspace) -> Figures:
    """Average precision on the test scenes of the row `detection-scenes`."""
    kinds = read_emoji(workspace.data / "emoji-captions", kinds=detection_scenes.KINDS)
    composer = SceneComposer(kinds, SceneOptions(size=detection_scenes.SIZE), seed=1)
    learner = detection_scenes.SceneLearner(glassformer.load("pocket-detector", device="cpu").model, composer)
    return detection_scenes.measure(learner, workspace.most or DETECTED)


def captioner(workspace: Workspace) -> Figures:
    """Sentences and objects that are right, on the test scenes of the row `caption-scenes`."""
    pipeline = glassformer.load("pocket-captioner", device="cpu")
    composer = caption_scenes.SentenceComposer(workspace.data / "emoji-captions", seed=1)
    learner = caption_scenes.SentenceLearner(pipeline.model, composer)
    tokenizer = require_tokenizer(pipeline)
    scenes, first = workspace.most or caption_scenes.TEST_SCENES, caption_scenes.FIRST_TEST
    return caption_scenes.measure(learner, tokenizer, scenes, first + caption_scenes.VALID_SCENES)


def vqa(workspace: Workspace) -> Figures:
    """Right answers, on the test scenes of the row `vqa-scenes`."""
    pipeline = glassformer.load("pocket-vqa", device="cpu")
    composer = QuestionComposer(workspace.data / "emoji-captions", seed=1)
    learner = vqa_scenes.QuestionLearner(pipeline.model, composer)
    vocabulary = vqa_scenes.Vocabulary(
        tokenizer=require_tokenizer(pipeline), answers=pipeline.job.classes or ()
    )
    scenes, first = workspace.most or vqa_scenes.TEST_SCENES, vqa_scenes.FIRST_TEST
    return vqa_scenes.measure(learner, vocabulary, scenes, first + vqa_scenes.VALID_SCENES)


def phrases(workspace: Workspace) -> Figures:
    """How many lines of the phrasebook are translated exactly as written there."""
    pocket = glassformer.load("pocket", device="cpu")
    pairs = list(islice(phrasebook(), 3 * PHRASES))  # a line is a pair in each language
    figures: dict[str, float] = {"phrases": PHRASES}
    for language in ("de", "fr", "ko"):
        lines = [pair for pair in pairs if pair.tag == language]
        written = pocket.translate([pair.english for pair in lines], to=language)
        figures[f"exact {language}"] = sum(
            text == pair.other for text, pair in zip(written, lines, strict=True)
        )
    return figures


def segmentation(
    samples: Callable[[Path, int], Iterator[promptable_segmentation.Sample]],
) -> Callable[[Workspace], Figures]:
    """The IoU of masks after a point and after a box."""

    def measure(workspace: Workspace) -> Figures:
        pipeline = glassformer.load("pocket-sam", device="cpu")
        images = workspace.most or IMAGES
        return {"images": images} | promptable_segmentation.measure(pipeline, samples(workspace.data, images))

    return measure


RUNS: Mapping[str, tuple[str, Callable[[Workspace], Figures]]] = {
    "pocket-data": ("pocket", pocket_data),
    "pocket-lm-data": ("pocket-lm", pocket_lm_data),
    "digits": ("pocket-digits", digits),
    "series": ("pocket-series", series),
    "detector": ("pocket-detector", detector),
    "captioner": ("pocket-captioner", captioner),
    "vqa": ("pocket-vqa", vqa),
    "phrases": ("pocket", phrases),
    "scenes": ("pocket-sam", segmentation(promptable_segmentation.scenes)),
    "photographs": ("pocket-sam", segmentation(promptable_segmentation.photographs)),
}
