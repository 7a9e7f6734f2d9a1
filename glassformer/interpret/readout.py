"""Convert head outputs to predictions. D d_model, N vectors, V vocabulary or labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.heads import (
    HeadContext,
)
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks, stack_output
from glassformer.tasks.classification import LabelScorer, label_activation, label_names


@dataclass(frozen=True, kw_only=True)
class HeadReadout:
    """Converts the output of a model's head to predictions.

    stack: the stack whose output is the head's input. whole_input: one row of logits for the input, not one
    per position.
    """

    bundle: Bundle
    stack: schema.StackInfo
    whole_input: bool
    labels: Sequence[str] | None  # None if the model predicts tokens

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last block and the head, if any."""
        return self.bundle.model.get_submodule(stack_output(self.stack)) if self.stack.final_norm else None

    def sites(self) -> list[str]:
        """Return the names of the residual stream before the first block and after each block."""
        path = f"{self.stack.path}.blocks"
        return [f"{path}.0.resid_in", *(f"{path}.{n}.resid_out" for n in range(self.stack.layers))]

    def logits(self, residual: Tensor, context: HeadContext) -> Tensor:
        """Apply the final norm and the head to a residual (1, N, D); logits (N, V), or (1, V)."""
        x = residual if self.final_norm is None else self.final_norm(residual)
        logits = self.head_logits(x, context)
        return logits[0].float() if logits.dim() == 3 else logits.float()

    def head_logits(self, x: Tensor, context: HeadContext) -> Tensor:
        """Apply the head to normalized hidden states (1, N, D); logits (1, N, V) or (1, V)."""
        model: Any = self.bundle.model
        output: Any = model.head(x, context)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits

    @property
    def _scorer(self) -> LabelScorer:
        names = self.labels
        return LabelScorer((), "softmax" if names is None else label_activation(self.bundle, len(names)))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Convert logits (V,) to probabilities, by softmax, or by sigmoid for multi-label models."""
        return self._scorer.probabilities(logits)

    def log_probabilities(self, logits: Tensor) -> Tensor | None:
        """Convert logits (N, V) to log-probabilities (N, M); None for a regression model.

        A multi-label model has M = 2V: the log-probabilities of all labels, then of their complements.
        """
        match self._scorer.activation:
            case "softmax":
                return logits.log_softmax(-1)
            case "sigmoid":
                return F.logsigmoid(torch.cat((logits, -logits), -1))
        return None

    def log_odds(self, logits: Tensor) -> Tensor:
        """Convert logits (..., V) to log p/(1 - p) in nats; for a regression model, return them unchanged.

        Unlike probabilities near 0 or 1, log-odds show what matters.
        """
        if self._scorer.activation == "none":
            return logits.float()
        return self.probabilities(logits.double()).logit(eps=1e-12).float()

    def texts(self, ids: Sequence[int]) -> list[str]:
        if self.labels is not None:
            return [self.labels[index] for index in ids]
        if (tokenizer := self.bundle.tokenizer) is None:
            return [f"<id {index}>" for index in ids]
        side: Literal["source", "target"] = "target" if self.stack.name == "decoder" else "source"
        return [tokenizer.pieces([index], side=side)[0] for index in ids]

    def top(self, logits: Tensor, count: int) -> tuple[schema.Prediction, ...]:
        """Return the `count` best predictions for logits (V,)."""
        values, ids = logits.topk(min(count, len(logits)))
        texts, probability = self.texts(ids.tolist()), self.probabilities(logits)[ids].tolist()
        rows = zip(ids.tolist(), texts, probability, values.tolist(), strict=True)
        return tuple(schema.Prediction(id=n, text=t, probability=p, logit=v) for n, t, p, v in rows)


def head_readout(bundle: Bundle) -> HeadReadout:
    """Return the readout of a model that predicts tokens or labels; raise for others."""
    model: Any = bundle.model
    tokens = model.spec.yields in ("next tokens", "masked tokens")
    whole_input = model.spec.yields == "label"
    if not (tokens or whole_input or model.spec.yields == "token labels"):
        raise UnsupportedError(bundle.display_name, "predictions of tokens or labels")
    return HeadReadout(
        bundle=bundle,
        stack=describe_stacks(bundle)[-1],
        whole_input=whole_input,
        labels=None if tokens else label_names(bundle, model.spec.head.num_labels),
    )
