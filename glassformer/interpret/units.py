"""What one unit of a feed-forward writes: the words that its part of the down-projection is for and against.

F d_ff, D d_model, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.heads import LanguageModelHead, MaskedLanguageModelHead
from glassformer.core.norms import LayerNorm
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import UnknownNameError
from glassformer.interpret.naming import Named, named_by
from glassformer.interpret.taken import Trace

WORDS: Final = 200  # that are told at most on each side


@torch.inference_mode()
def unit_info(trace: Trace, ffn: str, unit: int, top: int = 12) -> dict[str, Any]:
    """The words that an active unit makes likelier and less likely, with what it adds to their scores.

    The unit's vector (D,) is read as the head reads: through the linear part of the norms on its way
    (centred, weighted), then against the vocabulary; what bends on the way is left out, and so is every later
    block. Empty where the head names no words or never sees this stack.
    """
    model: Any = trace.bundle.model
    try:
        part = model.get_submodule(ffn) if ffn else None
    except AttributeError:
        part = None
    if not isinstance(part, FeedForward | GatedFeedForward):
        raise UnknownNameError(f"this model has no feed-forward '{ffn:.60}'; the trace lists its stations")
    count = part.down.in_features
    if type(unit) is not int or not 0 <= unit < count:
        raise GlassformerError(f"{ffn} has units 0 to {count - 1}; there is no unit {unit!r:.20}")
    if type(top) is not int or top < 1:
        raise GlassformerError(f"at least one word can be told; got {top!r:.20}")
    nothing: dict[str, Any] = {"promotes": [], "suppresses": []}
    if not isinstance(model.head, LanguageModelHead | MaskedLanguageModelHead):
        return nothing
    found = named_by(trace.bundle)
    if found.stack != ffn.split(".")[0]:
        return nothing
    scores = spoken(found, ffn, part.down.weight[:, unit].float())
    few = min(top, WORDS, len(scores))
    return {"promotes": _told(found, scores, few), "suppresses": _told(found, scores, few, largest=False)}


def spoken(found: Named, ffn: str, vector: Tensor) -> Tensor:
    """What a vector (D,) written by a feed-forward adds to the scores of the vocabulary (V,)."""
    block: Any = found.bundle.model.get_submodule(ffn.rpartition(".")[0])
    head: Any = found.head
    if block.wiring == "post":
        vector = _linear_part(block.norm_ffn, vector)
    if found.final_norm is not None:
        vector = _linear_part(found.final_norm, vector)
    if isinstance(head, MaskedLanguageModelHead):
        vector = _linear_part(head.norm, head.dense.weight.float() @ vector)
    else:
        vector = head.transform(vector)
    scores: Tensor = head.weight.float() @ vector
    return scores


def _linear_part(norm: nn.Module, vector: Tensor) -> Tensor:
    """A norm without its division: centred where it centres, times its weight."""
    if isinstance(norm, LayerNorm | nn.LayerNorm):
        vector = vector - vector.mean()
    weight = getattr(norm, "weight", None)
    return vector if weight is None else vector * weight.float()


def _told(found: Named, scores: Tensor, count: int, *, largest: bool = True) -> list[dict[str, Any]]:
    values, ids = scores.topk(count, largest=largest)
    texts = found.texts(ids.tolist())
    rows = zip(ids.tolist(), texts, values.tolist(), strict=True)
    return [{"id": n, "text": text, "logit": value} for n, text, value in rows]
