"""What a model's head can name: words of a vocabulary at every place, or labels of the whole input.

N vectors, D d_model, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core.heads import (
    ClassifyHead,
    ClassifyTwiceHead,
    Context,
    LanguageModelHead,
    MaskedLanguageModelHead,
    TokenClassifyHead,
)
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.errors import GlassformerError
from glassformer.interpret.taken import Trace
from glassformer.tasks.classify import labels_of, probabilities, told_of


@dataclass(frozen=True, kw_only=True)
class Named:
    """The stack whose vectors the head reads, and what it names.

    of: "places" for a row of scores at every place, "input" for one row of all.
    """

    bundle: Bundle
    stack: str
    head: nn.Module
    of: Literal["places", "input"]
    names: Literal["words", "labels"]

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last block and the head, where there is one."""
        found: nn.Module | None = getattr(self.bundle.model, self.stack).final_norm
        return found

    def sites(self) -> list[str]:
        """The residual before the first block and after each."""
        blocks = getattr(self.bundle.model, self.stack).blocks
        path = f"{self.stack}.blocks"
        return [f"{path}.0.resid_in", *(f"{path}.{n}.resid_out" for n in range(len(blocks)))]

    def scores(self, residual: Tensor, context: Context) -> Tensor:
        """What the head would say of a residual (1, N, D), as if no block followed: (N, V), or (1, V)."""
        x = residual if self.final_norm is None else self.final_norm(residual)
        told: Any = self.head(x, context)
        logits: Tensor = told if isinstance(told, Tensor) else told.logits
        return logits[0].float() if logits.dim() == 3 else logits.float()

    def chances(self, logits: Tensor) -> Tensor:
        """Scores (V,) as probabilities: over all words, or as the labels of this model are told."""
        if self.names == "words":
            return logits.softmax(-1)
        return probabilities(self.bundle, len(logits))(logits)

    def logs(self, logits: Tensor) -> Tensor | None:
        """Scores (N, V) as logarithms of probabilities (N, M), of all that can be; None of a plain number.

        Where each label holds or not by itself, these are the labels' and then those of their contraries.
        """
        kind = "one" if self.names == "words" else told_of(self.bundle, logits.shape[-1])
        match kind:
            case "one":
                return logits.log_softmax(-1)
            case "each":
                return F.logsigmoid(torch.cat((logits, -logits), -1))
            case "number":
                return None

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Each word or label as a person reads it."""
        if self.names == "labels":
            head: Any = self.bundle.spec.head
            known = labels_of(self.bundle, head.num_labels)
            return [str(known[index]) for index in ids]
        tokenizer = self.bundle.tokenizer
        if tokenizer is None:
            return [f"<id {index}>" for index in ids]
        side: Literal["source", "target"] = "target" if self.stack == "decoder" else "source"
        return [tokenizer.pieces([index], side=side)[0] for index in ids]


def named_by(bundle: Bundle) -> Named:
    """What the head of a model names; a sentence where it names nothing."""
    model: Any = bundle.model
    stack = "encoder" if isinstance(model, EncoderOnly) else "decoder"
    match head := model.head:
        case LanguageModelHead() | MaskedLanguageModelHead():
            return Named(bundle=bundle, stack=stack, head=head, of="places", names="words")
        case TokenClassifyHead():
            return Named(bundle=bundle, stack=stack, head=head, of="places", names="labels")
        case ClassifyHead() | ClassifyTwiceHead():
            return Named(bundle=bundle, stack=stack, head=head, of="input", names="labels")
    raise GlassformerError("this model gives no scores to words or labels; look at its vectors instead")


def context_of(trace: Trace) -> Context:
    """What the head was told beside the vectors."""
    inputs = trace.ready.inputs
    decoder = isinstance(trace.bundle.model, EncoderDecoder)
    mask = inputs.get("tgt_mask" if decoder else "mask")
    ids = inputs.get("src", inputs.get("ids", inputs.get("inputs")))
    return Context(ids=ids, padding=mask if isinstance(mask, Tensor) else getattr(mask, "padding", None))


def place_of(trace: Trace, stack: str, position: int | None) -> int:
    """A place of a stack's sequence; by default its last."""
    count = int(trace.record[f"{stack}.blocks.0.resid_in"].shape[1])
    if position is None:
        return count - 1
    if type(position) is not int or not 0 <= position < count:
        raise GlassformerError(f"there are places 0 to {count - 1}; there is no place {position!r:.20}")
    return position


def best_words(found: Named, logits: Tensor, count: int) -> list[dict[str, Any]]:
    """The `count` likeliest of a row of scores (V,), as JSON."""
    if type(count) is not int or count < 1:
        raise GlassformerError(f"at least one word can be told; got {count!r:.20}")
    values, ids = logits.topk(min(count, len(logits)))
    texts = found.texts(ids.tolist())
    rows = zip(ids.tolist(), texts, found.chances(logits)[ids].tolist(), values.tolist(), strict=True)
    return [{"id": n, "text": t, "probability": p, "logit": v} for n, t, p, v in rows]
