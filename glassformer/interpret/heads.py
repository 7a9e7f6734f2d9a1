"""What each head seems to do: how much of its attention falls on each pattern, against chance.

For a pattern that marks the keys M(t) of a query t, among the allowed keys A(t), and a head's weights w:

    share  = mean over t of  sum of w(t, s) over s in M(t)
    chance = mean over t of  |M(t)| / |A(t)|            what even attention gives
    lift   = (share - chance) / (1 - chance)            0 at chance, 1 where all attention is on the pattern

The means run over the queries at which a head has a choice: some allowed keys are marked and some are not.
`spread` is the entropy of the weights over that of even ones; its chance level is that of weights drawn at
random from all there are, (psi(n + 1) - psi(2)) / ln n for n keys. A head's role is the pattern of most lift,
if that is clear; patterns that contain others (local, spread) are asked only where no narrower one is.

B rows, H heads, T queries, S keys, P patterns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from glassformer.core.observe import Record
from glassformer.interpret.patterns import Line, cross_patterns, distances, own_patterns

if TYPE_CHECKING:
    from glassformer.interpret.kinds import Sequence
    from glassformer.interpret.taken import Trace

CLEAR: Final = 0.3  # of the attention that chance leaves over; less is no role
LEAST: Final = 3  # queries that must have a choice
AT_ONCE: Final = 1 << 25  # weights held at a time; beyond, heads come one by one
NARROW: Final = (
    *("previous", "next", "self", "alignment", "same", "separator", "first", "last", "punctuation"),
    *("row", "column"),
)
BROAD: Final = ("local", "spread")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What one head does on one input.

    role: None where nothing is clear; share and chance are then those of the pattern with most lift. Entropy
    in nats, distance in tokens (squares on a picture; from the diagonal where a target looks at a source).
    """

    head: int
    scores: Mapping[str, float]
    chances: Mapping[str, float]
    role: str | None
    share: float
    chance: float
    entropy: float
    distance: float


class Ruler:
    """Patterns laid out once for all attentions that read the same tokens under the same mask."""

    def __init__(self, patterns: Mapping[str, Tensor], allowed: Tensor, far: Tensor) -> None:
        """patterns by name, allowed keys and distances, each (T, S)."""
        self.names = list(patterns)
        marked = torch.stack([patterns[name] & allowed for name in self.names])  # (P, T, S)
        self.among, marks = allowed.sum(-1), marked.sum(-1)  # (T,), (P, T)
        self.choice = (marks > 0) & (marks < self.among)
        self.times = self.choice.sum(-1)  # (P,)
        share = torch.where(self.choice, marks / self.among.clamp(min=1), 0.0)
        self.chance = share.sum(-1) / self.times.clamp(min=1)  # (P,)
        self.wanted = torch.cat((marked.float(), far[None])).permute(1, 0, 2)  # (T, P + 1, S)
        self.real = int((self.among > 0).sum().clamp(min=1))

    def measure(self, weights: Tensor) -> list[Head]:
        """weights (B, H, T, S) -> each head's scores and role."""
        weights = weights.float()
        mean = weights.mean(0)  # (H, T, S); shares are linear in the weights, so rows may come first
        mass = torch.matmul(self.wanted, mean.permute(1, 2, 0))  # (T, P + 1, H)
        shares = torch.where(self.choice.T[..., None], mass[:, :-1], 0.0).sum(0)
        by_head = (shares / self.times.clamp(min=1)[:, None]).T.tolist()  # H x P
        away = (mass[:, -1].sum(0) / self.real).tolist()
        entropy = -(weights * weights.clamp(min=_TINY).log_()).sum(-1).mean(0)  # (H, T)
        spread, even, free = _spread(entropy, self.among)
        entropies = (entropy.sum(-1) / self.real).tolist()
        times = dict(zip(self.names, self.times.tolist(), strict=True))
        chances = {n: c for n, c in zip(self.names, self.chance.tolist(), strict=True) if times[n]}
        if free:
            times["spread"], chances["spread"] = free, even
        found = []
        for head in range(weights.shape[1]):
            scores = dict(zip(self.names, by_head[head], strict=True)) | {"spread": float(spread[head])}
            scores = {name: scores[name] for name in chances}
            lifts = {n: (scores[n] - chances[n]) / (1 - chances[n]) for n in chances if times[n] >= LEAST}
            role, best = _role(lifts)
            found.append(
                Head(
                    head=head,
                    scores=scores,
                    chances=chances,
                    role=role,
                    share=scores.get(best, 0.0),
                    chance=chances.get(best, 0.0),
                    entropy=entropies[head],
                    distance=away[head],
                )
            )
        return found


def ruler_for(record: Record, name: str, queries: Line, keys: Line, kind: Literal["self", "cross"]) -> Ruler:
    """The ruler of one attention of a record."""
    found = own_patterns(keys) if kind == "self" else cross_patterns(queries, keys)
    device = record[f"{name}.q"].device
    allowed = _allowed(record, name, len(queries), len(keys), device)
    far = distances(queries, keys, kind).to(device)
    return Ruler({pattern: marked.to(device) for pattern, marked in found.items()}, allowed, far)


def read_heads(record: Record, name: str, ruler: Ruler) -> list[Head]:
    """The heads of one attention of a record; a large one head by head."""
    q, keys = record[f"{name}.q"], record[f"{name}.k"].shape[2]
    if q.shape[0] * q.shape[1] * q.shape[2] * keys <= AT_ONCE:
        return ruler.measure(record.weights(name))
    return [
        replace(ruler.measure(record.weights(name, head=n)[:, None])[0], head=n) for n in range(q.shape[1])
    ]


def heads_info(trace: Trace) -> dict[str, Any]:
    """What every head of a trace seems to do, as JSON; layer by layer, each with its own matrices alone."""
    lines: dict[str, Line] = {one.name: line_of(one) for one in trace.sequences}
    rulers: dict[tuple[Any, ...], Ruler] = {}
    told = []
    for one in trace.attentions():
        same = (one.queries, one.keys, one.kind, id(trace.record.attended[one.name].mask))
        if same not in rulers:
            rulers[same] = ruler_for(trace.record, one.name, lines[one.queries], lines[one.keys], one.kind)
        heads = read_heads(trace.record, one.name, rulers[same])
        told.append({"name": one.name, "heads": [_plain(vars(head)) for head in heads]})
    return {"attentions": told}


def line_of(sequence: Sequence) -> Line:
    """What patterns need to know of a trace's sequence."""
    return Line(
        spelled=[None if one.special or one.raw is None else one.piece for one in sequence.tokens],
        special=[one.special for one in sequence.tokens],
        grid=sequence.grid,
        prefix=sequence.prefix,
    )


def _role(lifts: Mapping[str, float]) -> tuple[str | None, str]:
    """The role, and the pattern that comes nearest to one."""
    best = ""
    for among in (NARROW, BROAD):
        ranked = sorted((name for name in among if name in lifts), key=lambda name: -lifts[name])
        if ranked and lifts[ranked[0]] >= CLEAR:
            return ranked[0], ranked[0]
        best = best or (ranked[0] if ranked else "")
    return None, best


def _spread(entropy: Tensor, among: Tensor) -> tuple[Tensor, float, int]:
    """Entropies (H, T) over the highest there could be (H,), the same of random weights, and of how many."""
    free = among > 1
    if not bool(free.any()):
        return entropy.new_zeros(len(entropy)), 0.0, 0
    count = among[free].double()
    highest = count.log()
    drawn = (torch.digamma(count + 1) - (1 - _EULER)) / highest
    return (entropy[:, free] / highest).mean(-1), float(drawn.mean()), int(free.sum())


_EULER: Final = 0.5772156649015329
_TINY: Final = 1e-30  # its logarithm is a number, and nothing times it is nothing


def _allowed(record: Record, name: str, rows: int, columns: int, device: torch.device) -> Tensor:
    """Who may look at whom (T, S); the rows and heads of one input see alike."""
    found = record.attended[name].mask.permissions(rows, columns, device)
    if found is None:
        return torch.ones(rows, columns, dtype=torch.bool, device=device)
    return found[0, 0].expand(rows, columns)


def thumbnails(weights: Tensor, most: int = 32) -> Tensor:
    """Weights (B, H, T, S) -> small pictures (H, n, m) of bytes, n and m at most `most`.

    A pixel is the largest weight of its tile, shown as 255 times its square root: what is faint is seen too.
    Of several rows (the channels of a series) the mean is shown.
    """
    mean = weights.float().mean(0)  # (H, T, S)
    size = [min(most, length) for length in mean.shape[1:]]
    small = torch.nn.functional.adaptive_max_pool2d(mean[None], size)[0]
    return (small.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)


def _plain(value: Any) -> Any:
    """Plain numbers; one that is not finite, which the weights of a broken model give, is 0."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
