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
from glassformer.training.twice import agreeing_loss, doubled


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
    return projected_cross_entropy(head.scaled(x), head.weight, labels, bias=head.bias, smoothing=smoothing)


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
        found: tuple[Tensor, Any] = self.model.vectors(
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
        x, context = self.model.vectors(ids, mask=Mask(segments=segments))
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
