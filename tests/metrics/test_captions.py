"""CIDEr-D beside the scores of pycocoevalcap 1.2, whose scorer takes texts that are already split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU

from glassformer.errors import GlassformerError
from glassformer.metrics.captions import caption_metric, cider

PUBLISHED = json.loads(Path(__file__).with_name("captions.json").read_text(encoding="utf-8"))
CAPTIONS = [row["caption"] for row in PUBLISHED["captions"]]
REFERENCES = [row["references"] for row in PUBLISHED["captions"]]


def test_cider_matches_pycocoevalcap() -> None:
    score = cider(CAPTIONS, REFERENCES, tokenize="none")
    assert score.score == pytest.approx(PUBLISHED["cider"], abs=1e-9)
    assert score.signature == "CIDEr-D|n:4|sigma:6|tok:none|images:8|refs:1-3"


def test_tokenizers_change_the_score() -> None:
    captions, references = ["A red ball.", "a dog"], ["a red ball", "a dog"]
    words, spaces, characters = (
        cider(captions, references, tokenize=t).score for t in ("words", "none", "char")
    )
    assert spaces < words and characters > spaces


def test_repeated_references_change_no_bleu() -> None:
    """BLEU takes equally many references for each caption."""
    scores = caption_metric(CAPTIONS[:4], REFERENCES[:4])
    padded = [[*group, *[group[-1]] * (3 - len(group))] for group in REFERENCES[:4]]
    expected = BLEU().corpus_score(CAPTIONS[:4], [list(column) for column in zip(*padded, strict=True)])
    assert scores["bleu"].score == pytest.approx(expected.score)
    assert scores["cider"] == cider(CAPTIONS[:4], REFERENCES[:4])


@pytest.mark.parametrize(
    ("captions", "references", "message"),
    [
        (["a dog"], ["a dog"], "second image"),
        (["a dog", "a cat"], ["a dog"], "2 captions and 1"),
        (["a dog", "a cat"], [["a dog"], []], "caption 2"),
    ],
)
def test_what_cannot_be_scored_is_refused(captions: list[str], references: list, message: str) -> None:
    with pytest.raises(GlassformerError, match=message):
        cider(captions, references)
