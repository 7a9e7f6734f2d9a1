"""Metrics against the library that defines them, or against a case computed by hand."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import sacrebleu
import torch

from glassformer.errors import EmptyInputError
from glassformer.metrics.entities import entity_scores, find_entities
from glassformer.metrics.forecast import ForecastErrors
from glassformer.metrics.labels import ConfusionMatrix, multi_label_scores
from glassformer.metrics.regression import regression_scores
from glassformer.metrics.squad import answer_f1, exact_match
from glassformer.metrics.text import bleu, chrf

HYPOTHESES = ["The cat sat on the mat, quietly.", "a man rides his horse", "나는 어제 학교에 갔다.", "x"]
REFERENCES = ["A cat sat on the mat quietly.", "a man is riding a horse", "나는 어제 학교에 갔습니다.", "y z"]


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
@pytest.mark.parametrize("case", ["mixed", "lower"])
def test_bleu_and_chrf_match_sacrebleu(tokenize, case) -> None:
    lower = case == "lower"
    metric = bleu(HYPOTHESES, REFERENCES, tokenize=tokenize, case=case)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize=tokenize, lowercase=lower)
    assert metric.score == expected.score and not metric.note
    assert metric.signature.startswith(f"nrefs:1|case:{'lc' if lower else 'mixed'}|eff:no|tok:{tokenize}|")
    # the function of that name leaves the case alone, so the texts are lowered for it
    texts = [[t.lower() for t in texts] if lower else texts for texts in (HYPOTHESES, REFERENCES)]
    metric = chrf(HYPOTHESES, REFERENCES, case=case)
    assert metric.score == sacrebleu.corpus_chrf(texts[0], [texts[1]]).score
    assert "nc:6|nw:0" in metric.signature


def test_bleu_of_characters_replaces_a_missing_tokenizer() -> None:
    if importlib.util.find_spec("mecab_ko") is None:
        korean = bleu(HYPOTHESES, REFERENCES, tokenize="ko-mecab")
        assert "sacrebleu[ko]" in korean.note and "tok:char" in korean.signature
        assert korean.score == bleu(HYPOTHESES, REFERENCES, tokenize="char").score


def test_classification_metrics_match_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    true = draw.choice([0, 1, 2, 4], 500, p=[0.7, 0.2, 0.08, 0.02])  # class 3 never occurs, 5 is only said
    predicted = np.where(draw.random(500) < 0.6, true, draw.choice([0, 1, 2, 4, 5], 500))
    metric = ConfusionMatrix([f"class {n}" for n in range(7)])
    for part in np.array_split(np.arange(500), 7):
        metric.add(predicted=torch.tensor(predicted[part]), true=true[part].tolist())
    classes = list(range(7))
    assert metric.confusion.tolist() == metrics.confusion_matrix(true, predicted, labels=classes).tolist()
    assert metric.accuracy == metrics.accuracy_score(true, predicted)
    assert math.isclose(metric.macro_f1, metrics.f1_score(true, predicted, average="macro", zero_division=0))
    table = metrics.precision_recall_fscore_support(true, predicted, labels=classes, zero_division=0)
    for n, row in enumerate(metric.table()):
        assert row.name == f"class {n}"
        assert np.allclose(row[1:], [column[n] for column in table])


def test_metrics_of_no_labels_are_zero() -> None:
    metric = ConfusionMatrix(["no", "yes"])
    metric.add(predicted=[], true=[])
    assert (metric.count, metric.accuracy, metric.macro_f1) == (0, 0.0, 0.0)


def test_forecast_errors_do_not_depend_on_the_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    forecast, actual = (torch.randn(37, 4, 3, generator=generator) for _ in range(2))
    off = (forecast.double() - actual.double()).numpy()
    errors = ForecastErrors()
    for a, b in zip(forecast.split(5), actual.split(5), strict=True):
        errors.add(a, b)
    scores = errors.scores()
    assert scores.forecasts == 37
    assert scores.mse == pytest.approx((off**2).mean(), rel=1e-12)
    assert scores.mae == pytest.approx(abs(off).mean(), rel=1e-12)
    assert scores.mse_by_step == pytest.approx((off**2).mean((0, 2)), rel=1e-12)
    with pytest.raises(EmptyInputError):
        ForecastErrors().scores()


def test_a_small_forecast_error_is_not_lost_among_large_ones() -> None:
    """In float32, adding 1 to 2**24 changes nothing."""
    errors = ForecastErrors()
    errors.add(torch.full((1, 1, 1), 4096.0), torch.zeros(1, 1, 1))
    for _ in range(3):
        errors.add(torch.ones(1, 1, 1), torch.zeros(1, 1, 1))
    assert errors.scores().mse == (2**24 + 3) / 4


def test_multi_label_and_regression_scores_match_the_references() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(1)
    true, predicted = draw.random((300, 4)) < (0.5, 0.3, 0.05, 0.0), draw.random((300, 4)) < 0.4
    scores = multi_label_scores(["a", "b", "c", "never"], predicted, true)
    options = {"zero_division": 0}
    assert scores.accuracy == metrics.accuracy_score(true, predicted)
    assert math.isclose(scores.micro_f1, metrics.f1_score(true, predicted, average="micro", **options))
    assert math.isclose(scores.macro_f1, metrics.f1_score(true, predicted, average="macro", **options))
    numbers = np.round(draw.normal(size=300), 1)  # with ties
    guesses = np.round(numbers + draw.normal(size=300), 1)
    found = regression_scores(guesses, numbers)
    assert math.isclose(found.mse, metrics.mean_squared_error(numbers, guesses))
    assert math.isclose(found.mae, metrics.mean_absolute_error(numbers, guesses))
    assert math.isclose(found.pearson, stats.pearsonr(guesses, numbers)[0])
    assert math.isclose(found.spearman, stats.spearmanr(guesses, numbers)[0])
    assert regression_scores([1.0, 1.0], [1.0, 2.0]).pearson == 0.0


def test_entity_scores_of_hand_worked_sentences() -> None:
    """The first two are the example in seqeval's README: precision, recall and F1 are 0.5."""
    true = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    scores = entity_scores(predicted, true)
    assert scores[:3] == (0.5, 0.5, 0.5)
    assert [(row.name, row.f1, row.support) for row in scores.table] == [("MISC", 0.0, 1), ("PER", 1.0, 1)]
    for tags, entities in (
        (["I-PER", "I-PER", "B-PER"], [("PER", 0, 1), ("PER", 2, 2)]),  # IOB1 begins with I
        (["B-PER", "I-LOC"], [("PER", 0, 0), ("LOC", 1, 1)]),  # another type
        (["B-PER", "E-PER", "S-PER", "I-PER"], [("PER", 0, 1), ("PER", 2, 2), ("PER", 3, 3)]),  # IOBES
        (["NOUN", "NOUN", "O"], [("NOUN", 0, 0), ("NOUN", 1, 1)]),  # without prefixes
    ):
        assert find_entities(tags) == entities


def test_squad_metrics_of_hand_worked_answers() -> None:
    """Cases of the official script: case, articles and punctuation are ignored; the best answer counts."""
    assert exact_match("the Eiffel Tower.", ["a tower", "Eiffel tower"]) == 1.0
    assert answer_f1("in Paris , France", ["Paris France", "Lyon"]) == pytest.approx(2 * 2 / (3 + 2))
    assert answer_f1("Rome", ["Paris"]) == 0.0 == exact_match("Rome", ["Paris"])
    assert (exact_match("", []), answer_f1("", []), answer_f1("Rome", [])) == (1.0, 1.0, 0.0)
    assert exact_match("the", []) == 1.0  # nothing is left of it
