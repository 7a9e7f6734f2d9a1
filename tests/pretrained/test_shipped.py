"""The shipped models: their size, their cards, and that they work."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glassformer
from glassformer import pretrained as models
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.examples import example_input

MEGABYTE = 1_000_000
MAX_BYTES = {  # of the folder
    "pocket": 25 * MEGABYTE,
    "pocket-captioner": 5 * MEGABYTE,
    "pocket-detector": 8 * MEGABYTE,
    "pocket-digits": MEGABYTE // 2,
    "pocket-lm": 15 * MEGABYTE,
    "pocket-sam": 11 * MEGABYTE,
    "pocket-series": MEGABYTE // 2,
    "pocket-vqa": 11 * MEGABYTE // 2,
}
SCENE = Path(__file__).parents[2] / "examples" / "data" / "caption-scene.png"
SECTIONS = ("Data", "License and attribution", "Training", "Evaluation", "Limitations")

each = pytest.mark.parametrize("name", sorted(MAX_BYTES))


@each
def test_it_is_small_and_has_checksums(name: str) -> None:
    folder = models.folder_of(name)
    assert (folder / "checksums.json").is_file()
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= MAX_BYTES[name]


@each
def test_its_card_is_complete(name: str) -> None:
    card = models.card(name)
    headings = re.findall(r"^## (.+)$", card.text, re.MULTILINE)
    assert set(SECTIONS) <= set(headings)
    assert card.task and card.license
    assert card.parameters == sum(p.numel() for p in glassformer.load(name).model.parameters())


@each
def test_it_passes_verify(name: str, run: Any) -> None:
    if name == "pocket-sam" and os.environ.get("GLASSFORMER_FAULTS") != "whole":
        pytest.skip("takes minutes on a CPU; `make test-slow` runs it")
    done = run("verify", name, "--json")
    assert done.code == 0 and json.loads(done.out)["passed"], done.out + done.err


def test_pocket_translates_into_every_language_it_names(run: Any) -> None:
    languages = set(models.card("pocket").languages)
    listed = describe_model(glassformer.load("pocket"), "p").languages
    assert languages == {"en", "de", "fr", "ko"} <= set(listed)
    found = {
        to: run("translate", "pocket", "--to", to, "The old man is reading a book.").out
        for to in sorted(languages - {"en"})
    }
    assert len(set(found.values())) == 3 and re.search("[가-힣]", found["ko"])
    assert "buch" in found["de"].lower() and "livre" in found["fr"].lower()
    back = run("translate", "pocket", "--to", "en", "Der alte Mann liest ein Buch.").out
    assert "book" in back.lower()


def test_pocket_lm_continues_a_prompt(run: Any) -> None:
    done = run("generate", "pocket-lm", "Once upon a time", "--max-new-tokens", 20, "--no-do-sample")
    assert done.code == 0 and len(done.out.split()) > 8


def test_pocket_captioner_describes_the_example_in_every_language_it_names() -> None:
    captions = {
        "en": "Two yellow circles are to the left of two cars.",
        "de": "Links sind zwei gelbe Kreise, rechts sind zwei Autos.",
        "fr": "À gauche deux cercles jaunes, à droite deux voitures.",
        "ko": "왼쪽에 노란 원 두 개, 오른쪽에 자동차 두 대가 있습니다.",
    }
    pipeline = glassformer.load("pocket-captioner")
    assert set(models.card("pocket-captioner").languages) == {*captions}
    for to, caption in captions.items():
        assert pipeline.caption(SCENE, to=to) == caption
        start = " ".join(caption.split()[:2])  # words of the prompt are encoded as in training
        assert pipeline.caption(SCENE, to=to, prompt=start) == caption


@pytest.mark.parametrize(
    ("options", "problem"),
    [("--to xx", "unknown language"), ("", "--to"), ("--to en --prompt zebras", "zebras")],
)
def test_pocket_captioner_rejects_what_it_cannot_write(options: str, problem: str, run: Any) -> None:
    done = run("caption", "pocket-captioner", SCENE, *options.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and problem in done.err


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many yellow circles are there?", "2"),
        ("Is there a goat in the picture?", "no"),
        ("What color are the circles?", "yellow"),
        ("What is to the left of the cars?", "circle"),
        ("Are the cars to the left of the circles?", "no"),
        ("자동차는 몇 대 있나요?", "2"),
        ("그림에 염소가 있나요?", "아니요"),
        ("원은 무슨 색인가요?", "노란색"),
        ("자동차의 왼쪽에 무엇이 있나요?", "원"),
        ("원이 자동차의 왼쪽에 있나요?", "네"),
    ],
)
def test_pocket_vqa_answers_in_the_language_of_the_question(question: str, answer: str) -> None:
    assert glassformer.load("pocket-vqa").ask(SCENE, question).answer == answer


def test_pocket_digits_classifies_the_example(run: Any, tmp_path: Path) -> None:
    image = example_input(glassformer.load("pocket-digits")).image
    assert image is not None
    (tmp_path / "four.png").write_bytes(base64.b64decode(image.partition(",")[2]))
    done = run("classify", "pocket-digits", tmp_path / "four.png", "--json")
    label = json.loads(done.out)["labels"][0]
    assert done.code == 0 and label["label"] == "4" and label["score"] > 0.5, done.out


def test_pocket_sam_segments_a_disk_by_one_click(run: Any, tmp_path: Path) -> None:
    y, x = np.mgrid[:120, :160]
    disk = (x - 100) ** 2 + (y - 50) ** 2 < 30**2
    pixels = np.where(disk[..., None], np.array([200, 60, 40]), np.array([60, 120, 180])).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "disk.png")
    done = run("segment", "pocket-sam", tmp_path / "disk.png", "--point", "95,55", "--masks", tmp_path)
    assert done.code == 0, done.err
    mask = np.asarray(Image.open(tmp_path / "disk-1.png")).astype(bool)
    assert (mask & disk).sum() / (mask | disk).sum() > 0.95


def test_pocket_series_beats_the_last_value_on_a_wave(run: Any, tmp_path: Path) -> None:
    series = example_input(glassformer.load("pocket-series")).series
    assert series is not None and series.holdout
    past = {name: column[: -series.holdout] for name, column in series.columns.items()}
    with (tmp_path / "past.csv").open("w", newline="") as file:
        rows = zip(itertools.count(), *past.values(), strict=False)
        csv.writer(file).writerows([["ds", *past], *rows])
    found = glassformer.load("pocket-series").forecast(tmp_path / "past.csv")
    assert found.names == tuple(past)
    truth = np.array([column[-series.holdout :] for column in series.columns.values()]).T  # (N, C)
    last = np.array([column[-1] for column in past.values()])
    ours = found.values[0, : len(truth)]
    assert np.abs(ours - truth[: len(ours)]).mean() < 0.5 * np.abs(last - truth[: len(ours)]).mean()
    assert run("forecast", "pocket-series", tmp_path / "past.csv").code == 0


@pytest.mark.parametrize(("name", "problem"), [("pocket", "'xx'"), ("pocket-lm", "--to")])
def test_explore_rejects_a_language_the_model_lacks(name: str, problem: str, run: Any) -> None:
    done = run("explore", name, "--to", "xx", "--no-browser", "--port", "0")
    assert done.code == 2 and problem in done.err
