"""Learning labels: of texts some tokens may be hidden and guessed back, of pictures parts may be exchanged.

All of it happens to a batch on its device, with the random numbers of its step, and only in training.
Letters: B examples, T tokens, D d_model, L labels; H height, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.data.examples import IGNORED
from glassformer.training.learner import Learner
from glassformer.training.losses import cross_entropy, projected_cross_entropy
from glassformer.training.twice import agreeing_loss

LEAST, MOST = 0.25, 0.75  # of a side, for the rectangle that comes from another picture


class LabelLearner(Learner):
    """Learns the label of a text (ids) or a picture."""

    def scores(self, inputs: Tensor) -> Tensor:
        """A score for each class: (B, L)."""
        answer = self.model(inputs)
        logits: Tensor = answer if isinstance(answer, Tensor) else answer.logits
        return logits

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        if self.twice:
            twice = torch.cat((inputs, inputs))
            return self.wrong(self.scores(twice), labels)
        return self.wrong(self.scores(inputs), labels)

    def wrong(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The summed loss of one reading's scores (B, L), or of two readings' (2B, L)."""
        if self.twice:
            return agreeing_loss(scores, labels, smoothing=self.spread, weight=self.r_drop)
        return cross_entropy(scores, labels, smoothing=self.spread)


class TextLabelLearner(LabelLearner):
    """Learns the label of a text, of which each token is hidden with the chance `hide`.

    guess: the weight of guessing the hidden tokens back beside the label, by their mean loss
    blank: the id that stands for a hidden token; kept: the ids that are never hidden, padding and marks
    """

    def __init__(
        self, model: nn.Module, *, hide: float, guess: float, blank: int, kept: tuple[int, ...], **words: Any
    ) -> None:
        super().__init__(model, **words)
        self.hide, self.guess, self.blank, self.kept = hide, guess, blank, kept

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        if not (self.training and self.hide):
            return super().forward(inputs, labels)
        ids = torch.cat((inputs, inputs)) if self.twice else inputs
        hidden = torch.rand(ids.shape, device=ids.device) < self.hide
        for mark in self.kept:
            hidden = hidden & (ids != mark)
        x, context = self.model.vectors(torch.where(hidden, self.blank, ids))  # (B or 2B, T, D)
        wrong = self.wrong(self.model.head(x, context), labels)
        if not self.guess:
            return wrong
        wanted = torch.where(hidden, ids, IGNORED)
        guessed = projected_cross_entropy(x, self.model.embed.token.weight, wanted)
        many = hidden.sum().clamp(min=1)
        return wrong + self.guess * len(labels) * guessed / many


class PictureLearner(LabelLearner):
    """Learns the label of a picture; with the chance `cutmix` a batch's pictures get a rectangle of others.

    The label is then that of both, in proportion to what is seen of each.
    """

    def __init__(self, model: nn.Module, *, cutmix: float, **words: Any) -> None:
        super().__init__(model, **words)
        self.cutmix = cutmix

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        if not (self.training and self.cutmix):
            return super().forward(inputs, labels)
        pictures, other, share = exchanged(inputs, labels, self.cutmix)
        scores = self.scores(torch.cat((pictures, pictures)) if self.twice else pictures)
        return share * self.wrong(scores, labels) + (1 - share) * self.wrong(scores, other)


def exchanged(pictures: Tensor, labels: Tensor, chance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures (B, C, H, W) with one rectangle from the next in the batch, its labels, and the share left.

    The rectangle is in the same place for all; with the chance 1 - `chance` there is none, and the share 1.
    """
    height, width = pictures.shape[2:]
    drawn = torch.rand(5, device=pictures.device)
    inside = _stretch(height, drawn[0], drawn[1])[:, None] & _stretch(width, drawn[2], drawn[3])  # (H, W)
    inside = inside & (drawn[4] < chance)
    share = 1 - inside.float().mean()
    return torch.where(inside, pictures.roll(1, 0), pictures), labels.roll(1, 0), share


def _stretch(side: int, place: Tensor, size: Tensor) -> Tensor:
    """Which pixels of a side lie in a random stretch of it: (side,)."""
    long = (LEAST + size * (MOST - LEAST)) * side
    begin = place * (side - long)
    at = torch.arange(side, device=place.device)
    return (at >= begin) & (at < begin + long)
