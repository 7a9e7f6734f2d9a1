"""A model with its loss: what a job trains. `forward` takes a batch and gives the loss summed over its units.

Summed, not averaged: batches, devices and processes then add up to one big batch, divided once by its count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.distributions import Parameters, mapped
from glassformer.core.heads import LanguageModelHead
from glassformer.core.masks import Mask
from glassformer.data.examples import IGNORED
from glassformer.training.losses import cross_entropy, projected_cross_entropy


def values_learned(batch: Mapping[str, Any]) -> int:
    """How many values a batch has to foretell."""
    return int(batch["future"].size)


def tokens_learned(batch: Mapping[str, Any]) -> int:
    """How many labels of a batch count."""
    return int((batch["labels"] != IGNORED).sum())


class Learner(nn.Module):
    """A model and a loss: `forward` of each kind takes the arrays of its batches by name."""

    model: (
        Any  # a core model or a baseline, all of which have `vectors` and `head`, or give the answer itself
    )

    def __init__(self, model: nn.Module, *, smoothing: float = 0.0, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.r_drop = r_drop

    @property
    def spread(self) -> float:
        """Label smoothing, which is for learning and not for measuring."""
        return self.smoothing if self.training else 0.0

    @property
    def twice(self) -> bool:
        """Whether every example is read twice, which is for learning too."""
        return self.training and self.r_drop > 0


def vocabulary_loss(model: Any, x: Tensor, context: Any, labels: Tensor, smoothing: float) -> Tensor:
    """The summed cross-entropy of vectors (B, T, D) and labels (B, T), the logits never whole in memory."""
    head = model.head
    if not isinstance(head, LanguageModelHead):
        return cross_entropy(head(x, context), labels, smoothing=smoothing)
    return projected_cross_entropy(
        head.transform(x), head.weight, labels, bias=head.bias, smoothing=smoothing
    )


class PairLearner(Learner):
    """Learns each token of the target from the source and the tokens before it."""

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        labels: Tensor,
        src_segments: Tensor | None = None,
        tgt_segments: Tensor | None = None,
    ) -> Tensor:
        if self.twice:
            return self._agreeing(src, tgt, labels, src_segments, tgt_segments)
        x, context = self._vectors(src, tgt, src_segments, tgt_segments)
        return vocabulary_loss(self.model, x, context, labels, self.spread)

    def _vectors(self, src: Tensor, tgt: Tensor, *segments: Tensor | None) -> tuple[Tensor, Any]:
        # Padding stands at a target's end, where no real token can see it: no mask but the causal one.
        reads = None if segments[0] is None else Mask(segments=segments[0])
        found: tuple[Tensor, Any] = self.model.hidden_states(
            src, tgt, src_mask=reads, tgt_mask=Mask(segments=segments[1])
        )
        return found

    def _agreeing(self, src: Tensor, tgt: Tensor, labels: Tensor, *segments: Tensor | None) -> Tensor:
        x, context = self._vectors(*(doubled(one) for one in (src, tgt, *segments)))  # type: ignore[arg-type]
        logits = self.model.head(x, context)  # (2B, T, V)
        return agreeing_loss(logits, labels, smoothing=self.spread, weight=self.r_drop)


class TextLearner(Learner):
    """Learns each token from those before it, within its own document."""

    def forward(self, ids: Tensor, labels: Tensor, segments: Tensor | None = None) -> Tensor:
        x, context = self.model.hidden_states(ids, mask=Mask(segments=segments))
        return vocabulary_loss(self.model, x, context, labels, self.spread)


def point(told: Tensor | Parameters) -> Tensor:
    """One number for each value to come, of values or of a distribution: (B, N, C)."""
    return (told if isinstance(told, Tensor) else told.mean).float()


class SeriesLearner(Learner):
    """Learns the values to come: squared error, or the chance a distribution gives them."""

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        return self.wrong(self.model(past), future)

    def wrong(self, told: Tensor | Parameters, future: Tensor) -> Tensor:
        """The summed loss of what the model told."""
        if isinstance(told, Tensor):
            return F.mse_loss(told.float(), future, reduction="sum")
        told = mapped(told, lambda _, tensor: tensor.float())
        return -told.log_prob(future).sum()


def model_parameters(learner: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, each once, by the model's own names."""
    return {
        name.removeprefix("model."): parameter
        for name, parameter in learner.named_parameters()
        if parameter.requires_grad
    }


class Statistics:
    """What a model's norms have seen of the batches so far, which moves as soon as one passes through.

    So a step that is not done after all has to put it back.
    """

    def __init__(self, learner: nn.Module) -> None:
        self.tensors = running_statistics(learner)
        self._before: list[Tensor] = []

    def remember(self) -> None:
        """Before a step."""
        self._before = [tensor.clone() for tensor in self.tensors]

    @torch.no_grad()
    def put_back(self, when: Tensor | None = None) -> None:
        """As they were before the step; with `when`, a truth on the device, only where it holds."""
        for tensor, before in zip(self.tensors, self._before, strict=True):
            tensor.copy_(before if when is None else torch.where(when, before, tensor))


def running_statistics(module: nn.Module) -> list[Tensor]:
    """The buffers in which norms over batches keep means, variances and counts."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def flops_a_unit(learner: nn.Module) -> float:
    """About what a unit costs there and back: six operations a parameter that it is multiplied with.

    A table of embeddings is only looked up, unless the head multiplies with it too.
    """
    tables = {id(m.weight): m.weight.numel() for m in learner.modules() if isinstance(m, nn.Embedding)}
    heads = {id(m.weight) for m in learner.modules() if isinstance(m, LanguageModelHead)}
    looked_up = sum(count for table, count in tables.items() if table not in heads)
    return 6.0 * (sum(p.numel() for p in learner.parameters()) - looked_up)


def doubled(tensor: Tensor | None) -> Tensor | None:
    """The batch (B, ...) twice over, one after the other: (2B, ...)."""
    return None if tensor is None else torch.cat((tensor, tensor))


def agreeing_loss(logits: Tensor, labels: Tensor, *, smoothing: float, weight: float) -> Tensor:
    """The loss of two readings (2B, ..., V) of the labels (B, ...), summed over the units of one.

    It is the mean of both cross-entropies, and `weight` / 4 times the divergences of each from the other:
    half of what the paper writes, so that it is the plain loss where both readings are the same.

    >>> logits, labels = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    >>> same = agreeing_loss(torch.cat((logits, logits)), labels, smoothing=0.1, weight=5.0)
    >>> bool(torch.isclose(same, cross_entropy(logits, labels, smoothing=0.1)))
    True
    """
    wrong = cross_entropy(logits, torch.cat((labels, labels)), smoothing=smoothing) / 2
    one, other = F.log_softmax(logits.float(), -1).chunk(2)  # (B, ..., V) each
    # KL(one, other) + KL(other, one) in one product
    apart = ((one.exp() - other.exp()) * (one - other)).sum(-1)  # (B, ...)
    return wrong + weight / 4 * torch.where(labels != IGNORED, apart, 0.0).sum()


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
        x, context = self.model.hidden_states(torch.where(hidden, self.blank, ids))  # (B or 2B, T, D)
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
