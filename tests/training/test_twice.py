"""R-Drop: what two readings cost is worked out the long way, and only learning reads twice."""

import pytest
import torch
from torch.nn import functional as F

import glassformer
from glassformer.data.examples import IGNORED
from glassformer.errors import GlassformerError
from glassformer.training.learner import PairLearner, agreeing_loss
from glassformer.training.recipe import recipe_from


def test_the_loss_is_both_cross_entropies_and_both_divergences():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, 9, dtype=torch.float64)  # three texts twice
    labels = torch.randint(9, (3, 4))
    labels[1, 2:] = IGNORED
    expected = 0.0
    for row, column in (labels != IGNORED).nonzero().tolist():
        one, other = logits[row, column], logits[row + 3, column]
        for scores in (one, other):
            expected += F.cross_entropy(scores, labels[row, column], label_smoothing=0.1) / 2
        p, q = one.softmax(0), other.softmax(0)
        expected += 5 / 4 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
    found = agreeing_loss(logits, labels, smoothing=0.1, weight=5.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_only_learning_reads_twice_and_without_dropout_both_readings_are_one():
    torch.manual_seed(0)
    model = glassformer.build(
        "original", d_model=16, num_heads=2, d_ff=32, num_layers=1, src_vocab_size=30, dropout=0.3
    )
    src, tgt = torch.randint(1, 30, (3, 5)), torch.randint(1, 30, (3, 4))
    labels = tgt.roll(-1, 1)
    once, twice = PairLearner(model), PairLearner(model, r_drop=5.0)
    for learner in (once.eval(), twice.eval()):
        learner.loss = learner(src, tgt, labels)
    assert torch.equal(once.loss, twice.loss)  # measuring is the same
    twice.train()
    assert float(twice(src, tgt, labels).detach()) != pytest.approx(
        float(once.loss), rel=1e-4
    )  # dropout sets them apart
    still = PairLearner(
        glassformer.build(
            "original", d_model=16, num_heads=2, d_ff=32, num_layers=1, src_vocab_size=30, dropout=0.0
        ),
        r_drop=5.0,
    )
    plain = PairLearner(still.model)
    assert float(still(src, tgt, labels).detach()) == pytest.approx(
        float(plain(src, tgt, labels).detach()), rel=1e-5
    )


def test_a_job_without_two_readings_says_so():
    with pytest.raises(GlassformerError, match=r"training.r_drop is 5.0, which lm does not have"):
        recipe_from({"job": "lm", "data": {"train": ["a.txt"]}, "training": {"r_drop": 5.0}})
