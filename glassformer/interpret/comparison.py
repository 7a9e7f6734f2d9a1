"""Compare two traces of one model: outcome, predictions and residual stream before and after an intervention.

T positions, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from glassformer.errors import ConflictError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks, residual_sites
from glassformer.interpret.readout import HeadReadout, head_readout
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of

TOP: Final = 20  # predictions listed
MAX_LOGITS: Final = 1 << 22  # in memory at a time


@torch.inference_mode()
def compare_traces(before: Trace, after: Trace) -> schema.DifferenceInfo:
    """Compare two traces of the same model.

    predictions: those whose probability changed most, at the first mask of a masked text, else at the last
    position. kl: the KL divergence of the predictions at that position, sum of p ln(p / q) with p before and
    q after, in nats. positions: the KL divergence at every position. Comparisons that need equal lengths are
    empty if the lengths differ.
    """
    if before.bundle is not after.bundle:
        raise ConflictError(["before", "after"], "they are traces of different models")
    predictions, kl, positions = list[schema.ProbabilityChange](), None, None
    with suppress(UnsupportedError):  # a head that predicts neither tokens nor labels
        readout = head_readout(before.bundle)
        ours, theirs = (_main_logits(trace, readout) for trace in (before, after))
        p, q = readout.probabilities(ours), readout.probabilities(theirs)
        changed = (q - p).abs().topk(min(TOP, len(p))).indices.tolist()
        for n, text in zip(changed, readout.texts(changed), strict=True):
            prediction = schema.Prediction(id=n, text=text)
            change = schema.ProbabilityChange(prediction=prediction, before=float(p[n]), after=float(q[n]))
            predictions.append(change)
        divergence = _divergence(readout, ours[None], theirs[None])
        if divergence is not None:
            kl, positions = float(divergence[0]), _by_position(before, after, readout)
    return schema.DifferenceInfo(
        outcome=schema.OutcomePair(before=before.outcome, after=after.outcome),
        predictions=tuple(predictions),
        kl=kl,
        positions=positions,
        residual=tuple(
            schema.ResidualChange(stack=name, sites=tuple(sites), name=f"{name}.change")
            for name, sites in _sites(before).items()
            if _same_shapes(before, after, sites)
        ),
    )


@torch.inference_mode()
def residual_change(trace: Trace, other: Trace, stack: str) -> Tensor:
    """Return the distance between two residual streams, divided by their mean norm: (sites, T), 0 to 2."""
    sites = _sites(trace).get(stack)
    if sites is None:
        raise schema.ItemNotFoundError("stack", stack, _sites(trace))
    if trace.bundle is not other.bundle or not _same_shapes(trace, other, sites):
        raise ConflictError(["trace", "minus"], f"their {stack}s differ in model or sequence length")
    rows = []
    for site in sites:
        ours, theirs = trace.record[site].float(), other.record[site].float()
        norm = (ours.norm(dim=-1) + theirs.norm(dim=-1)) / 2
        rows.append(((ours - theirs).norm(dim=-1) / norm.clamp(min=1e-12)).mean(0))
    return torch.stack(rows).cpu()


def _main_logits(trace: Trace, readout: HeadReadout) -> Tensor:
    """Return the logits (V,) at the first mask, the last position, or for the whole input."""
    logits = trace.record["head.logits"][0].float()
    if readout.whole_input:
        return logits
    at = view_of(trace.bundle).main_position(trace.outcome)
    return logits[-1 if at is None else at]


def _by_position(before: Trace, after: Trace, readout: HeadReadout) -> tuple[float, ...] | None:
    ours, theirs = (trace.record["head.logits"][0] for trace in (before, after))
    if readout.whole_input or ours.shape != theirs.shape:
        return None
    rows = max(1, MAX_LOGITS // ours.shape[-1])
    parts = zip(ours.split(rows), theirs.split(rows), strict=True)
    divergences = (_divergence(readout, p, q) for p, q in parts)
    return tuple(value for values in divergences if values is not None for value in values.tolist())


def _divergence(readout: HeadReadout, ours: Tensor, theirs: Tensor) -> Tensor | None:
    """Return KL(ours || theirs) (N,) of the predictions from logits (N, V); None for a regression model."""
    p, q = readout.log_probabilities(ours.float()), readout.log_probabilities(theirs.float())
    return None if p is None or q is None else kl_divergence(p, q)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return the KL divergence (...) of log-probabilities p and q (..., V).

    Tokens with probability 0 in both contribute 0, although their log-probabilities are infinite.
    """
    return (p.exp() * torch.where(p == q, 0.0, p - q)).sum(-1).clamp(min=0)


def _sites(trace: Trace) -> dict[str, list[str]]:
    return {stack.name: residual_sites(stack, trace.record) for stack in describe_stacks(trace.bundle)}


def _same_shapes(trace: Trace, other: Trace, sites: Sequence[str]) -> bool:
    return all(
        site in other.record and trace.record[site].shape == other.record[site].shape for site in sites
    )
