"""Losses of the learners: masking, masked language modelling, CutMix, R-Drop; none of them in evaluation."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import glassformer
from glassformer.core.inputs import tensor_of
from glassformer.data.examples import IGNORE_INDEX
from glassformer.errors import InvalidValueError
from glassformer.families.registry import preset_spec
from glassformer.training.learner import MixLearner, PairLearner, TextLabelLearner, cutmix, r_drop_loss
from glassformer.training.model_setup import build_initialized, published_head
from glassformer.training.recipe import parse_recipe

PAD, BLANK, BEGIN, END = range(4)
LABELS = torch.tensor([0, 1, 1, 0])


def encoder(**options):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1, "max_len": 64}
    spec = preset_spec(
        "bert-base-uncased", vocab_size=50, dropout=0.0, attention_dropout=0.0, **sizes, **options
    )
    spec = replace(spec, head=published_head(spec, "ForSequenceClassification", 2), tied=())
    return build_initialized(spec)


def texts() -> torch.Tensor:
    ids = torch.randint(4, 50, (4, 40), generator=torch.Generator().manual_seed(1))
    ids[:, 0], ids[:, -1] = BEGIN, END
    ids[2, 20:] = PAD
    return ids


class Seen(nn.Module):
    """A model that remembers what it was given."""

    def __init__(self, model):
        super().__init__()
        self.model, self.head, self.embed = model, model.head, model.embed

    def forward(self, ids):
        self.ids = ids
        return self.model(ids)

    def hidden_states(self, inputs):
        self.ids = tensor_of(inputs)
        return self.model.hidden_states(inputs)


def learner(model, **options):
    settings = {
        "mask_prob": 0.3,
        "mlm_weight": 0.0,
        "mask_id": BLANK,
        "unmaskable": (PAD, BEGIN, END),
        **options,
    }
    return TextLabelLearner(model, **settings)


def test_tokens_are_masked_at_the_requested_rate_but_special_ones_never():
    model, ids = Seen(encoder()), texts()
    learner(model).train()(ids, LABELS)
    changed = model.ids != ids
    may = (ids != PAD) & (ids != BEGIN) & (ids != END)
    assert (model.ids[changed] == BLANK).all() and not changed[~may].any()
    assert 0.2 < changed[may].float().mean() < 0.4
    learner(model).eval()(ids, LABELS)
    assert (model.ids == ids).all()


def test_mlm_loss_is_the_mean_over_masked_tokens_per_text():
    model, ids = Seen(encoder()), texts()
    torch.manual_seed(3)
    plain = learner(model).train()(ids, LABELS)
    hidden = model.ids != ids
    x, _ = model.hidden_states(model.ids)
    scores = x[hidden] @ model.embed.token.weight.T
    torch.manual_seed(3)
    loss = learner(model, mlm_weight=0.5).train()(ids, LABELS)
    expected = plain + 0.5 * len(ids) * F.cross_entropy(scores, ids[hidden])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert model.embed.token.weight.grad.abs().sum() > 0


def test_r_drop_passes_mask_different_tokens():
    model, ids = Seen(encoder()), texts()
    learner(model, r_drop=1.0).train()(ids, LABELS)
    first, other = model.ids.chunk(2)
    assert len(model.ids) == 2 * len(ids) and (first != other).any()


def test_cutmix_rectangle_and_ratio():
    pictures = torch.arange(5.0)[:, None, None, None].expand(5, 3, 24, 16)
    torch.manual_seed(0)
    for _ in range(20):
        mixed, ratio = cutmix(pictures, 1.0)
        foreign = mixed[1, 0] != 1
        assert (mixed[1, 0][foreign] == 0).all() and (mixed[:, 0] == mixed[:, 2]).all()
        assert float(ratio) == pytest.approx(1 - float(foreign.float().mean()), abs=1e-6)
        down, across = foreign.any(1).nonzero().flatten(), foreign.any(0).nonzero().flatten()
        assert foreign[down[0] : down[-1] + 1, across[0] : across[-1] + 1].all()
        assert 0.4 < float(ratio) < 0.97
    assert float(cutmix(pictures, 0.0)[1]) == 1


def test_cutmix_loss_is_proportional():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    pictures = torch.randn(4, 3, 8, 8)
    torch.manual_seed(5)
    loss = MixLearner(model, cutmix=1.0).train()(pictures, LABELS)
    torch.manual_seed(5)
    mixed, ratio = cutmix(pictures, 1.0)
    both = (LABELS, LABELS.roll(1))
    first, two = (F.cross_entropy(model(mixed), labels, reduction="sum") for labels in both)
    assert loss.item() == pytest.approx((ratio * first + (1 - ratio) * two).item(), rel=1e-5)
    measured = MixLearner(model, cutmix=1.0).eval()(pictures, LABELS)
    assert float(measured) == pytest.approx(float(F.cross_entropy(model(pictures), LABELS, reduction="sum")))


@pytest.mark.parametrize(
    ("job", "key", "value"),
    [("translate", "bpe_dropout", 1.0), ("classify", "mlm_weight", -1.0), ("translate", "max_len", 0)],
)
def test_data_settings_out_of_range_are_errors(job, key, value):
    with pytest.raises(InvalidValueError) as caught:
        parse_recipe({"job": job, "data": {"train": ["x"], key: value}})
    assert caught.value.name == f"data.{key}"


def test_r_drop_loss_is_both_cross_entropies_and_both_divergences():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, 9, dtype=torch.float64)  # three texts twice
    labels = torch.randint(9, (3, 4))
    labels[1, 2:] = IGNORE_INDEX
    expected = 0.0
    for row, column in (labels != IGNORE_INDEX).nonzero().tolist():
        first, other = logits[row, column], logits[row + 3, column]
        for scores in (first, other):
            expected += F.cross_entropy(scores, labels[row, column], label_smoothing=0.1) / 2
        p, q = first.softmax(0), other.softmax(0)
        expected += 5 / 4 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
    loss = r_drop_loss(logits, labels, label_smoothing=0.1, weight=5.0)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_r_drop_only_affects_training_and_vanishes_without_dropout():
    torch.manual_seed(0)
    model = glassformer.build(
        "original", d_model=16, num_heads=2, d_ff=32, num_layers=1, src_vocab_size=30, dropout=0.3
    )
    src, tgt = torch.randint(1, 30, (3, 5)), torch.randint(1, 30, (3, 4))
    labels = tgt.roll(-1, 1)
    once, twice = PairLearner(model), PairLearner(model, r_drop=5.0)
    evaluated = once.eval()(src, tgt, labels)
    assert torch.equal(evaluated, twice.eval()(src, tgt, labels))
    twice.train()
    assert float(twice(src, tgt, labels).detach()) != pytest.approx(float(evaluated), rel=1e-4)
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
