"""Learning labels: what is hidden, what is exchanged, and that measuring knows nothing of either."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glassformer.errors import GlassformerError
from glassformer.families.registry import spec_of
from glassformer.training.learner import PictureLearner, TextLabelLearner, exchanged
from glassformer.training.model_setup import fresh, labelling_head
from glassformer.training.recipe import recipe_from

PAD, BLANK, BEGIN, END = range(4)
LABELS = torch.tensor([0, 1, 1, 0])


def encoder(**words):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1, "max_len": 64}
    spec = spec_of("bert-base-uncased", vocab_size=50, dropout=0.0, attention_dropout=0.0, **sizes, **words)
    spec = replace(spec, head=labelling_head(spec, 2), tied=())
    return fresh(spec)


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

    def hidden_states(self, ids):
        self.ids = ids
        return self.model.hidden_states(ids)


def learner(model, **words):
    settings = {"hide": 0.3, "guess": 0.0, "blank": BLANK, "kept": (PAD, BEGIN, END), **words}
    return TextLabelLearner(model, **settings)


def test_as_many_tokens_are_hidden_as_asked_and_never_a_mark():
    model, ids = Seen(encoder()), texts()
    learner(model).train()(ids, LABELS)
    changed = model.ids != ids
    may = (ids != PAD) & (ids != BEGIN) & (ids != END)
    assert (model.ids[changed] == BLANK).all() and not changed[~may].any()
    assert 0.2 < changed[may].float().mean() < 0.4
    learner(model).eval()(ids, LABELS)
    assert (model.ids == ids).all()


def test_guessing_adds_the_mean_loss_of_hidden_tokens_for_each_text():
    model, ids = Seen(encoder()), texts()
    torch.manual_seed(3)
    plain = learner(model).train()(ids, LABELS)
    hidden = model.ids != ids
    x, _ = model.hidden_states(model.ids)
    scores = x[hidden] @ model.embed.token.weight.T
    torch.manual_seed(3)
    found = learner(model, guess=0.5).train()(ids, LABELS)
    expected = plain + 0.5 * len(ids) * F.cross_entropy(scores, ids[hidden])
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()
    assert model.embed.token.weight.grad.abs().sum() > 0


def test_two_readings_hide_different_tokens():
    model, ids = Seen(encoder()), texts()
    learner(model, r_drop=1.0).train()(ids, LABELS)
    one, other = model.ids.chunk(2)
    assert len(model.ids) == 2 * len(ids) and (one != other).any()


def test_an_exchanged_rectangle_is_the_next_pictures_and_the_share_is_what_is_left():
    pictures = torch.arange(5.0)[:, None, None, None].expand(5, 3, 24, 16)
    torch.manual_seed(0)
    for _ in range(20):
        mixed, other, share = exchanged(pictures, torch.arange(5), 1.0)
        assert other.tolist() == [4, 0, 1, 2, 3]
        foreign = mixed[1, 0] != 1
        assert (mixed[1, 0][foreign] == 0).all() and (mixed[:, 0] == mixed[:, 2]).all()
        assert float(share) == pytest.approx(1 - float(foreign.float().mean()), abs=1e-6)
        down, across = foreign.any(1).nonzero().flatten(), foreign.any(0).nonzero().flatten()
        assert foreign[down[0] : down[-1] + 1, across[0] : across[-1] + 1].all()
        assert 0.4 < float(share) < 0.97
    assert float(exchanged(pictures, torch.arange(5), 0.0)[2]) == 1


def test_exchanged_pictures_are_learned_as_both_in_proportion():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    pictures = torch.randn(4, 3, 8, 8)
    torch.manual_seed(5)
    found = PictureLearner(model, cutmix=1.0).train()(pictures, LABELS)
    torch.manual_seed(5)
    mixed, other, share = exchanged(pictures, LABELS, 1.0)
    one, two = (F.cross_entropy(model(mixed), labels, reduction="sum") for labels in (LABELS, other))
    assert found.item() == pytest.approx((share * one + (1 - share) * two).item(), rel=1e-5)
    measured = PictureLearner(model, cutmix=1.0).eval()(pictures, LABELS)
    assert float(measured) == pytest.approx(float(F.cross_entropy(model(pictures), LABELS, reduction="sum")))


@pytest.mark.parametrize(
    ("job", "key", "value"),
    [
        ("classify", "recut", 1.0),
        ("translate", "recut", -0.1),
        ("classify", "hide", 1.0),
        ("classify", "guess", -1.0),
        ("images", "erase", 2.0),
        ("images", "cutmix", -0.1),
        ("images", "rotate", 200.0),
        ("images", "shift", -1),
    ],
)
def test_what_makes_no_sense_is_refused(job, key, value):
    with pytest.raises(GlassformerError, match=f"data.{key} is {value}"):
        recipe_from({"job": job, "data": {"train": ["x"], key: value}})
