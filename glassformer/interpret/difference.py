"""Two traces of one model side by side: what a change did to the answer, the words and the residual stream.

T places, V vocabulary or labels.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import UnknownNameError
from glassformer.interpret.naming import Named, named_by
from glassformer.interpret.outline import stacks_of
from glassformer.interpret.stations import growth_of
from glassformer.interpret.taken import Trace

SHOWN: Final = 20  # words whose probability moved most
SCORES: Final = 1 << 22  # held at a time


@torch.inference_mode()
def difference_info(before: Trace, after: Trace) -> dict[str, Any]:
    """What changed from one trace to another of the same model, as JSON.

    words: those whose probability moved most, at the first mask of a text that is filled, else at the last
    place. kl: how far the probabilities there went, sum of p ln(p / q) with p before and q after, in nats;
    positions: the same at every place. What needs places to match is empty where they do not.
    """
    if before.bundle is not after.bundle:
        raise GlassformerError("these two are traces of different models; compare traces of one model")
    words: list[dict[str, Any]] = []
    kl: float | None = None
    positions: list[float] | None = None
    if (found := _named(before)) is not None:
        ours, theirs = (_row(trace, found) for trace in (before, after))
        p, q = found.chances(ours), found.chances(theirs)
        moved = (q - p).abs().topk(min(SHOWN, len(p))).indices.tolist()
        rows = zip(moved, found.texts(moved), strict=True)
        words = [
            {"word": {"id": n, "text": text}, "before": float(p[n]), "after": float(q[n])} for n, text in rows
        ]
        far = _divergence(found, ours[None], theirs[None])
        kl = None if far is None else float(far[0])
        positions = None if far is None else _by_place(before, after, found)
    return {
        "outcome": {"before": before.outcome, "after": after.outcome},
        "words": words,
        "kl": kl,
        "positions": positions,
        "residual": [
            {"stack": name, "sites": sites, "name": f"{name}.change"}
            for name, sites in _sites(before).items()
            if _alike(before, after, sites)
        ],
    }


@torch.inference_mode()
def change_table(trace: Trace, other: Trace, stack: str) -> Tensor:
    """How far the residuals of two traces lie apart, over their mean length, from 0 to 2: (sites, T)."""
    sites = _sites(trace).get(stack)
    if sites is None:
        raise UnknownNameError(f"this model has no stack '{stack:.60}'; it has {', '.join(_sites(trace))}")
    if trace.bundle is not other.bundle or not _alike(trace, other, sites):
        raise GlassformerError(
            f"the {stack} of these two traces has not the same places; give both the same input, or target"
        )
    rows = []
    for site in sites:
        ours, theirs = trace.record[site].float(), other.record[site].float()
        length = (ours.norm(dim=-1) + theirs.norm(dim=-1)) / 2
        rows.append(((ours - theirs).norm(dim=-1) / length.clamp(min=1e-12)).mean(0))
    return torch.stack(rows).cpu()


def _named(trace: Trace) -> Named | None:
    """What the head names; None where it names nothing, or nothing that was recorded."""
    try:
        return named_by(trace.bundle) if "head.logits" in trace.record else None
    except GlassformerError:
        return None


def _row(trace: Trace, found: Named) -> Tensor:
    """The scores (V,) that matter most."""
    logits = trace.record["head.logits"][0].float()
    if found.of == "input":
        return logits
    masks = trace.outcome.get("masks")
    return logits[masks[0]["position"] if masks else -1]


def _by_place(before: Trace, after: Trace, found: Named) -> list[float] | None:
    ours, theirs = (trace.record["head.logits"][0] for trace in (before, after))
    if found.of == "input" or ours.shape != theirs.shape:
        return None
    few = max(1, SCORES // ours.shape[-1])
    parts = zip(ours.split(few), theirs.split(few), strict=True)
    told = (_divergence(found, p, q) for p, q in parts)
    return [value for one in told if one is not None for value in one.tolist()]


def _divergence(found: Named, ours: Tensor, theirs: Tensor) -> Tensor | None:
    """Scores (N, V) before and after -> (N,), never below 0 but for rounding; None of plain numbers."""
    p, q = found.logs(ours.float()), found.logs(theirs.float())
    if p is None or q is None:
        return None
    # what was and stays impossible is no difference, and its logarithms have none
    return (p.exp() * torch.where(p == q, 0.0, p - q)).sum(-1).clamp(min=0)


def _sites(trace: Trace) -> dict[str, list[str]]:
    return {stack.name: list(growth_of(stack, trace.record)) for stack in stacks_of(trace.bundle)}


def _alike(one: Trace, other: Trace, sites: list[str]) -> bool:
    return all(site in other.record and one.record[site].shape == other.record[site].shape for site in sites)
