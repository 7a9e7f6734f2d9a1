"""VQA accuracy beside the figures of the official evaluation code of the VQA data sets, as of 2021."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.errors import GlassformerError
from glassformer.metrics import vqa_metric

OFFICIAL = json.loads(Path(__file__).with_name("vqa.json").read_text(encoding="utf-8"))
QUESTIONS = OFFICIAL["questions"]


@pytest.mark.parametrize("row", QUESTIONS, ids=[repr(row["answer"]) for row in QUESTIONS])
def test_accuracy_matches_the_official_evaluation(row: dict) -> None:
    score = vqa_metric([row["answer"]], [row["references"]])["accuracy"].score
    assert score == pytest.approx(row["accuracy"], abs=1e-6)


def test_accuracy_of_all_questions_is_their_mean() -> None:
    answers, references = ([row[key] for row in QUESTIONS] for key in ("answer", "references"))
    score = vqa_metric(answers, references)["accuracy"]
    assert score.score == pytest.approx(OFFICIAL["accuracy"], abs=1e-6)
    assert score.signature == f"VQA accuracy|questions:{len(QUESTIONS)}|refs:10"


def test_a_single_reference_gives_plain_accuracy() -> None:
    answers = ["Two", "the dog.", "dont know", "빨간색", "left"]
    references = ["2", "dog", "don't know", "빨간색", "right"]
    assert vqa_metric(answers, references)["accuracy"].score == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("answers", "references", "message"),
    [
        ([], [], "answers"),
        (["yes"], ["yes", "no"], "1 answers and 2"),
        (["yes", "no"], [["yes"], []], "answer 2"),
    ],
)
def test_what_cannot_be_scored_is_refused(answers: list[str], references: list, message: str) -> None:
    with pytest.raises(GlassformerError, match=message):
        vqa_metric(answers, references)
