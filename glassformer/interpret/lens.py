"""The logit lens: what the head would say after each layer, as if no other followed.

The residual after a block goes through the stack's final norm, where it has one, and the head. After the last
block that is what the model says. T places, D d_model, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.core.heads import Context
from glassformer.interpret.kinds import UnknownNameError
from glassformer.interpret.naming import best_words, context_of, named_by, place_of
from glassformer.interpret.taken import Trace

SCORES: Final = 1 << 22  # held at a time while all places are looked at
WORDS: Final = 1000  # that are told at most
UNREAD: Final = -1  # in a table: this place was not looked at yet


@torch.inference_mode()
def lens_info(trace: Trace, position: int | None = None, top: int = 10) -> dict[str, Any]:
    """The likeliest words after each layer at one place, by default the last.

    entropy: of the layer's probabilities, in nats; None where the model tells a number. rank_of_final: where
    the model's own first choice stands among the layer's, 1 the likeliest. A model that labels its whole
    input has one answer for all places.
    """
    found = named_by(trace.bundle)
    at = place_of(trace, found.stack, position)
    context = context_of(trace)

    def scores(site: str) -> Tensor:
        residual = trace.record[site]
        if found.of == "places":
            return found.scores(residual[:, at : at + 1], Context())[0]
        return found.scores(residual, context)[0]

    sites = found.sites()
    final = int(scores(sites[-1]).argmax())
    layers = []
    for site in sites:
        logits = scores(site)
        logs = found.logs(logits[None])
        layers.append(
            {
                "site": site,
                "words": best_words(found, logits, min(top, WORDS)),
                "entropy": None if logs is None else float(torch.special.entr(logs.exp()).sum()),
                "rank_of_final": int((logits > logits[final]).sum()) + 1,
            }
        )
    return {"position": at, "stack": found.stack, "layers": layers}


@torch.inference_mode()
def lens_table(trace: Trace, stack: str, places: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """The likeliest word after each layer at each place (layers + 1, T), and its probability.

    Only these places are sure to be filled in (by default all): each costs a run of the head a layer, so
    those of a long text are worked out when they are looked at. What was is kept with the trace.
    """
    found = named_by(trace.bundle)
    if found.stack != stack or found.of != "places":
        raise UnknownNameError(f"the head reads no word off each place of the {stack:.60}")
    sites = found.sites()
    count = trace.record[sites[0]].shape[1]
    names = f"{stack}.lens.top", f"{stack}.lens.prob"
    if names[0] not in trace.kept:
        trace.kept[names[1]] = torch.zeros(len(sites), count)
        trace.kept[names[0]] = torch.full((len(sites), count), UNREAD, dtype=torch.int32)
    top, prob = trace.kept[names[0]], trace.kept[names[1]]
    missing = [at for at in (range(count) if places is None else places) if top[0, at] == UNREAD]
    if not missing:
        return top, prob
    few = max(1, SCORES // found.scores(trace.record[sites[0]][:, :1], Context()).shape[-1])
    for part in torch.tensor(missing).split(few):  # the scores of all would not fit
        for n, site in reversed(list(enumerate(sites))):  # the first layer's row says what is filled in
            residual = trace.record[site]
            logits = found.scores(residual[:, part.to(residual.device)], Context())  # (few, V)
            best = logits.max(-1)
            prob[n, part] = (best.values - logits.logsumexp(-1)).exp().cpu()
            top[n, part] = best.indices.int().cpu()
    return top, prob


@torch.inference_mode()
def next_info(trace: Trace, position: int | None = None, count: int = 50) -> dict[str, Any]:
    """What the model itself says at one place, by default the last: its best words, and what they sum to."""
    found = named_by(trace.bundle)
    at = place_of(trace, found.stack, position)
    logits = trace.record["head.logits"][0].float()
    logits = logits[at] if found.of == "places" else logits
    return {
        "position": at,
        "vocabulary": len(logits),
        "logsumexp": float(logits.logsumexp(-1)),
        "words": best_words(found, logits, min(count, WORDS)),
        "logits": "head.logits",
    }
